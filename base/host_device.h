/* Marks inline functions that kernels call as well as the host. */
#pragma once

#ifdef __CUDACC__
#define TR_HOSTDEVICE __host__ __device__
#else
#define TR_HOSTDEVICE
#endif
