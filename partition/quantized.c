#include "partition/quantized.h"

#include "base/memory.h"
#include "base/minmax.h"

int64_t tr_quantized_part(bool on_host, int64_t largest) {
    /* Buffers of 128 KiB stay in a core's second cache; a GPU's kernels need more elements. */
    const int64_t part = on_host ? 1 << 15 : 1 << 22;
    return tr_min_i64(largest, part);
}

size_t tr_quantized_bytes(bool on_host, tr_optim_memory optimizer, int64_t largest) {
    /* Muon's parameters that are no matrices have AdamW's states. */
    const tr_optim_kind kind = optimizer.kind == TR_OPTIM_MUON ? TR_OPTIM_ADAMW : optimizer.kind;
    const int states = optimizer.moments == TR_U8 ? tr_optim_states(kind) : 0;
    return (size_t)states *
           tr_align_up((size_t)tr_quantized_part(on_host, largest) * sizeof(float));
}

tr_op_desc tr_quantized_widen(tr_dtype from, tr_code8 code, int64_t count) {
    if (from == TR_U8)
        return (tr_op_desc){.kind = TR_OP_DEQUANTIZE,
                            .quantize = {.count = count, .to = from, .code = code}};
    return (tr_op_desc){.kind = TR_OP_CAST,
                        .rows = {.rows = 1, .width = count, .dtype = from, .to = TR_F32}};
}
