#include "layers/rounding.h"

#include "base/philox.h"

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
    if (out->ld == out->cols && out->step == out->cols) { /* one row, which takes no divisions */
        out->cols = out->ld = out->rows * out->cols;
        out->rows = 1;
    }
    return TR_OK;
}

int tr_param_rounding_gradient(const tr_param *param, int rank, int ranks) {
    const int copies = param->copies[TR_AXIS_TP] ? param->copies[TR_AXIS_TP] : ranks;
    const int part = param->partial & TR_AXIS_BIT(TR_AXIS_TP) ? rank % copies : 0;
    return TR_PARAM_ROUNDING_GRADIENT + TR_ROUNDING_USES * (param->use * ranks + part);
}

tr_status tr_param_rounding(const tr_param *param, int use, int64_t count, tr_op_desc *out) {
    *out = (tr_op_desc){.kind = TR_OP_QUANTIZE, .quantize = {.count = count, .use = use}};
    for (int t = 0; t < param->tensors; t++)
        for (int b = 0; b < param->tensor[t].boxes; b++)
            TR_TRY(add_box(param, &param->tensor[t], &param->tensor[t].box[b], &out->quantize));
    return TR_OK;
}
