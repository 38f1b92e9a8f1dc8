/* Describing parameters. Private to layers/. */
#pragma once

#include "layers/param.h"

/* Describes a trained parameter of one global tensor of shape[rank] that every rank holds entirely,
 * as one box. Every tensor rank computes the same gradient, every data rank a part of it. A matrix
 * decays. The name is a printf format. Fails with TR_ERR_INTERNAL on a bad shape or a name that is
 * too long. The caller releases it with tr_params_release, also after a failure. */
tr_status tr_param_describe(tr_param *param, int rank, const int64_t *shape, tr_init init,
                            float init_std, const char *name_format, ...)
    __attribute__((format(printf, 6, 7)));

/* Adds another global tensor of the same rank. The parameter then holds all its tensors entirely,
 * concatenated along `axis` of the local tensor; their other dimensions must be equal. */
tr_status tr_param_add(tr_param *param, int axis, const int64_t *shape, const char *name_format,
                       ...) __attribute__((format(printf, 4, 5)));

/* A range of a parameter's tensor number `tensor` along one dimension. */
typedef struct tr_slice {
    tr_range range;
    int tensor;
} tr_slice;

/* Narrows a parameter to n slices along dimension `axis`, concatenated along that dimension of the
 * local tensor: the output rows of [out, in] matrices are axis 0, the output columns of [in, out]
 * ones axis 1. The parameter is then split over the tensor ranks; if some of them hold the same
 * slices, set `copies` afterwards. Fails with TR_ERR_INTERNAL when slices are outside their
 * tensors, or the tensors' other dimensions differ. */
tr_status tr_param_keep(tr_param *param, int axis, const tr_slice *slice, int n);

/* Fails with TR_ERR_INTERNAL when a joined parameter of the list cannot follow the previous one. */
tr_status tr_params_check(const tr_param *params, int count);

void tr_params_release(tr_param *params, int count);
