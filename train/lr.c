#include "train/lr.h"

#include "base/minmax.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const shape_name[TR_LR_SHAPES] = {
    [TR_LR_COSINE] = "cosine", [TR_LR_CONSTANT] = "constant",
    [TR_LR_LINEAR] = "linear", [TR_LR_INVERSE_ROOT] = "inverse-root",
    [TR_LR_STEPS] = "steps",   [TR_LR_WSD] = "wsd",
    [TR_LR_CYCLES] = "cycles"};

tr_lr tr_lr_of(const tr_config *c) {
    tr_lr lr = {.highest = c->optim.lr,
                .lowest = c->optim.min_lr,
                .warmup = c->optim.warmup,
                .horizon = tr_config_horizon(c),
                .decay = c->optim.decay,
                .cycle = c->optim.cycle,
                .factor = c->optim.milestone_factor};
    for (int i = 0; i < TR_LR_SHAPES; i++)
        if (!strcmp(c->optim.schedule, shape_name[i])) lr.shape = (tr_lr_shape)i;
    lr.milestones = tr_config_points(c->optim.milestones, lr.milestone);
    lr.restarts = tr_config_points(c->optim.restarts, lr.restart);
    return lr;
}

bool tr_lr_has_horizon(const tr_lr *lr) {
    const bool moves = lr->highest > lr->lowest;
    switch (lr->shape) {
    case TR_LR_CONSTANT:
    case TR_LR_INVERSE_ROOT: return false;
    case TR_LR_STEPS: return moves && lr->milestones == 0;
    case TR_LR_CYCLES: return moves && lr->cycle == 0;
    default: return moves;
    }
}

/* The shapes after the warm-up, at step - warmup = at of `whole` steps up to the horizon. They
 * return the learning rate as `highest` and `lowest` bound it. */

static double cosine(const tr_lr *lr, int64_t at, int64_t whole) {
    if (at >= whole) return lr->lowest;
    double part = (double)at / (double)whole;
    return lr->lowest + 0.5 * (lr->highest - lr->lowest) * (1.0 + cos(M_PI * part));
}

/* Falls on a line during the last `fall` steps. */
static double line(const tr_lr *lr, int64_t at, int64_t whole, int64_t fall) {
    if (at >= whole) return lr->lowest;
    double left = (double)tr_min_i64(whole - at, fall);
    return lr->lowest + (lr->highest - lr->lowest) * (left / (double)fall);
}

static double wsd(const tr_lr *lr, int64_t at, int64_t whole) {
    int64_t fall = lr->decay ? lr->decay : (whole + 9) / 10;
    return line(lr, at, whole, tr_min_i64(fall, whole));
}

static double inverse_root(const tr_lr *lr, int64_t at) {
    const double scale = lr->warmup ? (double)lr->warmup : 10000;
    return fmax(lr->lowest, lr->highest / sqrt(((double)at + scale) / scale));
}

static double steps(const tr_lr *lr, int64_t step, int64_t horizon) {
    const int64_t usual[] = {(horizon + 1) / 2, horizon - horizon / 4};
    const int64_t *milestone = lr->milestones ? lr->milestone : usual;
    const int count = lr->milestones ? lr->milestones : 2;
    double rate = lr->highest;
    for (int i = 0; i < count && milestone[i] <= step; i++) rate *= lr->factor;
    return fmax(lr->lowest, rate);
}

static double cycles(const tr_lr *lr, int64_t at, int64_t whole) {
    const int64_t cycle = lr->cycle ? lr->cycle : whole > 8 ? (whole + 3) / 4 : 2;
    const double height = fabs(2 * (double)(at % cycle) / (double)cycle - 1);
    return lr->lowest + (lr->highest - lr->lowest) * height;
}

double tr_lr_at(const tr_lr *lr, int64_t step) {
    int64_t horizon = lr->horizon, begin = 0;
    for (int i = lr->restarts - 1; i >= 0 && begin == 0; i--) {
        if (lr->restart[i] < step) begin = lr->restart[i];
        else horizon = lr->restart[i];
    }
    step -= begin;
    horizon -= begin;
    if (step < lr->warmup) return lr->highest * (double)step / (double)lr->warmup;
    if (step == lr->warmup) return lr->highest;
    const int64_t at = step - lr->warmup, whole = tr_max_i64(0, horizon - lr->warmup);
    switch (lr->shape) {
    case TR_LR_COSINE: return cosine(lr, at, whole);
    case TR_LR_LINEAR: return line(lr, at, whole, whole);
    case TR_LR_INVERSE_ROOT: return inverse_root(lr, at);
    case TR_LR_STEPS: return steps(lr, step, horizon);
    case TR_LR_WSD: return wsd(lr, at, whole);
    case TR_LR_CYCLES: return cycles(lr, at, whole);
    default: return lr->highest;
    }
}

void tr_lr_note_warmup(const tr_lr *lr, int64_t steps, char *text) {
    /* A run that ends before the horizon is a piece of a longer one. */
    const int64_t last = lr->horizon > steps || tr_lr_has_horizon(lr) ? lr->horizon : steps;
    text[0] = '\0';
    for (int i = 0; i <= lr->restarts && !text[0]; i++) {
        const int64_t begin = i > 0 ? lr->restart[i - 1] : 0;
        const bool again = i < lr->restarts && lr->restart[i] < last;
        const int64_t end = again ? lr->restart[i] : last;
        if (begin >= end || end - begin >= lr->warmup) continue;
        (void)snprintf(text, TR_LR_NOTE,
                       "optim.warmup is %" PRId64 ", but the %s at step %" PRId64
                       ", before the learning rate has reached optim.lr: lower optim.warmup, or "
                       "%s",
                       lr->warmup,
                       again           ? "schedule begins again"
                       : last == steps ? "run ends"
                                       : "schedule ends",
                       end,
                       again           ? "move optim.restarts"
                       : last == steps ? "raise train.steps"
                                       : "raise optim.horizon");
    }
}
