/* The kernels for AVX-512: CMakeLists.txt compiles this file for it. */
#define TR_KERNELS tr_cpu_kernels_wide
#include "device/cpu/kernels_body.h"
