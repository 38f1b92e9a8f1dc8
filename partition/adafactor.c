#include "partition/adafactor.h"

#include "base/memory.h"

tr_status tr_adafactor_make(const tr_param *param, const tr_param_layout *layout,
                            tr_adafactor *out) {
    tr_param_matrix m;
    TR_TRY(tr_param_matrix_make(param, &m));
    *out = (tr_adafactor){.rows = param->local[0],
                          .cols = param->local[1],
                          .all_rows = m.rows,
                          .all_cols = m.cols,
                          .shared = layout->parts == 1 ? 0
                                    : m.rows_whole     ? m.rows
                                                       : m.cols,
                          .shares_rows = m.rows_whole,
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
                                   .bf16_grad = m->bf16_grad,
                                   .dtype = m->dtype}};
}

tr_op_desc tr_adafactor_sums(const tr_adafactor *matrix) {
    return describe(matrix, TR_OP_FACTOR_SUMS);
}

tr_op_desc tr_adafactor_scale(const tr_adafactor *matrix) {
    return describe(matrix, TR_OP_FACTOR);
}
