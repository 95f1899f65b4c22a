# `cmake --install FOLDER --prefix PREFIX`: programs and data (component program), the library of collectives (component
# collectives). docs/guides/install.md. What is installed finds the rest by relative paths, so that a prefix can be moved.
include(CMakePackageConfigHelpers)
set(libraries ${CMAKE_INSTALL_LIBDIR}/motley)  # those that only motley's programs use

install(TARGETS motley RUNTIME COMPONENT program)
install(DIRECTORY data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/motley COMPONENT program)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/motley COMPONENT program
        FILES_MATCHING PATTERN "*.toml" PATTERN "*.json" PATTERN tales EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
if(EXISTS ${highs}/lib/libhighs.so)
  file(RELATIVE_PATH from_programs ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/motley)
  set_target_properties(motley PROPERTIES INSTALL_RPATH "$ORIGIN/${from_programs}")
  install(PROGRAMS ${highs}/lib/libhighs.so DESTINATION ${libraries} COMPONENT program)
  install(FILES ${highs}/share/doc/HIGHS/LICENSE.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.highs COMPONENT program)
endif()
if(NOT MOTLEY_RUNTIME)
  return()
endif()

# LibTorch is too large to copy: it stays in its environment. motley starts the worker with the one that MOTLEY_VENV names.
install(TARGETS motley-worker RUNTIME COMPONENT program)
set_target_properties(motley-worker PROPERTIES INSTALL_RPATH ${torch}/lib)
# The kernels for GPUs, where `./dev gpu --build` has made them.
install(FILES ${CMAKE_SOURCE_DIR}/build/gpu/libmotley_cuda.so DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program OPTIONAL)
install(FILES packages/python.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/motley RENAME python-packages.txt COMPONENT program)

# The library's version is that of its C functions.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS motley/comm/c_api.h)
file(STRINGS motley/comm/c_api.h abi REGEX "^#define MOTLEY_COMM_ABI ")
string(REGEX MATCH "[0-9]+$" abi "${abi}")
set_target_properties(motley_comm_shared PROPERTIES EXPORT_NAME comm SOVERSION ${abi})
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/motley)
install(TARGETS motley_comm_shared EXPORT motley LIBRARY COMPONENT collectives NAMELINK_COMPONENT collectives)
install(FILES motley/comm/c_api.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/motley/comm COMPONENT collectives)
install(EXPORT motley NAMESPACE motley:: FILE motley-config.cmake DESTINATION ${package} COMPONENT collectives)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/install/motley-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/install/motley-config-version.cmake DESTINATION ${package} COMPONENT collectives)

set(pkg_config ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/install/motley-comm.pc @ONLY CONTENT [[
prefix=${pcfiledir}/@to_prefix@
libdir=${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=${prefix}/@CMAKE_INSTALL_INCLUDEDIR@

Name: motley-comm
Description: Collectives among processes that come and go
Version: @PROJECT_VERSION@
Libs: -L${libdir} -lmotley_comm
Cflags: -I${includedir}
]])
install(FILES ${CMAKE_BINARY_DIR}/install/motley-comm.pc DESTINATION ${pkg_config} COMPONENT collectives)

# The backend of torch.distributed: plain Python for any version. It opens the library two folders above its own.
install(DIRECTORY python/motley DESTINATION ${CMAKE_INSTALL_LIBDIR}/python3/site-packages COMPONENT collectives
        FILES_MATCHING PATTERN "*.py")
install(FILES examples/collectives/CMakeLists.txt examples/collectives/average.cpp
        DESTINATION ${CMAKE_INSTALL_DATADIR}/motley/examples/collectives COMPONENT collectives)
