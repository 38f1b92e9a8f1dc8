#include "train/guard.h"

#include "train/loss_scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool chose(const tr_config *c, const char *action) {
    return !strcmp(c->guard.action, action);
}

bool tr_guard_prevents(const tr_config *c) {
    return !chose(c, "warn");
}

/* --- running means ---------------------------------------------------------------------------- */

tr_guard_limits tr_guard_next(const tr_config *c, const tr_ckpt_guard *g) {
    if (c->guard.sigma == 0 || g->steps < TR_GUARD_LEAST) return (tr_guard_limits){0};
    return (tr_guard_limits){.loss = g->loss_mean + c->guard.sigma * sqrt(g->loss_variance),
                             .norm = g->norm_mean + c->guard.sigma * sqrt(g->norm_variance)};
}

/* Adds a value to a mean and variance with this weight (West 1979, with weights that fade). */
static void add_value(double value, double weight, double *mean, double *variance) {
    const double distance = value - *mean;
    *mean += weight * distance;
    *variance = (1 - weight) * (*variance + weight * distance * distance);
}

static void add_step(tr_ckpt_guard *g, const tr_step_result *result) {
    g->steps++;
    const double n = g->steps < TR_GUARD_WINDOW ? (double)g->steps : TR_GUARD_WINDOW;
    add_value(result->loss, 1 / n, &g->loss_mean, &g->loss_variance);
    add_value(result->grad_norm, 1 / n, &g->norm_mean, &g->norm_variance);
}

/* --- verdicts --------------------------------------------------------------------------------- */

/* Says which value is above its limit. */
static void say_beyond(const tr_config *c, const tr_guard_limits *limits,
                       const tr_step_result *result, const tr_ckpt_guard *g, char *text) {
    const bool loss = result->loss > limits->loss;
    (void)snprintf(
        text, TR_GUARD_TEXT,
        "the %s %.4g is more than %g standard deviation%s (guard.sigma) above its running "
        "mean %.4g",
        loss ? "loss" : "gradient norm", loss ? result->loss : result->grad_norm, c->guard.sigma,
        c->guard.sigma == 1 ? "" : "s", loss ? g->loss_mean : g->norm_mean);
}

bool tr_guard_goes_back(const tr_config *c, bool saved) {
    return saved && chose(c, "rollback");
}

/* Counts a step that changed no parameter, and returns `verdict`, or that the run ends. Where the
 * run goes back, `skips` are the steps out of line since the newest checkpoint, not those in a
 * row. */
static tr_verdict count(const tr_config *c, bool saved, const tr_ckpt_guard *g, int64_t *counter,
                        tr_verdict verdict) {
    ++*counter;
    const int64_t row = tr_guard_goes_back(c, saved) ? *counter : g->skips + g->overflows;
    return row >= c->guard.skips ? TR_VERDICT_DIVERGED : verdict;
}

static void say_overflow(const tr_step_result *result, char *text) {
    if (isfinite(result->loss))
        (void)snprintf(text, TR_GUARD_TEXT, "gradients overflow FP16 with the loss scale %g",
                       result->loss_scale);
    else
        (void)snprintf(text, TR_GUARD_TEXT, "the loss is %g in FP16, with the loss scale %g",
                       result->loss, result->loss_scale);
}

tr_verdict tr_guard_judge(const tr_config *c, const tr_guard_limits *limits, bool saved,
                          const tr_step_result *result, tr_ckpt_guard *g, char *text) {
    const bool goes_back = tr_guard_goes_back(c, saved);
    text[0] = '\0';
    if (!result->finite && tr_loss_scaled(c)) {
        say_overflow(result, text);
        return count(c, saved, g, &g->overflows, TR_VERDICT_SKIPPED);
    }
    if (!result->finite) {
        (void)snprintf(text, TR_GUARD_TEXT, "the loss is %g and the gradient's norm %g",
                       result->loss, result->grad_norm);
        return chose(c, "skip") ? count(c, saved, g, &g->skips, TR_VERDICT_SKIPPED)
                                : TR_VERDICT_DIVERGED;
    }
    const bool beyond = (limits->loss > 0 && result->loss > limits->loss) ||
                        (limits->norm > 0 && result->grad_norm > limits->norm);
    if (beyond) say_beyond(c, limits, result, g, text);
    if (beyond && tr_guard_prevents(c) && !goes_back)
        return count(c, saved, g, &g->skips, TR_VERDICT_SKIPPED);
    g->overflows = 0;
    if (beyond && goes_back) return count(c, saved, g, &g->skips, TR_VERDICT_ROLLED_BACK);
    add_step(g, result);
    if (!goes_back) g->skips = 0;
    return beyond ? TR_VERDICT_WARNED : TR_VERDICT_TAKEN;
}

void tr_guard_saved(const tr_config *c, tr_ckpt_guard *g) {
    if (chose(c, "rollback")) g->skips = 0;
}
