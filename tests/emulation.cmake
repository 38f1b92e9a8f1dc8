# Runs device/cuda on the host, without a GPU: the .cu files are compiled as C++, with
# tests/unit/support/cuda/ instead of the toolkit's headers. test_op_NAME_emulated is test_op_NAME with a device
# that runs the kernels in several ways; test_device_emulated is test_device with device/cuda/cuda.c over an
# emulated runtime.
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(WARNING "no C++ compiler: the CUDA kernels are not tested on the host")
  return()
endif()
enable_language(CXX)

set(cuda_folder ${CMAKE_SOURCE_DIR}/device/cuda)
file(GLOB kernels CONFIGURE_DEPENDS ${cuda_folder}/*.cu)
list(TRANSFORM kernels REPLACE "\\.cu$" ".c" OUTPUT_VARIABLE kernel_hosts)
list(TRANSFORM kernel_hosts REPLACE "/attention\\.c$" "/attention_own.c") # attention.c calls cuDNN
list(FILTER kernel_hosts EXCLUDE REGEX "/narrow\\.c$") # optimizer.c launches its kernels
file(GLOB ref_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/device/ref/*.c ${CMAKE_SOURCE_DIR}/device/table/*.c)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)

add_library(emulated_cuda OBJECT unit/support/cuda/beside.c unit/support/cuda/cublaslt.c unit/support/cuda/runtime.c
  unit/support/cuda/emulation.cpp ${kernels} ${kernel_hosts} ${cuda_folder}/op.c ${CMAKE_SOURCE_DIR}/device/device.c
  ${CMAKE_SOURCE_DIR}/device/host.c ${CMAKE_SOURCE_DIR}/device/op.c ${CMAKE_SOURCE_DIR}/device/decompose.c ${CMAKE_SOURCE_DIR}/device/rope.c ${CMAKE_SOURCE_DIR}/device/shared.c
  ${CMAKE_SOURCE_DIR}/device/plan.c ${CMAKE_SOURCE_DIR}/device/plan_book.c ${CMAKE_SOURCE_DIR}/device/queue.c ${CMAKE_SOURCE_DIR}/device/stream.c ${CMAKE_SOURCE_DIR}/device/tensor.c ${CMAKE_SOURCE_DIR}/base/thread.c ${ref_sources}
  ${CMAKE_SOURCE_DIR}/base/cgroup.c
  ${CMAKE_SOURCE_DIR}/base/digits.c ${CMAKE_SOURCE_DIR}/base/memory.c ${CMAKE_SOURCE_DIR}/base/status.c ${CMAKE_SOURCE_DIR}/base/text.c)
# Its threads of a block are stacks between which it jumps, which Ubuntu's checks of longjmp refuse.
set_source_files_properties(unit/support/cuda/emulation.cpp PROPERTIES COMPILE_OPTIONS -U_FORTIFY_SOURCE)
target_include_directories(emulated_cuda BEFORE PUBLIC unit/support/cuda)
target_include_directories(emulated_cuda PUBLIC unit)
# At most three blocks a launch, so that a block handles several items, as with large tensors.
target_compile_definitions(emulated_cuda PUBLIC TR_GRID_LIMIT=3 TRIREME_EMULATED)
# -O1: the build is two seconds faster, the test one second slower.
target_compile_features(emulated_cuda PRIVATE cxx_std_17)
target_compile_options(emulated_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-O1;-ffp-contract=off;-Wall;-Wextra;-Wno-unknown-pragmas;-Wno-unused-function>
  $<$<AND:$<BOOL:${TRIREME_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(TRIREME_SANITIZE)
  target_compile_options(emulated_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TRIREME_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=undefined>)
endif()
target_link_libraries(emulated_cuda PUBLIC trireme_options PkgConfig::CMOCKA Threads::Threads m)

add_executable(test_op_cuda_emulated unit/test_op_cuda.c unit/support/op_cuda_cases.c unit/support/op_cases.c unit/support/op_check.c
  unit/support/op_data.c unit/support/op_tensors.c unit/support/cuda/device.c)
add_executable(test_device_emulated unit/test_device.c unit/support/device_queue.c ${cuda_folder}/cuda.c)
add_executable(test_op_rounded_emulated unit/test_op_rounded.c unit/support/cuda/device.c)
add_executable(test_op_attention_emulated unit/test_op_attention.c unit/support/op_check.c unit/support/op_data.c
  unit/support/op_tensors.c unit/support/cuda/device.c)
foreach(name IN ITEMS test_op_cuda_emulated test_op_rounded_emulated test_op_attention_emulated test_device_emulated)
  target_link_libraries(${name} PRIVATE emulated_cuda)
  add_test(NAME unit.${name} COMMAND ${name})
  set_tests_properties(unit.${name} PROPERTIES LABELS unit TIMEOUT ${unit_timeout})
  add_dependencies(unit_tests ${name})
endforeach()
# The longest unit test begins with the longest runs.
set_property(TEST unit.test_op_cuda_emulated PROPERTY COST 100)
# The second GPU, because threads start on the first.
set_property(TEST unit.test_device_emulated APPEND PROPERTY ENVIRONMENT TRIREME_TEST_DEVICE=cuda:1)

# The benchmark of cuBLASLt's plans, with the emulated library (run/benchmarks.sh).
add_executable(bench_matmul_emulated ${CMAKE_SOURCE_DIR}/bench/bench_matmul.c unit/support/cuda/device.c)
target_link_libraries(bench_matmul_emulated PRIVATE emulated_cuda)
