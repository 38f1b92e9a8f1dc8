# The libraries Trireme stands on, as one interface target: trireme_dependencies.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(OpenMP REQUIRED COMPONENTS C)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
# The serial build of HDF5: it is thread-safe, the MPI build is not.
find_path(HDF5_SERIAL_INCLUDE hdf5.h PATHS /usr/include/hdf5/serial PATH_SUFFIXES hdf5/serial REQUIRED NO_DEFAULT_PATH)
find_library(HDF5_SERIAL_LIBRARY NAMES hdf5_serial hdf5 REQUIRED)
# oneDNN's CMake package asks for OpenCL, which nothing here uses.
find_path(DNNL_INCLUDE dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)

add_library(trireme_dependencies INTERFACE)
target_include_directories(trireme_dependencies SYSTEM INTERFACE ${HDF5_SERIAL_INCLUDE} ${DNNL_INCLUDE})
target_link_libraries(trireme_dependencies INTERFACE MPI::MPI_C PkgConfig::YAML PkgConfig::CJSON
  PkgConfig::XXHASH PkgConfig::ZLIB ${HDF5_SERIAL_LIBRARY} ${DNNL_LIBRARY} Threads::Threads m rt)
# ThreadSanitizer reports false races in OpenMP's runtime, so that build runs its loops serially.
if(NOT TRIREME_SANITIZE MATCHES "thread")
  target_link_libraries(trireme_dependencies INTERFACE OpenMP::OpenMP_C)
endif()

set(TRIREME_CUDA_TOOLKIT "")
if(NOT TRIREME_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    set(TRIREME_CUDA_TOOLKIT ${CUDAToolkit_VERSION})
    message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION} found")
  elseif(TRIREME_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIREME_CUDA=ON, but no CUDA toolkit was found: install it or set TRIREME_CUDA=OFF")
  endif()
endif()
