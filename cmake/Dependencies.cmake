# Everything comes from the system's packages and the local Python environment (`./dev setup`); nothing is downloaded here.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenSSL 3 REQUIRED)
set(python_packages lib/python3.11/site-packages)
set(venv_packages ${MOTLEY_VENV}/${python_packages})
# When the list of packages changes, what is there is looked for again.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/packages/python.txt)

# HiGHS by its C API (its wheel is built with the older string ABI). Planning alone works without it: motley/solve/milp.hpp.
set(highs ${venv_packages}/highsbox/highs_dist)
add_library(motley_highs INTERFACE)
if(EXISTS ${highs}/lib/libhighs.so)
  target_include_directories(motley_highs SYSTEM INTERFACE ${highs}/include/highs)
  target_link_libraries(motley_highs INTERFACE ${highs}/lib/libhighs.so)
  target_compile_definitions(motley_highs INTERFACE MOTLEY_WITH_HIGHS)
elseif(MOTLEY_RUNTIME)
  message(FATAL_ERROR "HiGHS is not in ${highs}. Run `./dev setup`, or configure with -DMOTLEY_RUNTIME=OFF to build the core alone.")
else()
  message(STATUS "HiGHS is not in ${highs}: mixed-integer programs are solved by the built-in solver alone")
endif()

if(MOTLEY_TESTS)
  find_package(GTest REQUIRED)
  # A second opinion on mixed-integer programs, in tests only (motley/solve/cbc_test.hpp).
  find_path(CBC_INCLUDE coin/Cbc_C_Interface.h REQUIRED)
  find_library(CBC_LIBRARY CbcSolver REQUIRED)
  add_library(motley_cbc INTERFACE)
  target_include_directories(motley_cbc SYSTEM INTERFACE ${CBC_INCLUDE}/coin)
  target_link_libraries(motley_cbc INTERFACE ${CBC_LIBRARY})
endif()

set(torch ${venv_packages}/torch)
if(MOTLEY_RUNTIME)
  if(NOT EXISTS ${torch}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch is not in ${torch}. Run `./dev setup`, or configure with -DMOTLEY_RUNTIME=OFF to build the core alone.")
  endif()

  # The wheel's own CMake files would ask for CUDA; these two libraries are all that is linked. CUDA is opened at run time.
  add_library(motley_torch INTERFACE)
  # Only ATen and what it includes: torch's folder also holds an fmt of its own.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include/libtorch)
  foreach(folder ATen c10 torch)
    file(CREATE_LINK ${torch}/include/${folder} ${CMAKE_BINARY_DIR}/include/libtorch/${folder} SYMBOLIC)
  endforeach()
  target_include_directories(motley_torch SYSTEM INTERFACE ${CMAKE_BINARY_DIR}/include/libtorch)
  target_link_libraries(motley_torch INTERFACE ${torch}/lib/libtorch_cpu.so ${torch}/lib/libc10.so)
  # at::parallel_for is a header that needs OpenMP; the library must be the very one that LibTorch runs on.
  target_compile_options(motley_torch INTERFACE -fopenmp)
  target_link_libraries(motley_torch INTERFACE ${torch}/lib/libgomp.so.1)
  target_link_options(motley_torch INTERFACE -Wl,--allow-shlib-undefined)
  file(STRINGS ${torch}/version.py torch_version REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" torch_version "${torch_version}")

  # Asio and Beast are headers only; 1.81 is installed next to Debian's default Boost.
  find_package(Boost 1.81 EXACT REQUIRED)
  add_library(motley_boost INTERFACE)
  target_include_directories(motley_boost SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
  target_link_libraries(motley_boost INTERFACE OpenSSL::Crypto Threads::Threads)

  # The coordinator's log, unless it is in etcd.
  find_package(SQLite3 3.40 REQUIRED)
endif()
