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

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What determines the values of a parameter, and where they are written. */
typedef struct drawing {
    const tr_param *param;
    uint64_t seed, name;
    float *local;
} drawing;

/* Fills local[to] and the n - 1 places after it with the values of global elements `first` and
 * following. */
static void draw_run(const drawing *d, int64_t first, int64_t n, int64_t to) {
    const float std = d->param->init_std;
    float *out = d->local + to;
    if (d->param->init != TR_INIT_NORMAL) {
        for (int64_t i = 0; i < n; i++) out[i] = d->param->init == TR_INIT_ONE ? 1 : 0;
        return;
    }
    int64_t i = 0;
    if (first % 2) out[i++] = std * tr_normal(d->seed, d->name, (uint64_t)first);
    for (; i + 1 < n; i += 2) { /* both numbers of a pair cost little more than one */
        float pair[2];
        tr_normal_pair(d->seed, d->name, (uint64_t)(first + i) / 2, pair);
        out[i] = std * pair[0];
        out[i + 1] = std * pair[1];
    }
    if (i < n) out[i] = std * tr_normal(d->seed, d->name, (uint64_t)(first + i));
}

/* Elements of the box that are consecutive in the global tensor and in local memory: the last
 * dimensions that the box holds whole, and the one before them. */
static int64_t row_length(const int64_t *shape, const tr_box *box) {
    int d = TR_PARAM_RANK - 1;
    int64_t row = box->extent[d];
    while (d > 0 && box->extent[d] == shape[d]) row *= box->extent[--d];
    return row;
}

/* Fills elements begin .. end - 1 of the box, counted in its row-major order. */
static void draw_part(const drawing *d, const tr_box *box, int64_t begin, int64_t end) {
    const int64_t row = row_length(d->param->shape, box);
    while (begin < end) {
        int64_t n = smaller(row - begin % row, end - begin), left = begin;
        int64_t first = 0, to = box->local_offset, global_stride = 1;
        for (int axis = TR_PARAM_RANK - 1; axis >= 0; axis--) {
            int64_t at = left % box->extent[axis];
            left /= box->extent[axis];
            to += at * box->local_stride[axis];
            first += (box->offset[axis] + at) * global_stride;
            global_stride *= d->param->shape[axis];
        }
        draw_run(d, first, n, to);
        begin += n;
    }
}

void tr_param_init(const tr_param *param, uint64_t seed, int threads, float *local) {
    enum { PART = 1 << 15 }; /* elements: a millisecond of normal numbers */
    const drawing d = {param, seed, tr_hash_name(param->name), local};
    (void)threads; /* a build without OpenMP does not read it */
    for (int b = 0; b < param->boxes; b++) {
        const tr_box *box = &param->box[b];
        const int64_t *extent = box->extent, count = extent[0] * extent[1] * extent[2] * extent[3];
        const int64_t parts = (count + PART - 1) / PART;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (parts > 1)
        for (int64_t p = 0; p < parts; p++)
            draw_part(&d, box, p * PART, smaller((p + 1) * PART, count));
    }
}
