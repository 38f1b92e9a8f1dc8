/* SUMSQ, STEP_FINISH and ADAMW. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static tr_status run_sumsq(tr_op *op, const tr_op_args *args) {
    int64_t count = op->desc.sumsq.count, blocks = (count + TR_SUMSQ_BLOCK - 1) / TR_SUMSQ_BLOCK;
    const float *x = args->t[TR_SUMSQ_X].data;
    double *partial = args->scratch, *out = args->t[TR_SUMSQ_OUT].data, sum = 0;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t b = 0; b < blocks; b++) {
        int64_t from = b * TR_SUMSQ_BLOCK;
        partial[b] = tr_sumsq_block(x + from, tr_min_i64(TR_SUMSQ_BLOCK, count - from));
    }
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    *out = sum;
    return TR_OK;
}

static tr_status run_step_finish(tr_op *op, const tr_op_args *args) {
    const tr_step_finish_desc *d = &op->desc.step_finish;
    tr_step_finish(args->t[TR_STEP_FINISH_LOSSES].data, d->losses,
                   args->t[TR_STEP_FINISH_NORMS].data, d->norms,
                   args->t[TR_STEP_FINISH_STATE].data);
    return TR_OK;
}

static tr_status run_adamw(tr_op *op, const tr_op_args *args) {
    const tr_adamw_desc d = op->desc.adamw; /* a copy, which no store to MASTER can change */
    if (args->state->skip) return TR_OK;
    const tr_adamw_scalars scalars = tr_adamw_round(&d, args->state);
    const float *grad = args->t[TR_ADAMW_GRAD].data;
    float *master = args->t[TR_ADAMW_MASTER].data, *m = args->t[TR_ADAMW_M].data,
          *v = args->t[TR_ADAMW_V].data;
    void *value = args->t[TR_ADAMW_VALUE].data == master ? NULL : args->t[TR_ADAMW_VALUE].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.count))
    for (int64_t at = 0; at < d.count; at += TR_BLOCK) {
        int64_t end = tr_min_i64(d.count, at + TR_BLOCK);
#pragma omp simd
        for (int64_t i = at; i < end; i++)
            tr_adamw_element(&scalars, grad[i], &master[i], &m[i], &v[i]);
        if (value && d.dtype == TR_F32)
            memcpy((float *)value + at, master + at, (size_t)(end - at) * sizeof(float));
        else if (value) tr_row_store(d.dtype, value, at, end - at, master + at);
    }
    return TR_OK;
}

tr_status tr_cpu_prepare_sumsq(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    size_t blocks = ((size_t)desc->sumsq.count + TR_SUMSQ_BLOCK - 1) / TR_SUMSQ_BLOCK;
    return tr_host_op_create(context, desc, 0, blocks * sizeof(double), run_sumsq, out);
}
tr_status tr_cpu_prepare_step_finish(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_step_finish, out);
}
tr_status tr_cpu_prepare_adamw(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_adamw, out);
}
