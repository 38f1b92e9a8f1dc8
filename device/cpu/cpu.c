/* The cpu device: its table, opening, and oneDNN's abilities on this processor. */
#include "device/cpu/cpu.h"

#include "device/cpu/cpu_impl.h"

#include <stdio.h>

static void close_cpu(tr_device *device) {
    tr_cpu_device *cpu = (tr_cpu_device *)device;
    if (cpu->stream) dnnl_stream_destroy(cpu->stream);
    if (cpu->engine) dnnl_engine_destroy(cpu->engine);
    tr_host_close(device);
}

static tr_status open_engine(tr_cpu_device *cpu) {
    /* DNNL_MAX_CPU_ISA limits these kernels, too. */
    const unsigned isa = dnnl_get_effective_cpu_isa(), wide = dnnl_cpu_isa_avx512_core,
                   amx = dnnl_cpu_isa_avx512_core_amx;
    cpu->kernels = (isa & amx) == amx && tr_cpu_request_amx() ? &tr_cpu_kernels_amx
                   : tr_cpu_bf16_native()                     ? &tr_cpu_kernels_bf16
                   : (isa & wide) == wide                     ? &tr_cpu_kernels_wide
                                                              : &tr_cpu_kernels_base;
    TR_DNNL(dnnl_engine_create(&cpu->engine, dnnl_cpu, 0));
    TR_DNNL(dnnl_stream_create(&cpu->stream, cpu->engine, dnnl_stream_in_order));
    return TR_OK;
}

static tr_status open_cpu(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal;
    tr_device *device;
    TR_TRY(tr_host_open(&tr_device_ops_cpu, options, sizeof(tr_cpu_device), &device));
    tr_status status = open_engine((tr_cpu_device *)device);
    if (status != TR_OK) {
        close_cpu(device);
        return status;
    }
    *out = device;
    return TR_OK;
}

const char *tr_cpu_isa(void) {
    switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_all: return "all";
    case dnnl_cpu_isa_sse41: return "sse41";
    case dnnl_cpu_isa_avx: return "avx";
    case dnnl_cpu_isa_avx2: return "avx2";
    case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
    case dnnl_cpu_isa_avx512_mic: return "avx512_mic";
    case dnnl_cpu_isa_avx512_mic_4ops: return "avx512_mic_4ops";
    case dnnl_cpu_isa_avx512_core: return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni: return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16: return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx: return "avx512_core_amx";
    default: return "generic";
    }
}

const char *tr_cpu_onednn_version(char *text, size_t size) {
    const dnnl_version_t *v = dnnl_version();
    (void)snprintf(text, size, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

bool tr_cpu_bf16_native(void) {
    const unsigned bf16 = dnnl_cpu_isa_avx512_core_bf16;
    return (dnnl_get_effective_cpu_isa() & bf16) == bf16;
}

const tr_device_ops tr_device_ops_cpu = {
    .kind = "cpu",
    .open = open_cpu,
    TR_HOST_OPS_BUT_CLOSE,
    .close = close_cpu,
    .prepare =
        {
#define TR_CPU_ENTRY(UPPER, lower) [TR_OP_##UPPER] = tr_cpu_prepare_##lower,
            TR_OP_LIST(TR_CPU_ENTRY)
#undef TR_CPU_ENTRY
        },
};
