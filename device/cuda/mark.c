/* Ranges for profilers (NVTX, header-only: the profiler brings the library). */
#include "device/cuda/cuda_impl.h"

#include <nvtx3/nvToolsExt.h>

void tr_cuda_mark(const char *name) {
    if (name) (void)nvtxRangePushA(name);
    else (void)nvtxRangePop();
}
