/* Adafactor's second moments of a matrix (Shazeer & Stern 2018, algorithm 4): two vectors, with a
 * number for each row and each column, instead of a number for each element. Tensor ranks divide at
 * most one axis of the matrix. A rank computes the sums along the other axis alone; the sums along
 * the axis that the ranks divide are added over the tensor ranks. */
#pragma once

#include "device/op.h"
#include "layers/param_layout.h"

typedef struct tr_adafactor {
    int64_t rows, cols;         /* of this rank's part */
    int64_t all_rows, all_cols; /* of the whole matrix */
    int64_t shared;             /* sums that the tensor ranks add: of all rows or columns, or 0 */
    bool shares_rows;           /* those of the rows */
    bool scales;    /* the operators multiply by gradient_factor (tr_optim_only_scales) */
    bool bf16_grad; /* the operators read BF16 gradients */
    tr_dtype dtype;
} tr_adafactor;

/* Fails like tr_param_matrix_make. */
tr_status tr_adafactor_make(const tr_param *param, const tr_param_layout *layout,
                            tr_adafactor *out);

/* Returns the bytes of both moments, each aligned. */
size_t tr_adafactor_moments_bytes(const tr_adafactor *matrix);
/* Describe FACTOR_SUMS and FACTOR of the matrix. */
tr_op_desc tr_adafactor_sums(const tr_adafactor *matrix);
tr_op_desc tr_adafactor_scale(const tr_adafactor *matrix);
