/* Gated linear units: GLU, GLU_DGRAD. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"

/* Elements processed at a time, few enough that all buffers stay in the first-level cache. */
enum { PIECE = TR_BLOCK / 2 };

static void row_forward(const tr_op *op, const tr_op_args *args, int64_t row) {
    const tr_glu_desc *d = &op->desc.glu;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    _Alignas(TR_LINE) float in[PIECE], in_up[PIECE], active[PIECE], out[PIECE];
    for (int64_t c = 0; c < d->width; c += PIECE) {
        const int64_t n = tr_min_i64(PIECE, d->width - c);
        const int64_t from = 2 * row * d->width + c, to = row * d->width + c;
        const float *gate = kernels->row_load(d->dtype, args->t[TR_GLU_X].data, from, n, in);
        const float *up =
            kernels->row_load(d->dtype, args->t[TR_GLU_X].data, from + d->width, n, in_up);
        float *y = tr_row_target(d->dtype, args->t[TR_GLU_Y].data, to, out);
        kernels->activation[d->activation](n, gate, active);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = active[i] * up[i];
        kernels->row_store(d->dtype, args->t[TR_GLU_Y].data, to, n, y);
    }
}

/* Computes both halves of one row of DX, which may be X. */
static void row_backward(const tr_op *op, const tr_op_args *args, int64_t row) {
    const tr_glu_desc *d = &op->desc.glu;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(op);
    const void *dy_base = args->t[TR_GLU_DGRAD_DY].data, *x_base = args->t[TR_GLU_DGRAD_X].data;
    void *dx_base = args->t[TR_GLU_DGRAD_DX].data;
    _Alignas(TR_LINE) float in[PIECE], in_up[PIECE], in_dy[PIECE], active[PIECE], slope[PIECE],
        out[PIECE];
    for (int64_t c = 0; c < d->width; c += PIECE) {
        const int64_t n = tr_min_i64(PIECE, d->width - c);
        const int64_t gates = 2 * row * d->width + c, ups = gates + d->width;
        const float *gate = kernels->row_load(d->dtype, x_base, gates, n, in);
        const float *up = kernels->row_load(d->dtype, x_base, ups, n, in_up);
        const float *dy = kernels->row_load(d->dtype, dy_base, row * d->width + c, n, in_dy);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) slope[i] = dy[i] * up[i];
        kernels->activation[d->activation](n, gate, active);
        kernels->activation_dgrad[d->activation](n, slope, gate, slope);
        float *dx = tr_row_target(d->dtype, dx_base, ups, out);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * active[i];
        kernels->row_store(d->dtype, dx_base, ups, n, dx);
        dx = tr_row_target(d->dtype, dx_base, gates, out);
        memcpy(dx, slope, (size_t)n * sizeof *dx);
        kernels->row_store(d->dtype, dx_base, gates, n, dx);
    }
}

static tr_status run_glu(tr_op *op, const tr_op_args *args) {
    const tr_glu_desc *d = &op->desc.glu;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) row_forward(op, args, r);
    return TR_OK;
}
static tr_status run_glu_dgrad(tr_op *op, const tr_op_args *args) {
    const tr_glu_desc *d = &op->desc.glu;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d->rows * d->width))
    for (int64_t r = 0; r < d->rows; r++) row_backward(op, args, r);
    return TR_OK;
}

tr_status tr_cpu_prepare_glu(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_glu, out);
}
tr_status tr_cpu_prepare_glu_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_glu_dgrad, out);
}
