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
    for (int set = TR_CPU_SETS - 1; !cpu->kernels; set--)
        cpu->kernels = tr_cpu_kernels_for((tr_cpu_set)set);
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
    static const struct {
        unsigned isa;
        const char *name;
    } richest_first[] = {
        {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
        {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
        {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
        {dnnl_cpu_isa_avx512_core, "avx512_core"},
        {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
        {dnnl_cpu_isa_avx2, "avx2"},
        {dnnl_cpu_isa_avx, "avx"},
        {dnnl_cpu_isa_sse41, "sse41"},
    };
    for (size_t i = 0; i < sizeof richest_first / sizeof *richest_first; i++)
        if (tr_onednn_uses(richest_first[i].isa)) return richest_first[i].name;
    return "generic";
}

const char *tr_cpu_onednn_version(char *text, size_t size) {
    const dnnl_version_t *v = dnnl_version();
    (void)snprintf(text, size, "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

#if defined __x86_64__
bool tr_cpu_is_intel(void) {
    return __builtin_cpu_is("intel");
}

/* Returns true when the BF16 instructions of AVX-512 multiply faster than those of FP32. On Intel's
 * processors with AMX, where it is not used, they are half as fast (bench_op on an Emerald Rapids).
 * Cooper Lake, which has no AMX, is said to multiply BF16 twice as fast as FP32. */
static bool has_fast_avx512_bf16(void) {
    return !tr_cpu_is_intel() || __builtin_cpu_is("cooperlake");
}
#else
bool tr_cpu_is_intel(void) {
    return false;
}

static bool has_fast_avx512_bf16(void) {
    return true;
}
#endif

bool tr_cpu_bf16_native(void) {
    return tr_onednn_uses(dnnl_cpu_isa_avx512_core_amx) ||
           (tr_onednn_uses(dnnl_cpu_isa_avx512_core_bf16) && has_fast_avx512_bf16());
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
