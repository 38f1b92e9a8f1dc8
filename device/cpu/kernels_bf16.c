/* The kernels for AVX-512 with BF16: CMakeLists.txt compiles this file for it. */
#define TR_KERNELS tr_cpu_kernels_bf16
#include "device/cpu/kernels_body.h"
