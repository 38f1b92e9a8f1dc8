/* The kernels for AVX-512; elsewhere the same as the base ones, and never chosen. */
#ifdef __x86_64__
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512bw,avx512dq,prefer-vector-width=512")
#endif
#define TR_KERNELS tr_cpu_kernels_wide
#include "device/cpu/kernels_body.h"
