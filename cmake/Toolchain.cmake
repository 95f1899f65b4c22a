# Language level, warnings, sanitizers, compiler cache and linker: the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(motley_options INTERFACE)
target_include_directories(motley_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(motley_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(motley_options INTERFACE -Wno-restrict)  # g++ 12 reports `"literal" + std::string()` falsely (GCC bug 105651)
  if(MOTLEY_BATCH GREATER 1)
    # Says that a struct with members from an anonymous namespace stands in a header: g++ takes for one whatever is included.
    target_compile_options(motley_options INTERFACE -Wno-subobject-linkage)
  endif()
endif()

if(MOTLEY_SANITIZE)
  add_compile_options(-fsanitize=${MOTLEY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MOTLEY_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ 12 loses track of initialisation among the checks it inserts, and calls the members of an empty std::optional uninitialized.
    target_compile_options(motley_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(MOTLEY_SANITIZE MATCHES thread)
    add_compile_options(-Wno-tsan)  # Asio's fences, which the sanitizer does not know
  endif()
endif()

if(MOTLEY_COVERAGE)
  add_compile_options(--coverage -fprofile-abs-path -fprofile-update=atomic)  # counts of all threads
  add_link_options(--coverage -Wl,--wrap=_exit)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # ccache looks through a precompiled header only if told that its macros and time stamps do not matter; and what was compiled in
  # another checkout is found again if paths are compared from the root of each. motley_module adds -fpch-preprocess where needed.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
