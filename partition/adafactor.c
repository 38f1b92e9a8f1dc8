#include "partition/adafactor.h"

#include "base/memory.h"

tr_status tr_adafactor_make(const tr_param *param, const tr_param_layout *layout,
                            tr_adafactor *out) {
    const tr_global *global = &param->tensor[0];
    const bool turned = global->box[0].local_stride[0] == 1 && param->local[1] != 1;
    const int64_t rows = global->shape[turned], cols = global->shape[!turned];
    const bool rows_whole = param->local[0] == rows;
    if (param->tensors > 1 || global->rank != 2 || !(rows_whole || param->local[1] == cols))
        return TR_FAIL(TR_ERR_INTERNAL, "%s is not a matrix that ranks divide along one axis",
                       tr_param_name(param));
    *out = (tr_adafactor){.rows = param->local[0],
                          .cols = param->local[1],
                          .all_rows = rows,
                          .all_cols = cols,
                          .turned = turned,
                          .shared = layout->parts == 1 ? 0
                                    : rows_whole       ? rows
                                                       : cols,
                          .shares_rows = rows_whole,
                          .dtype = tr_dtype_acc(param->dtype)};
    return TR_OK;
}

size_t tr_adafactor_moments_bytes(const tr_adafactor *m) {
    const size_t size = tr_dtype_size(m->dtype);
    return tr_align_up((size_t)m->rows * size) + tr_align_up((size_t)m->cols * size);
}

static tr_op_desc describe(const tr_adafactor *m, tr_op_kind kind) {
    return (tr_op_desc){.kind = kind,
                        .factor = {.rows = m->rows,
                                   .cols = m->cols,
                                   .all_rows = m->all_rows,
                                   .all_cols = m->all_cols,
                                   .scales = m->scales,
                                   .dtype = m->dtype}};
}

tr_op_desc tr_adafactor_sums(const tr_adafactor *matrix) {
    return describe(matrix, TR_OP_FACTOR_SUMS);
}

tr_op_desc tr_adafactor_scale(const tr_adafactor *matrix) {
    return describe(matrix, TR_OP_FACTOR);
}
