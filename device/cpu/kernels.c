/* The sets of kernels of this build, and the processors that run them. */
#include "device/cpu/kernels.h"

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"

#ifdef TRIREME_WIDE_KERNELS
#include <sys/syscall.h>
#include <unistd.h>

/* Asks the operating system for AMX's registers, for all threads of this process. Returns whether
 * it may use them. */
static bool request_amx(void) {
#if defined __linux__ && defined SYS_arch_prctl
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

const tr_cpu_kernels *tr_cpu_kernels_for(tr_cpu_set set) {
    switch (set) {
    case TR_CPU_BASE: return &tr_cpu_kernels_base;
#ifdef TRIREME_WIDE_KERNELS
    case TR_CPU_WIDE: return tr_onednn_uses(dnnl_cpu_isa_avx512_core) ? &tr_cpu_kernels_wide : NULL;
    case TR_CPU_BF16: return tr_cpu_bf16_native() ? &tr_cpu_kernels_bf16 : NULL;
    case TR_CPU_AMX:
        if (!tr_onednn_uses(dnnl_cpu_isa_avx512_core_amx)) return NULL;
        return request_amx() ? &tr_cpu_kernels_amx : NULL;
#endif
    default: return NULL;
    }
}
