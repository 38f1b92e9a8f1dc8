/* SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"
#include "device/elementwise.h"

static void sum_blocks(const tr_op *op, const void *x, double *blocks) {
    const int64_t count = op->desc.sumsq.count;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t b = 0; b < tr_sumsq_blocks(count); b++) {
        const int64_t from = b * TR_SUMSQ_BLOCK, n = tr_min_i64(TR_SUMSQ_BLOCK, count - from);
        float wide[TR_SUMSQ_BLOCK];
        blocks[b] =
            tr_cpu_kernels_of(op)->sumsq(n, tr_row_load(op->desc.sumsq.dtype, x, from, n, wide));
    }
}

static tr_status run_sumsq(tr_op *op, const tr_op_args *args) {
    const tr_sumsq_desc *d = &op->desc.sumsq;
    double *sums = d->part == TR_SUMSQ_WHOLE ? args->scratch : args->t[TR_SUMSQ_SUMS].data;
    const int64_t blocks = d->part == TR_SUMSQ_TOTAL ? d->count : tr_sumsq_blocks(d->count);
    if (d->part != TR_SUMSQ_TOTAL) sum_blocks(op, args->t[TR_SUMSQ_X].data, sums);
    if (d->part == TR_SUMSQ_BLOCKS) return TR_OK;
    *(double *)args->t[TR_SUMSQ_OUT].data = tr_sumsq_total(sums, blocks);
    return TR_OK;
}

static tr_status run_step_finish(tr_op *op, const tr_op_args *args) {
    const tr_step_finish_desc *d = &op->desc.step_finish;
    tr_step_finish(args->t[TR_STEP_FINISH_LOSSES].data, d->losses,
                   args->t[TR_STEP_FINISH_NORMS].data, d->norms,
                   args->t[TR_STEP_FINISH_STATE].data);
    return TR_OK;
}

/* Elements at .. end - 1: steps them, or writes their direction to grad. The rule, and what the
 * caller has set in its own copy of the scalars, are constants where this is inlined. */
__attribute__((always_inline)) static inline void update_block(tr_update_scalars s,
                                                               tr_update_rule rule, bool steps,
                                                               int64_t at, int64_t end, float *grad,
                                                               float *master, float *m, float *v) {
    const int states = tr_update_states(rule);
    if (steps) {
#pragma omp simd
        for (int64_t i = at; i < end; i++)
            tr_update_element(&s, rule, grad[i], &master[i], states > 0 ? &m[i] : NULL,
                              states > 1 ? &v[i] : NULL);
    } else {
#pragma omp simd
        for (int64_t i = at; i < end; i++)
            grad[i] = tr_update_direction(&s, rule, grad[i], master[i], states > 0 ? &m[i] : NULL,
                                          states > 1 ? &v[i] : NULL);
    }
}

/* update_block with one rule, and with a loop of its own for gradients that are taken as they
 * are: compilers would compute the terms of clips and penalties and then select. */
__attribute__((always_inline)) static inline void update_rule(tr_update_scalars s,
                                                              tr_update_rule rule, bool steps,
                                                              int64_t at, int64_t end, float *grad,
                                                              float *master, float *m, float *v) {
    if (s.clamps || s.regular) {
        update_block(s, rule, steps, at, end, grad, master, m, v);
        return;
    }
    s.clamps = s.regular = 0;
    update_block(s, rule, steps, at, end, grad, master, m, v);
}

__attribute__((always_inline)) static inline void
update_elements(const tr_update_scalars *s, tr_update_rule rule, bool steps, int64_t at,
                int64_t end, float *grad, float *master, float *m, float *v) {
    switch (rule) {
    case TR_UPDATE_SGD: update_rule(*s, TR_UPDATE_SGD, steps, at, end, grad, master, m, v); break;
    case TR_UPDATE_MOMENTUM:
        update_rule(*s, TR_UPDATE_MOMENTUM, steps, at, end, grad, master, m, v);
        break;
    case TR_UPDATE_ROOT: update_rule(*s, TR_UPDATE_ROOT, steps, at, end, grad, master, m, v); break;
    case TR_UPDATE_LION: update_rule(*s, TR_UPDATE_LION, steps, at, end, grad, master, m, v); break;
    default: update_rule(*s, TR_UPDATE_ADAMW, steps, at, end, grad, master, m, v);
    }
}

/* Copies elements at .. end - 1 of the master to the value, unless that is absent. */
static void store_value(tr_dtype dtype, const float *master, void *value, int64_t at, int64_t end) {
    if (value && dtype == TR_F32)
        memcpy((float *)value + at, master + at, (size_t)(end - at) * sizeof(float));
    else if (value) tr_row_store(dtype, value, at, end - at, master + at);
}

static tr_status run_update(tr_op *op, const tr_op_args *args) {
    const tr_update_desc d = op->desc.update; /* a copy, which no store to MASTER can change */
    if (args->state->skip) return TR_OK;
    const tr_update_scalars scalars = tr_update_round(&d, args->state);
    float *grad = args->t[TR_UPDATE_GRAD].data;
    float *master = args->t[TR_UPDATE_MASTER].data, *m = args->t[TR_UPDATE_M].data,
          *v = args->t[TR_UPDATE_V].data;
    void *value = args->t[TR_UPDATE_VALUE].data == master ? NULL : args->t[TR_UPDATE_VALUE].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.count))
    for (int64_t at = 0; at < d.count; at += TR_BLOCK) {
        int64_t end = tr_min_i64(d.count, at + TR_BLOCK);
        update_elements(&scalars, d.rule, true, at, end, grad, master, m, v);
        store_value(d.dtype, master, value, at, end);
    }
    return TR_OK;
}

static tr_status run_direction(tr_op *op, const tr_op_args *args) {
    const tr_update_desc d = op->desc.update;
    if (args->state->skip) return TR_OK;
    const tr_update_scalars scalars = tr_update_round(&d, args->state);
    float *grad = args->t[TR_UPDATE_GRAD].data, *master = args->t[TR_UPDATE_MASTER].data,
          *m = args->t[TR_UPDATE_M].data, *v = args->t[TR_UPDATE_V].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.count))
    for (int64_t at = 0; at < d.count; at += TR_BLOCK)
        update_elements(&scalars, d.rule, false, at, tr_min_i64(d.count, at + TR_BLOCK), grad,
                        master, m, v);
    return TR_OK;
}

static tr_status run_descend(tr_op *op, const tr_op_args *args) {
    const tr_descend_desc d = op->desc.descend;
    if (args->state->skip) return TR_OK;
    const tr_descend_scalars s = tr_descend_round(&d, args->state, args->t[TR_DESCEND_NORMS].data);
    const float *u = args->t[TR_DESCEND_U].data;
    float *master = args->t[TR_DESCEND_MASTER].data;
    void *value = args->t[TR_DESCEND_VALUE].data == master ? NULL : args->t[TR_DESCEND_VALUE].data;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, d.count))
    for (int64_t at = 0; at < d.count; at += TR_BLOCK) {
        int64_t end = tr_min_i64(d.count, at + TR_BLOCK);
#pragma omp simd
        for (int64_t i = at; i < end; i++) master[i] = tr_descend_element(&s, u[i], master[i]);
        store_value(d.dtype, master, value, at, end);
    }
    return TR_OK;
}

static tr_status run_rescale(tr_op *op, const tr_op_args *args) {
    const tr_rescale_desc d = op->desc.rescale;
    const float factor = (float)tr_rescale_factor(args->t[TR_RESCALE_NORMS].data, d.parts);
    float *x = args->t[TR_RESCALE_X].data;
#pragma omp parallel for simd schedule(static) num_threads(tr_cpu_threads(op, d.count))
    for (int64_t i = 0; i < d.count; i++) x[i] *= factor;
    return TR_OK;
}

tr_status tr_cpu_prepare_sumsq(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_sumsq_desc *d = &desc->sumsq;
    const int64_t blocks = d->part == TR_SUMSQ_WHOLE ? tr_sumsq_blocks(d->count) : 0;
    return tr_host_op_create(context, desc, 0, (size_t)blocks * sizeof(double), run_sumsq, out);
}
tr_status tr_cpu_prepare_step_finish(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_step_finish, out);
}
tr_status tr_cpu_prepare_update(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_update, out);
}
tr_status tr_cpu_prepare_direction(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_direction, out);
}
tr_status tr_cpu_prepare_descend(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_descend, out);
}
tr_status tr_cpu_prepare_rescale(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    return tr_host_op_create(context, desc, 0, 0, run_rescale, out);
}
