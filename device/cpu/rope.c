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
    float cosine[PAIRS], sine[PAIRS];
} rotation;

static void row_angles(const cpu_rope *rope, const tr_rope_desc *d, const tr_op_args *args,
                       const int32_t *starts, int64_t r, bool back, rotation *out) {
    const int64_t index = tr_token_position(d->decode, d->seq, args->state, r);
    const uint64_t position = (uint64_t)(index - (d->documents ? starts[r] : 0));
    const float magnitude = rope->magnitude, towards = back ? -magnitude : magnitude;
#pragma omp simd
    for (int64_t i = 0; i < d->head_size / 2; i++) {
        tr_rope_rotation(position * rope->turns[i], &out->cosine[i], &out->sine[i]);
        out->cosine[i] *= magnitude;
        out->sine[i] *= towards;
    }
}

/* Rotates the pairs of one head: a is its first half, b its second. */
static void rotate(int64_t half, const rotation *angles, const float *a, const float *b,
                   float *to_a, float *to_b) {
    const float *cosine = angles->cosine, *sine = angles->sine;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float first = a[i], second = b[i]; /* both are read before either is written */
        to_a[i] = first * cosine[i] - second * sine[i];
        to_b[i] = second * cosine[i] + first * sine[i];
    }
}

static tr_status run_rope(tr_op *op, const tr_op_args *args) {
    const cpu_rope *rope = (const cpu_rope *)op;
    const tr_rope_desc *d = &op->desc.rope;
    const int64_t half = d->head_size / 2;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        float in[TR_BLOCK], out[TR_BLOCK];
        row_angles(rope, d, args, args->t[TR_ROPE_STARTS].data, r, d->inverse, &angles);
        for (int64_t h = 0; h < d->heads; h++) {
            const int64_t at = r * d->ld + h * d->head_size;
            const float *x = tr_row_load(d->dtype, args->t[TR_ROPE_X].data, at, d->head_size, in);
            float *y = tr_row_target(d->dtype, args->t[TR_ROPE_X].data, at, out);
            rotate(half, &angles, x, x + half, y, y + half);
            tr_row_store(d->dtype, args->t[TR_ROPE_X].data, at, d->head_size, y);
        }
    }
    return TR_OK;
}

/* --- with the norm of heads ------------------------------------------------------------------- */

/* Head `index` of all, which begins at element `at` of X. */
static void head_forward(const tr_norm_rope_desc *n, const tr_op_args *args, const rotation *angles,
                         int64_t at, int64_t index) {
    const tr_rope_desc *d = &n->rope;
    const int64_t size = d->head_size, half = size / 2;
    const size_t element = tr_dtype_size(d->dtype);
    char *const head = (char *)args->t[TR_NORM_ROPE_X].data + (size_t)at * element;
    float in[TR_BLOCK], in_gamma[TR_BLOCK], normed[TR_BLOCK], out[TR_BLOCK];
    if (!d->decode)
        memcpy((char *)args->t[TR_NORM_ROPE_KEPT].data + (size_t)(index * size) * element, head,
               (size_t)size * element);
    const float *x = tr_row_load(d->dtype, head, 0, size, in);
    const float *gamma = tr_row_load(d->dtype, args->t[TR_NORM_ROPE_GAMMA].data, 0, size, in_gamma);
    const float rstd = 1.0f / sqrtf(tr_vec_dot(x, x, size) / (float)size + (float)n->eps);
    ((float *)args->t[TR_NORM_ROPE_RSTD].data)[index] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) normed[i] = tr_rmsnorm_element(x[i], rstd, gamma[i]);
    float *y = tr_row_target(d->dtype, head, 0, out);
    rotate(half, angles, normed, normed + half, y, y + half);
    tr_row_store(d->dtype, head, 0, size, y);
}

static tr_status run_norm_rope(tr_op *op, const tr_op_args *args) {
    const tr_norm_rope_desc *n = &op->desc.norm_rope;
    const tr_rope_desc *d = &n->rope;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        row_angles((const cpu_rope *)op, d, args, args->t[TR_NORM_ROPE_STARTS].data, r, false,
                   &angles);
        for (int64_t h = 0; h < d->heads; h++)
            head_forward(n, args, &angles, r * d->ld + h * d->head_size, r * d->heads + h);
    }
    return TR_OK;
}

static void head_backward(const tr_rope_desc *d, const tr_tensor *t, const rotation *angles,
                          int64_t at, int64_t index) {
    const int64_t size = d->head_size, half = size / 2;
    const float rstd = ((const float *)t[TR_NORM_ROPE_DGRAD_RSTD].data)[index];
    float in[TR_BLOCK], in_gamma[TR_BLOCK], dnormed[TR_BLOCK], g[TR_BLOCK], normal[TR_BLOCK];
    const float *dy = tr_row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, size, in);
    rotate(half, angles, dy, dy + half, dnormed, dnormed + half);
    const float *x = tr_row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_X].data, index * size, size, in);
    const float *gamma = tr_row_load(d->dtype, t[TR_NORM_ROPE_DGRAD_GAMMA].data, 0, size, in_gamma);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) {
        g[i] = dnormed[i] * gamma[i];
        normal[i] = x[i] * rstd;
    }
    void *kept = t[TR_NORM_ROPE_DGRAD_DNORMED].data;
    float *to = tr_row_target(d->dtype, kept, index * size, in);
    memcpy(to, dnormed, (size_t)size * sizeof *to);
    tr_row_store(d->dtype, kept, index * size, size, to);
    const float mean = tr_vec_dot(g, normal, size) / (float)size;
    float *dx = tr_row_target(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, in);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) dx[i] = tr_rmsnorm_dgrad(g[i], normal[i], rstd, mean);
    tr_row_store(d->dtype, t[TR_NORM_ROPE_DGRAD_DX].data, at, size, dx);
}

static tr_status run_norm_rope_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_rope_desc *d = &op->desc.norm_rope.rope;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(tr_cpu_threads(op, d->rows * d->heads * d->head_size))
    for (int64_t r = 0; r < d->rows; r++) {
        rotation angles;
        row_angles((const cpu_rope *)op, d, args, args->t[TR_NORM_ROPE_DGRAD_STARTS].data, r, true,
                   &angles);
        for (int64_t h = 0; h < d->heads; h++)
            head_backward(d, args->t, &angles, r * d->ld + h * d->head_size, r * d->heads + h);
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
