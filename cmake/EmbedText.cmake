# motley_embed(MODULE FILE SYMBOL): compiles a text file into a module as `std::string_view motley::SYMBOL()`.
function(motley_embed module file symbol)
  if(NOT TARGET motley_${module})
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${CMAKE_SOURCE_DIR}/${file} text)
  set(generated ${CMAKE_BINARY_DIR}/embedded/${symbol}.cpp)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT
    "#include <string_view>\nnamespace motley {\nstd::string_view @symbol@();\nstd::string_view @symbol@() { return R\"embedded(@text@)embedded\"; }\n}  // namespace motley\n")
  target_sources(motley_${module} PRIVATE ${generated})
endfunction()
