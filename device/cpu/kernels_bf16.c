/* The kernels for AVX-512 with BF16: CMakeLists.txt compiles this file for it. On other
 * architectures they are the base kernels and are never chosen. */
#define TR_KERNELS tr_cpu_kernels_bf16
#include "device/cpu/kernels_body.h"
