/* SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "device/cpu/cpu_impl.h"
#include "device/elementwise.h"

static void sum_blocks(const tr_op *op, const void *x, double *blocks) {
    const int64_t count = op->desc.sumsq.count;
    const tr_dtype dtype = op->desc.sumsq.dtype;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t b = 0; b < tr_sumsq_blocks(count); b++) {
        const int64_t from = b * TR_SUMSQ_BLOCK, n = tr_min_i64(TR_SUMSQ_BLOCK, count - from);
        blocks[b] = tr_cpu_kernels_of(op)->sumsq(
            dtype, n, (const char *)x + (size_t)from * tr_dtype_size(dtype));
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

/* Elements that are stepped at a time: enough that a kernel's preparation costs little. */
enum { STEPPED = TR_CPU_DRAWN };

/* A step of a run: the operator, and its first elements. */
typedef struct stepped {
    const tr_op *op;
    const tr_op_args *args;
    const tr_quantize_desc *rounding;
    tr_cpu_update first;
    int states;
} stepped;

/* Sets the key and counters by which the elements from `element` on of a parameter are rounded;
 * returns how many of the n elements that is right for. */
static int64_t draw(const stepped *s, int64_t element, int64_t n, tr_cpu_update *u) {
    const tr_step_state *state = s->args->state;
    const tr_quantize_box *box;
    int64_t adjacent;
    const int64_t place = tr_quantize_place(s->rounding, element, &box, &adjacent);
    u->draws = true;
    u->key = tr_rounding_key(state->seed, box->name, s->rounding->use);
    u->first = (uint64_t)(place / TR_QUANTIZE_SHARERS);
    u->high = tr_rounding_counter(state->step, s->args->sample);
    u->skipped = place % TR_QUANTIZE_SHARERS;
    return tr_min_i64(n, adjacent);
}

/* Steps n elements, of which *u are the first, and element `at` of the run. */
static void step_piece(const stepped *s, const tr_cpu_update *u, int64_t at, int64_t n) {
    const bool rounds = (u->bf16_master && u->step != TR_CPU_DIRECTION) ||
                        (u->state_dtype == TR_BF16 && s->states > 0);
    for (int64_t i = 0, length; i < n; i += length) {
        tr_cpu_update own = tr_cpu_update_from(u, i);
        length = rounds ? draw(s, s->args->element + at + i, n - i, &own) : n - i;
        tr_cpu_kernels_of(s->op)->update(&own, length);
    }
}

_Static_assert(STEPPED % TR_CODE8_BLOCK == 0, "step_codes takes whole blocks");

/* Steps n elements, at most STEPPED, with states in 8 bits, which are whole blocks or end with the
 * run. */
static void step_codes(const stepped *s, const tr_cpu_update *u, int64_t at, int64_t n) {
    tr_cpu_draws memory;
    tr_cpu_update own = *u;
    own.drawn = tr_cpu_draw(s->op, s->args, s->rounding, at, n, &memory);
    tr_cpu_kernels_of(s->op)->update(&own, n);
}

/* Steps all elements. */
static void step(const stepped *s, int64_t count) {
    const bool coded = s->states > 0 && s->first.state_dtype == TR_U8;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(s->op, count))
    for (int64_t at = 0; at < count; at += STEPPED) {
        const tr_cpu_update own = tr_cpu_update_from(&s->first, at);
        const int64_t n = tr_min_i64(STEPPED, count - at);
        if (coded) step_codes(s, &own, at, n);
        else step_piece(s, &own, at, n);
    }
}

/* Does UPDATE, or DIRECTION. */
static tr_status update(const tr_op *op, const tr_op_args *args, tr_cpu_step of) {
    const tr_update_desc *d = &op->desc.update;
    if (args->state->skip) return TR_OK;
    void *master = args->t[TR_UPDATE_MASTER].data, *value = args->t[TR_UPDATE_VALUE].data;
    step(&(stepped){.op = op,
                    .args = args,
                    .rounding = &d->rounding,
                    .first = {.step = of,
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
                              .bf16_master = d->bf16_master,
                              .state_dtype = d->state_dtype,
                              .code = {d->code[0], d->code[1]},
                              .scales = {args->t[TR_UPDATE_M_SCALES].data,
                                         args->t[TR_UPDATE_V_SCALES].data}},
                    .states = tr_update_states(d->rule)},
         d->count);
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
    step(&(stepped){.op = op,
                    .args = args,
                    .rounding = &d->rounding,
                    .first = {.step = TR_CPU_DESCEND,
                              .descent =
                                  tr_descend_round(d, args->state, args->t[TR_DESCEND_NORMS].data),
                              .grad = args->t[TR_DESCEND_U].data,
                              .master = master,
                              .value = value == master ? NULL : value,
                              .dtype = d->dtype,
                              .bf16_master = d->bf16_master}},
         d->count);
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
