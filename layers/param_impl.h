/* Making parameters: for the layers alone. */
#pragma once

#include "layers/param.h"

/* A run of indices along one dimension. */
typedef struct tr_range {
    int64_t begin, extent;
} tr_range;

/* Part `index` of `parts` of 0..total, as even as it goes: the first total % parts have one more.
 */
tr_range tr_range_part(int64_t total, int parts, int index);

/* A trained parameter of shape[rank] that every tensor rank holds whole: one box, replicated over
 * tp; decays when it is a matrix. The name is a printf format; one that is too long is cut. */
void tr_param_describe(tr_param *param, int rank, const int64_t *shape, tr_init init,
                       float init_std, const char *name_format, ...)
    __attribute__((format(printf, 6, 7)));

/* Narrows a parameter to n <= TR_PARAM_BOXES ranges of dimension `axis`, which lie one behind the
 * other along that dimension of the local tensor: a column split is axis 1 of a matrix, a row split
 * axis 0. The parameter is no longer replicated over tp. */
void tr_param_keep(tr_param *param, int axis, const tr_range *ranges, int n);
