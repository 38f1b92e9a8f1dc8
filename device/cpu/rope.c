/* Rotary positions: ROPE; and with the norm of heads before it: NORM_ROPE, _DGRAD. A row's cosines
 * and sines are computed once for all of its heads. */
#include "device/rope.h"
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

/* Pairs of the largest head. */
enum { PAIRS = TR_BLOCK / 2 };

typedef struct cpu_rope {
    tr_host_op base;
    float magnitude;
    uint64_t turns[]; /* [head_size / 2] */
} cpu_rope;

/* What turns the pairs of a row. */
typedef struct rotation {
    _Alignas(TR_LINE) float cosine[PAIRS], sine[PAIRS];
} rotation;

static void row_angles(const tr_op *op, const tr_rope_desc *d, const tr_op_args *args,
                       const int32_t *starts, int64_t r, bool back, rotation *out) {
    const cpu_rope *rope = (const cpu_rope *)op;
    const int64_t index = tr_token_position(d->decode, d->seq, args->state, r);
    const uint64_t position = (uint64_t)(index - (d->documents ? starts[r] : 0));
    tr_cpu_kernels_of(op)->angles(d->head_size / 2, position, rope->turns, rope->magnitude,
                                  back ? -rope->magnitude : rope->magnitude, out->cosine,
                                  out->sine);
}

static tr_status run_rope(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.rope;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    void *data = args->t[TR_ROPE_X].data;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        _Alignas(TR_LINE) float in[TR_BLOCK], out[TR_BLOCK];
        row_angles(op, d, args, args->t[TR_ROPE_STARTS].data, r, d->inverse, &angles);
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = r * d->ld + h * d->head_size;
            const float *x = kernels->row_load(d->dtype, data, at, d->head_size, in);
            float *y = tr_row_target(d->dtype, data, at, out);
            kernels->rotate(d->head_size / 2, angles.cosine, angles.sine, x, y);
            kernels->row_store(d->dtype, data, at, d->head_size, y);
        }
    }
    return TR_OK;
}

/* --- with the norm of heads ------------------------------------------------------------------- */

/* Head `index` of all, which begins at element `at` of X. */
static void head_forward(const tr_op *op, const tr_op_args *args, const rotation *angles,
                         int64_t at, int64_t index) {
    const tr_norm_rope_desc *n = &op->desc.norm_rope;
    const tr_rope_desc *d = &n->rope;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const int64_t size = d->head_size;
    const size_t element = tr_dtype_size(d->dtype);
    char *const head = (char *)args->t[TR_NORM_ROPE_X].data + (size_t)at * element;
    _Alignas(TR_LINE) float in[TR_BLOCK], in_gamma[TR_BLOCK], normed[TR_BLOCK], out[TR_BLOCK];
    if (!d->decode)
        memcpy((char *)args->t[TR_NORM_ROPE_KEPT].data + (size_t)(index * size) * element, head,
               (size_t)size * element);
    const float *x = kernels->row_load(d->dtype, head, 0, size, in);
    const float *gamma =
        kernels->row_load(d->dtype, args->t[TR_NORM_ROPE_GAMMA].data, 0, size, in_gamma);
    const float rstd = 1.0f / sqrtf(tr_vec_dot(x, x, size) / (float)size + (float)n->eps);
    ((float *)args->t[TR_NORM_ROPE_RSTD].data)[index] = rstd;
    kernels->norm(size, 0, rstd, x, gamma, NULL, normed);
    float *y = tr_row_target(d->dtype, head, 0, out);
    kernels->rotate(size / 2, angles->cosine, angles->sine, normed, y);
    kernels->row_store(d->dtype, head, 0, size, y);
}

static tr_status run_norm_rope(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.norm_rope.rope;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        row_angles(op, d, args, args->t[TR_NORM_ROPE_STARTS].data, r, false, &angles);
        for (int64_t h = 0; h < d->heads; h++)
            head_forward(op, args, &angles, r * d->ld + h * d->head_size, r * d->heads + h);
    }
    return TR_OK;
}

static void head_backward(const tr_op *op, const tr_tensor *t, const rotation *angles, int64_t at,
                          int64_t index) {
    const tr_rope_desc *d = &op->desc.norm_rope.rope;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const int64_t size = d->head_size;
    const float rstd = ((const float *)t[TR_NORM_ROPE_DGRAD_RSTD].data)[index];
    _Alignas(TR_LINE) float in[TR_BLOCK], in_gamma[TR_BLOCK], dnormed[TR_BLOCK], g[TR_BLOCK],
        normal[TR_BLOCK];
    const float *dy = kernels->row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, size, in);
    kernels->rotate(size / 2, angles->cosine, angles->sine, dy, dnormed);
    const float *x =
        kernels->row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_X].data, index * size, size, in);
    const float *gamma =
        kernels->row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_GAMMA].data, 0, size, in_gamma);
    kernels->norm_terms(size, 0, rstd, dnormed, x, gamma, g, normal);
    void *kept = t[TR_NORM_ROPE_DGRAD_DNORMED].data;
    float *to = tr_row_target(d->dtype, kept, index * size, in);
    memcpy(to, dnormed, (size_t)size * sizeof *to);
    kernels->row_store(d->dtype, kept, index * size, size, to);
    const float mean = tr_vec_dot(g, normal, size) / (float)size;
    float *dx = tr_row_target(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, in);
    kernels->norm_dgrad(size, rstd, 0, mean, g, normal, NULL, dx);
    kernels->row_store(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, size, dx);
}

static tr_status run_norm_rope_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.norm_rope.rope;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        row_angles(op, d, args, args->t[TR_NORM_ROPE_DGRAD_STARTS].data, r, true, &angles);
        for (int64_t h = 0; h < d->heads; h++)
            head_backward(op, args->t, &angles, r * d->ld + h * d->head_size, r * d->heads + h);
    }
    return TR_OK;
}

/* --- plans ------------------------------------------------------------------------------------ */

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc,
                         const tr_rope_desc *d, tr_host_compute_fn run, tr_op **out) {
    if (d->head_size > TR_BLOCK)
        return TR_FAIL(TR_ERR_DEVICE,
                       "the cpu device turns heads of up to %d by position, not of %lld: lower "
                       "model.head_size",
                       (int)TR_BLOCK, (long long)d->head_size);
    size_t bytes = sizeof(cpu_rope) + (size_t)(d->head_size / 2) * sizeof(uint64_t);
    TR_TRY(tr_host_op_create(context, desc, bytes, 0, run, out));
    cpu_rope *rope = (cpu_rope *)*out;
    rope->magnitude = (float)tr_rope_magnitude(d);
    tr_rope_turns(d, rope->turns);
    return TR_OK;
}

tr_status tr_cpu_prepare_rope(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return prepare(context, desc, &desc->rope, run_rope, out);
}
tr_status tr_cpu_prepare_norm_rope(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return prepare(context, desc, &desc->norm_rope.rope, run_norm_rope, out);
}
tr_status tr_cpu_prepare_norm_rope_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                         tr_op **out) {
    return prepare(context, desc, &desc->norm_rope.rope, run_norm_rope_dgrad, out);
}
