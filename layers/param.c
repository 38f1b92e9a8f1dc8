#include "layers/param_impl.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/philox.h"
#include "layers/orthogonal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tr_range tr_range_part(int64_t total, int parts, int index) {
    int64_t even = total / parts, more = total % parts;
    return (tr_range){.begin = even * index + (index < more ? index : more),
                      .extent = even + (index < more)};
}

/* A box of which some elements are in a range of local memory, with its axes in descending order of
 * their strides. */
typedef struct cutting {
    tr_range range;
    int axis[TR_PARAM_RANK], axes;
    tr_box *cut;
    int cuts;
} cutting;

/* Returns the distance from the box's first element to the end of its last one, along the axes from
 * `depth` on. */
static int64_t span_of(const cutting *c, const tr_box *box, int depth) {
    int64_t span = 1;
    for (int d = depth; d < c->axes; d++)
        span += (box->extent[c->axis[d]] - 1) * box->local_stride[c->axis[d]];
    return span;
}

/* Returns the box with only indices [begin, end) of an axis. */
static tr_box narrowed(const tr_box *box, int axis, int64_t begin, int64_t end) {
    tr_box some = *box;
    some.offset[axis] += begin;
    some.extent[axis] = end - begin;
    some.local_offset += begin * box->local_stride[axis];
    return some;
}

static void cut_box(cutting *c, const tr_box *box, int depth) {
    const int64_t first = box->local_offset - c->range.begin, span = span_of(c, box, depth);
    if (first >= c->range.extent || first + span <= 0) return;
    if (first >= 0 && first + span <= c->range.extent) {
        c->cut[c->cuts] = *box;
        c->cut[c->cuts++].local_offset = first;
        return;
    }
    /* Indices [from, to) of this axis are in the range as a whole; those next to them may be in
     * part. */
    const int axis = c->axis[depth];
    const int64_t stride = box->local_stride[axis], extent = box->extent[axis];
    const int64_t inner = span_of(c, box, depth + 1);
    int64_t from = first >= 0 ? 0 : (-first + stride - 1) / stride;
    int64_t room = c->range.extent - first - inner;
    int64_t to = room < 0 ? 0 : tr_min_i64(room / stride + 1, extent);
    from = tr_min_i64(from, extent);
    if (from > 0) {
        const tr_box before = narrowed(box, axis, from - 1, from);
        cut_box(c, &before, depth + 1);
    }
    if (from < to) {
        const tr_box whole = narrowed(box, axis, from, to);
        cut_box(c, &whole, depth);
    }
    if (to >= from && to < extent) {
        const tr_box after = narrowed(box, axis, to, to + 1);
        cut_box(c, &after, depth + 1);
    }
}

int tr_box_cut(const tr_box *box, int rank, tr_range range, tr_box *cut) {
    cutting c = {.range = range, .cut = cut};
    for (int d = 0; d < rank; d++) {
        int at = c.axes;
        if (box->extent[d] == 1) continue;
        for (; at > 0 && box->local_stride[c.axis[at - 1]] < box->local_stride[d]; at--)
            c.axis[at] = c.axis[at - 1];
        c.axis[at] = d;
        c.axes++;
    }
    cut_box(&c, box, 0);
    return c.cuts;
}

int64_t tr_global_count(const tr_global *tensor) {
    int64_t count = 1;
    for (int d = 0; d < tensor->rank; d++) count *= tensor->shape[d];
    return count;
}

/* --- description ------------------------------------------------------------------------------ */

static tr_status make_tensor(tr_global *tensor, int rank, const int64_t *shape,
                             const char *name_format, va_list arguments) {
    int length = vsnprintf(tensor->name, sizeof tensor->name, name_format, arguments);
    if (length < 1 || length >= TR_NAME_SIZE - TR_NAME_GROUP)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "the name of parameter %s... has %d characters, not 1 to %d", tensor->name,
                       length, TR_NAME_SIZE - TR_NAME_GROUP - 1);
    int64_t count = 1;
    bool good = rank >= 1 && rank <= TR_PARAM_RANK;
    tensor->rank = rank;
    for (int d = 0; good && d < TR_PARAM_RANK; d++) {
        tensor->shape[d] = d < rank ? shape[d] : 1;
        good = tensor->shape[d] >= 1 && !__builtin_mul_overflow(count, tensor->shape[d], &count);
    }
    if (!good || count > INT64_MAX / (int64_t)sizeof(double))
        return TR_FAIL(TR_ERR_INTERNAL, "parameter %s has a bad shape", tensor->name);
    return TR_OK;
}

static tr_status add_tensor(tr_param *param, int rank, const int64_t *shape,
                            const char *name_format, va_list arguments) {
    tr_global *more = realloc(param->tensor, ((size_t)param->tensors + 1) * sizeof *more);
    if (!more)
        return TR_FAIL(
            TR_ERR_FIT,
            "out of host memory for a parameter's description: free memory on this host");
    param->tensor = more;
    more[param->tensors] = (tr_global){.rank = rank};
    return make_tensor(&more[param->tensors++], rank, shape, name_format, arguments);
}

/* Makes the parameter hold all its tensors entirely. */
static tr_status keep_all(tr_param *param, int axis) {
    tr_slice *all;
    TR_TRY(tr_calloc((size_t)param->tensors, sizeof *all, &all));
    for (int k = 0; k < param->tensors; k++)
        all[k] = (tr_slice){.range = {.extent = param->tensor[k].shape[axis]}, .tensor = k};
    tr_status status = tr_param_keep(param, axis, all, param->tensors);
    free(all);
    param->copies[TR_AXIS_TP] = 0;
    return status;
}

tr_status tr_param_describe(tr_param *param, int rank, const int64_t *shape, tr_init init,
                            float init_std, const char *name_format, ...) {
    *param = (tr_param){.init = init,
                        .init_std = init_std,
                        .init_inputs = 1,
                        .decay = rank >= 2,
                        .lr_scale = 1,
                        .has_grad = true,
                        .copies = {[TR_AXIS_PP] = 1},
                        .partial = TR_AXIS_BIT(TR_AXIS_DP)};
    va_list arguments;
    va_start(arguments, name_format);
    tr_status status = add_tensor(param, rank, shape, name_format, arguments);
    va_end(arguments);
    TR_TRY(status);
    return keep_all(param, 0);
}

tr_status tr_param_add(tr_param *param, int axis, const int64_t *shape, const char *name_format,
                       ...) {
    int rank = param->tensor[0].rank;
    if (axis < 0 || axis >= rank)
        return TR_FAIL(TR_ERR_INTERNAL, "parameter %s has no dimension %d", tr_param_name(param),
                       axis);
    va_list arguments;
    va_start(arguments, name_format);
    tr_status status = add_tensor(param, rank, shape, name_format, arguments);
    va_end(arguments);
    TR_TRY(status);
    return keep_all(param, axis);
}

static tr_status check_slices(const tr_param *param, int axis, const tr_slice *slice, int n) {
    const tr_global *first = &param->tensor[0];
    if (axis < 0 || axis >= first->rank)
        return TR_FAIL(TR_ERR_INTERNAL, "parameter %s has no dimension %d", first->name, axis);
    for (int k = 1; k < param->tensors; k++)
        for (int d = 0; d < first->rank; d++)
            if (d != axis && param->tensor[k].shape[d] != first->shape[d])
                return TR_FAIL(TR_ERR_INTERNAL,
                               "%s and %s cannot share local memory along dimension %d: their "
                               "other dimensions differ",
                               first->name, param->tensor[k].name, axis);
    for (int i = 0; i < n; i++) {
        const tr_slice *s = &slice[i];
        bool good = s->tensor >= 0 && s->tensor < param->tensors && s->range.begin >= 0 &&
                    s->range.extent >= 0 &&
                    s->range.extent <= param->tensor[s->tensor].shape[axis] - s->range.begin;
        if (!good)
            return TR_FAIL(TR_ERR_INTERNAL, "slice %d of parameter %s is outside its tensor", i,
                           first->name);
    }
    return TR_OK;
}

/* Allocates a tensor's boxes for those of n slices that are its own, and removes its old ones. */
static tr_status clear_boxes(tr_global *tensor, int number, const tr_slice *slice, int n) {
    size_t boxes = 0;
    for (int i = 0; i < n; i++) boxes += slice[i].tensor == number && slice[i].range.extent > 0;
    free(tensor->box);
    tensor->box = NULL;
    tensor->boxes = 0;
    return tr_calloc(boxes, sizeof *tensor->box, &tensor->box);
}

tr_status tr_param_keep(tr_param *param, int axis, const tr_slice *slice, int n) {
    int64_t *local = param->local, stride[TR_PARAM_RANK], begin = 0;
    TR_TRY(check_slices(param, axis, slice, n));
    for (int k = 0; k < param->tensors; k++) TR_TRY(clear_boxes(&param->tensor[k], k, slice, n));
    memcpy(local, param->tensor[0].shape, sizeof param->local);
    local[axis] = 0;
    for (int i = 0; i < n; i++) local[axis] += slice[i].range.extent;
    param->count = 1;
    for (int d = TR_PARAM_RANK - 1; d >= 0; d--) {
        stride[d] = param->count;
        if (__builtin_mul_overflow(param->count, local[d], &param->count))
            return TR_FAIL(TR_ERR_INTERNAL, "parameter %s overflows a size", tr_param_name(param));
    }
    for (int i = 0; i < n; begin += slice[i++].range.extent) {
        tr_global *tensor = &param->tensor[slice[i].tensor];
        if (slice[i].range.extent == 0) continue;
        tr_box *box = &tensor->box[tensor->boxes++];
        box->local_offset = begin * stride[axis];
        memcpy(box->extent, tensor->shape, sizeof box->extent);
        memcpy(box->local_stride, stride, sizeof stride);
        box->extent[axis] = slice[i].range.extent;
        box->offset[axis] = slice[i].range.begin;
    }
    param->copies[TR_AXIS_TP] = 1;
    return TR_OK;
}

tr_status tr_params_check(const tr_param *params, int count) {
    for (int i = 0; i < count; i++) {
        const tr_param *param = &params[i], *before = param - 1;
        if (!param->joined) continue;
        if (i == 0 || param->use || before->use || param->decay != before->decay)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "parameter %s cannot be joined to the one before it in its layer",
                           tr_param_name(param));
    }
    return TR_OK;
}

bool tr_params_grad_together(tr_param *params, int count) {
    bool any = false;
    for (int i = 0; i < count; i++) any |= !params[i].frozen;
    for (int i = 0; i < count; i++) params[i].has_grad = any;
    return any;
}

void tr_params_release(tr_param *params, int count) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < params[i].tensors; k++) free(params[i].tensor[k].box);
        free(params[i].tensor);
        params[i].tensor = NULL;
        params[i].tensors = 0;
    }
}

tr_tensor tr_param_value(const tr_param *param) {
    return tr_tensor_dense(param->value, param->dtype, param->tensor[0].rank, param->local);
}

tr_tensor tr_param_grad(const tr_param *param) {
    void *grad = param->addend ? param->addend : param->grad;
    return tr_tensor_dense(grad, tr_dtype_acc(param->dtype), param->tensor[0].rank, param->local);
}

/* --- initial values --------------------------------------------------------------------------- */

/* The inputs of drawing a tensor's values, and the destination. */
typedef struct drawing {
    const tr_global *tensor;
    tr_init init; /* a rule of single elements */
    float std;
    uint64_t seed, name;
    float *local;
} drawing;

/* Draws a normal number again until it is within two deviations. */
static float truncated(const drawing *d, uint64_t index) {
    uint64_t name = d->name;
    float x;
    do x = tr_normal(d->seed, name++, index);
    while (x < -2 || x > 2);
    return x;
}

/* Fills local[to .. to + n - 1] with the values of global elements first .. first + n - 1. */
static void draw_run(const drawing *d, int64_t first, int64_t n, int64_t to) {
    const float std = d->std;
    float *out = d->local + to;
    if (d->init == TR_INIT_TRUNCATED) {
        for (int64_t i = 0; i < n; i++) out[i] = std * truncated(d, (uint64_t)(first + i));
        return;
    }
    if (d->init == TR_INIT_UNIFORM) {
        for (int64_t i = 0; i < n; i++)
            out[i] = std * (2 * tr_uniform_number(d->seed, d->name, (uint64_t)(first + i)) - 1);
        return;
    }
    if (d->init != TR_INIT_NORMAL) {
        for (int64_t i = 0; i < n; i++) out[i] = d->init == TR_INIT_ONE ? 1 : 0;
        return;
    }
    int64_t i = 0;
    if (first % 2) out[i++] = std * tr_normal(d->seed, d->name, (uint64_t)first);
    for (; i + 1 < n; i += 2) { /* both numbers of a pair take little more time than one */
        float pair[2];
        tr_normal_pair(d->seed, d->name, (uint64_t)(first + i) / 2, pair);
        out[i] = std * pair[0];
        out[i + 1] = std * pair[1];
    }
    if (i < n) out[i] = std * tr_normal(d->seed, d->name, (uint64_t)(first + i));
}

/* Returns how many elements of the box are consecutive both in the global tensor and in local
 * memory: those of the last dimensions that the box holds entirely, and of the one before them. */
static int64_t row_length(const int64_t *shape, const tr_box *box) {
    int d = TR_PARAM_RANK - 1;
    int64_t row = box->extent[d];
    while (d > 0 && box->extent[d] == shape[d] && box->local_stride[d - 1] == row)
        row *= box->extent[--d];
    return row;
}

/* Fills elements begin .. end - 1 of the box, counted in its row-major order. */
static void draw_part(const drawing *d, const tr_box *box, int64_t begin, int64_t end) {
    const int64_t row = row_length(d->tensor->shape, box);
    while (begin < end) {
        int64_t n = tr_min_i64(row - begin % row, end - begin), left = begin;
        int64_t first = 0, to = box->local_offset, global_stride = 1;
        for (int axis = TR_PARAM_RANK - 1; axis >= 0; axis--) {
            int64_t at = left % box->extent[axis];
            left /= box->extent[axis];
            to += at * box->local_stride[axis];
            first += (box->offset[axis] + at) * global_stride;
            global_stride *= d->tensor->shape[axis];
        }
        draw_run(d, first, n, to);
        begin += n;
    }
}

static void draw_tensor(const drawing *d, int threads) {
    enum { PART = 1 << 15 }; /* elements; drawing them takes about a millisecond */
    (void)threads;           /* unused in a build without OpenMP */
    for (int b = 0; b < d->tensor->boxes; b++) {
        const tr_box *box = &d->tensor->box[b];
        const int64_t *extent = box->extent, count = extent[0] * extent[1] * extent[2] * extent[3];
        const int64_t parts = (count + PART - 1) / PART;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (parts > 1)
        for (int64_t p = 0; p < parts; p++)
            draw_part(d, box, p * PART, tr_min_i64((p + 1) * PART, count));
    }
}

/* Draws the whole matrix, and keeps this rank's boxes of it. */
static tr_status draw_orthogonal(const drawing *d, int threads) {
    const int64_t columns = d->tensor->shape[1];
    float *whole;
    TR_TRY(tr_calloc((size_t)tr_global_count(d->tensor), sizeof *whole, &whole));
    tr_status status =
        tr_orthogonal(d->seed, d->name, d->tensor->shape[0], columns, threads, whole);
    for (int b = 0; b < d->tensor->boxes && status == TR_OK; b++) {
        const tr_box *box = &d->tensor->box[b];
        for (int64_t i = 0; i < box->extent[0]; i++)
            for (int64_t j = 0; j < box->extent[1]; j++)
                d->local[box->local_offset + i * box->local_stride[0] + j * box->local_stride[1]] =
                    d->std * whole[(box->offset[0] + i) * columns + box->offset[1] + j];
    }
    free(whole);
    return status;
}

tr_status tr_param_init(const tr_param *param, uint64_t seed, int threads, float *local) {
    for (int k = 0; k < param->tensors; k++) {
        const tr_global *tensor = &param->tensor[k];
        const double in = (double)tensor->shape[param->init_inputs];
        const double out = (double)tensor->shape[!param->init_inputs];
        drawing d = {.tensor = tensor,
                     .init = param->init,
                     .std = param->init_std,
                     .seed = seed,
                     .name = tr_hash_name(tensor->name),
                     .local = local};
        if (param->init == TR_INIT_XAVIER) {
            d.init = TR_INIT_UNIFORM;
            d.std *= (float)sqrt(6 / (in + out));
        } else if (param->init == TR_INIT_HE) {
            d.init = TR_INIT_NORMAL;
            d.std *= (float)sqrt(2 / in);
        }
        if (tensor->boxes == 0) continue;
        if (param->init == TR_INIT_ORTHOGONAL) TR_TRY(draw_orthogonal(&d, threads));
        else draw_tensor(&d, threads);
    }
    return TR_OK;
}
