/* SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "base/minmax.h"
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

/* Returns the sum of squares of a block of SUMSQ, n <= TR_SUMSQ_BLOCK. */
static double squares(const tr_op_args *args, int operand, int64_t from, int64_t n) {
    double lane[TR_SUMSQ_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        const double x = tr_ref_get(args, operand, from + i);
        lane[i % TR_SUMSQ_LANES] += x * x;
    }
    return tr_sumsq_lanes(lane, n);
}

tr_status tr_ref_sumsq(tr_op *op, const tr_op_args *args) {
    const tr_sumsq_desc *d = &op->desc.sumsq;
    double *sums = args->t[TR_SUMSQ_SUMS].data, lane[TR_SUMSQ_LANES] = {0};
    const int64_t blocks = d->part == TR_SUMSQ_TOTAL ? d->count : tr_sumsq_blocks(d->count);
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = b * TR_SUMSQ_BLOCK;
        const double block =
            d->part == TR_SUMSQ_TOTAL
                ? sums[b]
                : squares(args, TR_SUMSQ_X, from, tr_min_i64(TR_SUMSQ_BLOCK, d->count - from));
        if (d->part == TR_SUMSQ_BLOCKS) sums[b] = block;
        lane[b % TR_SUMSQ_LANES] += block;
    }
    if (d->part != TR_SUMSQ_BLOCKS)
        *(double *)args->t[TR_SUMSQ_OUT].data = tr_sumsq_lanes(lane, blocks);
    return TR_OK;
}

tr_status tr_ref_step_finish(tr_op *op, const tr_op_args *args) {
    const tr_step_finish_desc *d = &op->desc.step_finish;
    tr_step_finish(args->t[TR_STEP_FINISH_LOSSES].data, d->losses,
                   args->t[TR_STEP_FINISH_NORMS].data, d->norms,
                   args->t[TR_STEP_FINISH_STATE].data);
    return TR_OK;
}

/* Returns x, rounded as the device's scalars of this description are. */
static double scalar(const tr_update_desc *d, double x) {
    return tr_ref_scalar(d->dtype, x);
}

/* The states of a block of TR_CODE8_BLOCK elements. */
typedef struct states {
    double x[TR_UPDATE_STATES][TR_CODE8_BLOCK];
} states;

static void load_states(const tr_update_desc *d, const tr_op_args *args, int64_t from, int64_t n,
                        states *s) {
    for (int k = 0; k < tr_update_states(d->rule); k++) {
        const tr_tensor *t = &args->t[TR_UPDATE_M + k];
        const float *scales = args->t[TR_UPDATE_M_SCALES + k].data;
        for (int64_t i = 0; i < n; i++)
            s->x[k][i] = d->state_dtype == TR_U8
                             ? (double)tr_code8_decode(((const uint8_t *)t->data)[from + i],
                                                       scales[from / TR_CODE8_BLOCK], d->code[k])
                             : tr_ref_get(args, TR_UPDATE_M + k, from + i);
    }
}

/* Stores x, an element of M, V or MASTER. */
static void keep(const tr_quantize_desc *rounding, int use, const tr_op_args *args, int operand,
                 int64_t i, double x) {
    if (args->t[operand].dtype == TR_BF16)
        ((uint16_t *)args->t[operand].data)[i] =
            tr_ref_round_drawn(rounding, use, args, i, (float)x);
    else tr_ref_set(args, operand, i, x);
}

static void store_states(const tr_update_desc *d, const tr_op_args *args, int64_t from, int64_t n,
                         const states *s) {
    for (int k = 0; k < tr_update_states(d->rule); k++) {
        const int use = d->rounding.use + k;
        uint8_t *codes = args->t[TR_UPDATE_M + k].data;
        float *scales = args->t[TR_UPDATE_M_SCALES + k].data;
        if (d->state_dtype == TR_U8) {
            tr_ref_encode(&d->rounding, use, d->code[k], args, from, n, s->x[k], codes + from,
                          scales + from / TR_CODE8_BLOCK);
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            keep(&d->rounding, use, args, TR_UPDATE_M + k, from + i, s->x[k][i]);
    }
}

/* Returns the step's direction for the gradient g, and updates the states m and v. */
static double direction(const tr_update_desc *d, const tr_step_state *state, double g, double *m,
                        double *v) {
    const double beta1 = scalar(d, d->beta1), beta2 = scalar(d, d->beta2);
    if (d->rule == TR_UPDATE_SGD) return g;
    if (d->rule == TR_UPDATE_MOMENTUM) {
        const double momentum = scalar(d, d->momentum), next = momentum * *m + g;
        *m = scalar(d, next);
        return d->nesterov ? g + momentum * next : next;
    }
    const double mixed = beta1 * *m + (1 - beta1) * g;
    if (d->rule == TR_UPDATE_LION) {
        *m = scalar(d, beta2 * *m + (1 - beta2) * g);
        return (mixed > 0) - (mixed < 0);
    }
    if (d->rule == TR_UPDATE_ROOT) {
        const double b = scalar(d, state->square_weight);
        *m = scalar(d, (1 - b) * *m + b * (g * g + 1e-30));
        return g / sqrt(*m);
    }
    const double square = beta2 * *v + (1 - beta2) * g * g;
    *m = scalar(d, mixed);
    *v = scalar(d, square);
    return mixed / scalar(d, state->bias_correction1) /
           (sqrt(square / scalar(d, state->bias_correction2)) + scalar(d, d->eps));
}

/* Stores an element of the master and of its copy in the model's dtype. */
static void store(tr_dtype dtype, const tr_quantize_desc *rounding, const tr_op_args *args,
                  int master, int value, int64_t i, double x) {
    const int use = rounding->use + TR_UPDATE_USE_MASTER;
    const double kept = tr_ref_scalar(dtype, x);
    keep(rounding, use, args, master, i, kept);
    /* The copy is the rounded stored master, as everywhere that it is computed. */
    if (args->t[value].data) tr_ref_set(args, value, i, kept);
}

/* Does UPDATE, or DIRECTION, on n elements, at most a block. */
static void step_block(const tr_update_desc *d, const tr_op_args *args, bool steps, int64_t from,
                       int64_t n) {
    const tr_step_state *state = args->state;
    const double lr = scalar(d, scalar(d, state->lr) * scalar(d, d->lr_scale));
    const double decay = scalar(d, d->weight_decay), bound = scalar(d, d->clip_value);
    const double l1 = scalar(d, d->l1), l2 = scalar(d, d->l2);
    const double factor = scalar(d, state->gradient_factor);
    states s = {0};
    load_states(d, args, from, n, &s);
    for (int64_t i = from; i < from + n; i++) {
        double g = tr_ref_get(args, TR_UPDATE_GRAD, i) * factor;
        const double master = tr_ref_get(args, TR_UPDATE_MASTER, i);
        if (bound > 0 && fabs(g) > bound) g = copysign(bound, g);
        if (l1 > 0 || l2 > 0) g += l1 * ((master > 0) - (master < 0)) + l2 * master;
        const double u =
            direction(d, state, g, &s.x[0][i - from], &s.x[1][i - from]) + decay * master;
        if (steps)
            store(d->dtype, &d->rounding, args, TR_UPDATE_MASTER, TR_UPDATE_VALUE, i,
                  master - lr * u);
        else tr_ref_set(args, TR_UPDATE_U, i, u);
    }
    store_states(d, args, from, n, &s);
}

static tr_status update(const tr_update_desc *d, const tr_op_args *args, bool steps) {
    if (args->state->skip) return TR_OK;
    for (int64_t from = 0; from < d->count; from += TR_CODE8_BLOCK)
        step_block(d, args, steps, from, tr_min_i64(TR_CODE8_BLOCK, d->count - from));
    return TR_OK;
}

tr_status tr_ref_update(tr_op *op, const tr_op_args *args) {
    return update(&op->desc.update, args, true);
}

tr_status tr_ref_direction(tr_op *op, const tr_op_args *args) {
    return update(&op->desc.update, args, false);
}

tr_status tr_ref_descend(tr_op *op, const tr_op_args *args) {
    const tr_descend_desc *d = &op->desc.descend;
    const tr_step_state *state = args->state;
    if (state->skip) return TR_OK;
    const double lr = tr_ref_scalar(d->dtype, tr_ref_scalar(d->dtype, state->lr) *
                                                  tr_ref_scalar(d->dtype, d->lr_scale));
    const double ratio = tr_descend_ratio(args->t[TR_DESCEND_NORMS].data, d->parts, d->whole);
    const double factor = tr_ref_scalar(d->dtype, d->factor * ratio);
    const double decay = tr_ref_scalar(d->dtype, d->weight_decay);
    for (int64_t i = 0; i < d->count; i++) {
        const double master = tr_ref_get(args, TR_DESCEND_MASTER, i);
        const double u = factor * tr_ref_get(args, TR_DESCEND_U, i) + decay * master;
        store(d->dtype, &d->rounding, args, TR_DESCEND_MASTER, TR_DESCEND_VALUE, i,
              master - lr * u);
    }
    return TR_OK;
}

tr_status tr_ref_rescale(tr_op *op, const tr_op_args *args) {
    const tr_rescale_desc *d = &op->desc.rescale;
    const double factor =
        tr_ref_scalar(d->dtype, tr_rescale_factor(args->t[TR_RESCALE_NORMS].data, d->parts));
    for (int64_t i = 0; i < d->count; i++)
        tr_ref_set(args, TR_RESCALE_X, i, tr_ref_get(args, TR_RESCALE_X, i) * factor);
    return TR_OK;
}
