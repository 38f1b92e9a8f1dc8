/* The kernels for the instruction set that the build targets. */
#define TR_KERNELS tr_cpu_kernels_base
#include "device/cpu/kernels_body.h"
