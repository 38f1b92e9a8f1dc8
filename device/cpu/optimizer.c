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

/* Elements that are stepped at a time: so many that a kernel's preparation costs little. */
enum { STEPPED = 4096 };

/* Sets the keys and counters by which the elements from `element` on of a parameter are rounded;
 * returns how many of the n elements that is right for. */
static int64_t draw(const tr_op_args *args, const tr_quantize_desc *d, int64_t element, int64_t n,
                    tr_cpu_update *u) {
    const tr_quantize_box *box;
    int64_t adjacent;
    const int64_t sharers = tr_quantize_sharers(TR_BF16);
    const int64_t place = tr_quantize_place(d, element, &box, &adjacent);
    const int states = (u->m != NULL) + (u->v != NULL);
    u->rounded = 0;
    for (int k = 0; k < states && u->bf16_states; k++)
        u->key[u->rounded++] = tr_rounding_key(args->state->seed, box->name, d->use + k);
    if (u->bf16_master && u->step != TR_CPU_DIRECTION)
        u->key[u->rounded++] =
            tr_rounding_key(args->state->seed, box->name, d->use + TR_UPDATE_USE_MASTER);
    u->first = (uint64_t)(place / sharers);
    u->high = tr_rounding_counter(args->state->step, args->sample);
    u->skipped = place % sharers;
    return tr_min_i64(n, adjacent);
}

/* Steps all elements. u: the first ones. */
static void step(const tr_op *op, const tr_op_args *args, const tr_cpu_update *u,
                 const tr_quantize_desc *rounding, int64_t count) {
    const bool rounds = u->bf16_master || (u->bf16_states && u->m);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t at = 0; at < count; at += STEPPED) {
        const int64_t end = tr_min_i64(count, at + STEPPED);
        for (int64_t i = at, length; i < end; i += length) {
            tr_cpu_update own = tr_cpu_update_from(u, i);
            length = rounds ? draw(args, rounding, args->element + i, end - i, &own) : end - i;
            tr_cpu_kernels_of(op)->update(&own, length);
        }
    }
}

/* Does UPDATE, or DIRECTION. */
static tr_status update(const tr_op *op, const tr_op_args *args, tr_cpu_step of) {
    const tr_update_desc *d = &op->desc.update;
    if (args->state->skip) return TR_OK;
    void *master = args->t[TR_UPDATE_MASTER].data, *value = args->t[TR_UPDATE_VALUE].data;
    step(op, args,
         &(tr_cpu_update){.step = of,
                          .rule = d->rule,
                          .scalars = tr_update_round(d, args->state),
                          .grad = args->t[TR_UPDATE_GRAD].data,
                          .master = master,
                          .m = args->t[TR_UPDATE_M].data,
                          .v = args->t[TR_UPDATE_V].data,
                          .value = value == master ? NULL : value,
                          .u = args->t[TR_UPDATE_U].data,
                          .dtype = d->dtype,
                          .bf16_grad = d->bf16_grad,
                          .bf16_states = d->bf16_states,
                          .bf16_master = d->bf16_master},
         &d->rounding, d->count);
    return TR_OK;
}

static tr_status run_update(tr_op *op, const tr_op_args *args) {
    return update(op, args, TR_CPU_UPDATE);
}

static tr_status run_direction(tr_op *op, const tr_op_args *args) {
    return update(op, args, TR_CPU_DIRECTION);
}

static tr_status run_descend(tr_op *op, const tr_op_args *args) {
    const tr_descend_desc *d = &op->desc.descend;
    if (args->state->skip) return TR_OK;
    void *master = args->t[TR_DESCEND_MASTER].data, *value = args->t[TR_DESCEND_VALUE].data;
    step(op, args,
         &(tr_cpu_update){.step = TR_CPU_DESCEND,
                          .descent =
                              tr_descend_round(d, args->state, args->t[TR_DESCEND_NORMS].data),
                          .grad = args->t[TR_DESCEND_U].data,
                          .master = master,
                          .value = value == master ? NULL : value,
                          .dtype = d->dtype,
                          .bf16_master = d->bf16_master},
         &d->rounding, d->count);
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
