#include "layers/param_impl.h"

#include "base/philox.h"
#include "comm/mesh.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

tr_range tr_range_part(int64_t total, int parts, int index) {
    int64_t even = total / parts, more = total % parts;
    return (tr_range){.begin = even * index + (index < more ? index : more),
                      .extent = even + (index < more)};
}

void tr_param_describe(tr_param *param, int rank, const int64_t *shape, tr_init init,
                       float init_std, const char *name_format, ...) {
    *param = (tr_param){.rank = rank,
                        .init = init,
                        .init_std = init_std,
                        .decay = rank >= 2,
                        .kind = TR_PARAM_TRAINED};
    va_list arguments;
    va_start(arguments, name_format);
    (void)vsnprintf(param->name, sizeof param->name, name_format, arguments);
    va_end(arguments);
    for (int d = 0; d < TR_PARAM_RANK; d++) param->shape[d] = d < rank ? shape[d] : 1;
    tr_param_keep(param, 0, &(tr_range){.extent = param->shape[0]}, 1);
    param->replicated = TR_AXIS_BIT(TR_AXIS_TP);
}

void tr_param_keep(tr_param *param, int axis, const tr_range *ranges, int n) {
    assert(axis < param->rank && n <= TR_PARAM_BOXES);
    int64_t local[TR_PARAM_RANK], stride[TR_PARAM_RANK], begin = 0;
    for (int d = 0; d < TR_PARAM_RANK; d++) local[d] = param->shape[d];
    local[axis] = 0;
    for (int i = 0; i < n; i++) local[axis] += ranges[i].extent;
    param->count = 1;
    for (int d = TR_PARAM_RANK - 1; d >= 0; d--) {
        stride[d] = param->count;
        param->count *= local[d];
    }
    param->boxes = n;
    for (int i = 0; i < n; i++) {
        tr_box *box = &param->box[i];
        *box = (tr_box){.local_offset = begin * stride[axis]};
        for (int d = 0; d < TR_PARAM_RANK; d++) {
            box->extent[d] = d == axis ? ranges[i].extent : param->shape[d];
            box->local_stride[d] = stride[d];
        }
        box->offset[axis] = ranges[i].begin;
        begin += ranges[i].extent;
    }
    param->replicated &= ~TR_AXIS_BIT(TR_AXIS_TP);
}

static float initial_value(const tr_param *param, uint64_t seed, uint64_t name, int64_t global) {
    switch (param->init) {
    case TR_INIT_ONE: return 1;
    case TR_INIT_NORMAL: return param->init_std * tr_normal(seed, name, (uint64_t)global);
    case TR_INIT_ZERO: break;
    }
    return 0;
}

void tr_param_init(const tr_param *param, uint64_t seed, float *local) {
    uint64_t name = tr_hash_name(param->name);
    const int64_t *shape = param->shape;
    for (int b = 0; b < param->boxes; b++) {
        const tr_box *box = &param->box[b];
        const int64_t *from = box->offset, *extent = box->extent, *stride = box->local_stride;
        for (int64_t i = 0; i < extent[0]; i++) {
            for (int64_t j = 0; j < extent[1]; j++) {
                for (int64_t k = 0; k < extent[2]; k++) {
                    for (int64_t l = 0; l < extent[3]; l++) {
                        int64_t global = from[0] + i;
                        global = global * shape[1] + from[1] + j;
                        global = global * shape[2] + from[2] + k;
                        global = global * shape[3] + from[3] + l;
                        local[box->local_offset + i * stride[0] + j * stride[1] + k * stride[2] +
                              l * stride[3]] = initial_value(param, seed, name, global);
                    }
                }
            }
        }
    }
}
