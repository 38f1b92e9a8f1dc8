#include "partition/quantized.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/philox.h"

int64_t tr_quantized_part(const tr_device *device, int64_t largest) {
    /* Four buffers of 128 KiB stay in a core's second cache; a GPU's kernels need more elements.
     */
    const int64_t part = tr_device_on_host(device) ? 1 << 15 : 1 << 22;
    return tr_min_i64(largest, part);
}

size_t tr_quantized_bytes(const tr_device *device, tr_optim_memory optimizer, int64_t largest) {
    /* Muon's parameters that are no matrices have AdamW's states. */
    const tr_optim_kind kind = optimizer.kind == TR_OPTIM_MUON ? TR_OPTIM_ADAMW : optimizer.kind;
    const int states = optimizer.moments == TR_F32 ? 0 : tr_optim_states(kind);
    return (size_t)(states + optimizer.no_master) *
           tr_align_up((size_t)tr_quantized_part(device, largest) * sizeof(float));
}

static tr_status add_box(const tr_param *param, const tr_global *global, const tr_box *box,
                         tr_quantize_desc *d) {
    const bool matrix = global->rank == 2;
    /* Rows and columns as they are in memory: adjacent elements are of one row. */
    const int inner = matrix && (box->local_stride[1] == 1 || box->extent[0] == 1) ? 1 : 0;
    const int outer = 1 - inner;
    if (global->rank > 2 || d->boxes == TR_QUANTIZE_BOXES)
        return TR_FAIL(TR_ERR_INTERNAL, "%s is not one to %d boxes of matrices",
                       tr_param_name(param), TR_QUANTIZE_BOXES);
    tr_quantize_box *out = &d->box[d->boxes++];
    *out = (tr_quantize_box){.name = tr_hash_name(global->name),
                             .begin = box->local_offset,
                             .rows = matrix ? box->extent[outer] : 1,
                             .cols = box->extent[inner],
                             .ld = box->extent[inner],
                             .first = box->offset[inner]};
    if (!matrix) return TR_OK;
    out->step = global->shape[inner];
    out->first += box->offset[outer] * out->step;
    if (out->rows > 1) out->ld = box->local_stride[outer];
    return TR_OK;
}

tr_status tr_quantized_round(const tr_param *param, tr_dtype to, int kind, int64_t count,
                             tr_op_desc *out) {
    *out = (tr_op_desc){.kind = TR_OP_QUANTIZE,
                        .quantize = {.count = count, .to = to, .squares = kind == 1, .use = kind}};
    for (int t = 0; t < param->tensors; t++)
        for (int b = 0; b < param->tensor[t].boxes; b++)
            TR_TRY(add_box(param, &param->tensor[t], &param->tensor[t].box[b], &out->quantize));
    return TR_OK;
}

tr_op_desc tr_quantized_widen(tr_dtype from, int kind, int64_t count) {
    if (from == TR_U8)
        return (tr_op_desc){.kind = TR_OP_DEQUANTIZE,
                            .quantize = {.count = count, .to = from, .squares = kind == 1}};
    return (tr_op_desc){.kind = TR_OP_CAST,
                        .rows = {.rows = 1, .width = count, .dtype = from, .to = TR_F32}};
}
