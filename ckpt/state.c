/* Checks the ranges of the logical state: another program may have made a checkpoint with a correct
 * checksum. */
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <math.h>

/* Far above any run's numbers, and far below overflow. */
#define MOST_STEPS    (INT64_C(1) << 40)
#define MOST_SAMPLES  (INT64_C(1) << 40) /* of one step */
#define MOST_TOKENS   16777216.0         /* of one sample */
#define MOST_VARIANCE 1e200
#define MOST_SCALE    0x1p40
#define MOST_BYTES    (INT64_C(1) << 60)
#define MOST_WEIGHT   INT64_C(1000000000000) /* millionths */

static bool between(int64_t value, int64_t low, int64_t high) {
    return value >= low && value <= high;
}

/* Checks that a step takes 1 to MOST_SAMPLES samples. Compares a quotient, because the product may
 * overflow. */
static bool samples_good(const tr_ckpt_state *s) {
    if (s->step == 0) return s->next_sample == 0;
    return s->next_sample >= s->step && (s->next_sample - 1) / s->step < MOST_SAMPLES;
}

/* Checks that each step that was not skipped has a label that counts; a sample may have none. */
static bool tokens_good(const tr_ckpt_state *s) {
    return isfinite(s->tokens_seen) && s->tokens_seen >= (double)s->optimizer_step &&
           s->tokens_seen <= (double)s->next_sample * MOST_TOKENS;
}

static bool data_recorded(const tr_ckpt_state *s) {
    return s->data_bytes || s->data_hash || s->data_format || s->validation != 0 ||
           s->split_bytes || s->epoch || s->epoch_sample || s->epoch_bytes || s->corpora;
}

/* Returns true when a corpus of a mixture can be in this state. */
static bool corpus_good(const tr_ckpt_state *s, const tr_ckpt_corpus *p) {
    return between(p->weight, 1, MOST_WEIGHT) && between(p->taken, 0, s->since) &&
           between(p->bytes, 1, MOST_BYTES) && between(p->epoch_bytes, 1, p->bytes) &&
           between(p->split, 1, p->epoch_bytes) && between(p->epoch_sample, 0, s->next_sample) &&
           between(p->epoch, 0, p->epoch_sample);
}

static bool mixture_good(const tr_ckpt_state *s) {
    int64_t taken = 0;
    if (s->corpora == 0) return s->since == 0;
    if (!between(s->corpora, 2, TR_CKPT_CORPORA) || !between(s->since, 0, s->next_sample))
        return false;
    for (int64_t p = 0; p < s->corpora; p++) {
        if (!corpus_good(s, &s->corpus[p])) return false;
        taken += s->corpus[p].taken;
    }
    return taken <= s->since; /* fewer where a corpus was taken out */
}

/* Returns the name of the first field that is out of range, or NULL. */
static const char *data_fault(const tr_ckpt_state *s) {
    if (!data_recorded(s)) return NULL;
    if (!between(s->data_bytes, 1, MOST_BYTES)) return "data_bytes";
    if (!(s->validation >= 0 && s->validation < 1)) return "validation";
    if (!between(s->epoch_bytes, 1, s->data_bytes)) return "epoch_bytes";
    if (!between(s->split_bytes, 1, s->epoch_bytes)) return "split_bytes";
    if (!between(s->epoch_sample, 0, s->next_sample)) return "epoch_sample";
    if (!between(s->epoch, 0, s->epoch_sample))
        return "epoch"; /* an epoch has at least one sample */
    if (!mixture_good(s)) return "mixture";
    return NULL;
}

/* Returns true for what a loss, a norm and their variances can be. */
static bool number_good(double value) {
    return value >= 0 && value <= MOST_VARIANCE;
}

static const char *guard_fault(const tr_ckpt_guard *g, int64_t step) {
    if (!between(g->steps, 0, step)) return "guard_steps";
    if (!between(g->skips, 0, MOST_STEPS)) return "guard_skips";
    if (!number_good(g->loss_mean)) return "loss_mean";
    if (!number_good(g->loss_variance)) return "loss_variance";
    if (!number_good(g->norm_mean)) return "norm_mean";
    if (!number_good(g->norm_variance)) return "norm_variance";
    if (!between(g->overflows, 0, step)) return "guard_overflows";
    return NULL;
}

/* A scale is a power of two, so that it changes no bit of a gradient that does not overflow. */
static const char *scale_fault(const tr_ckpt_scale *s, int64_t step) {
    int exponent;
    if (s->value != 0 &&
        !(s->value >= 1 && s->value <= MOST_SCALE && frexp(s->value, &exponent) == 0.5))
        return "loss_scale";
    return between(s->steps, 0, step) ? NULL : "loss_scale_steps";
}

/* Estimates of squares may be negative. */
static const char *noise_fault(const tr_ckpt_noise *n, int64_t step) {
    if (!between(n->steps, 0, step)) return "noise_steps";
    if (!number_good(fabs(n->square))) return "noise_square";
    if (!number_good(fabs(n->variance))) return "noise_variance";
    return NULL;
}

static const char *fault(const tr_ckpt_state *s) {
    if (!between(s->step, 0, MOST_STEPS)) return "step";
    if (!samples_good(s)) return "next_sample";
    if (!between(s->optimizer_step, 0, s->step)) return "optimizer_step";
    if (!between(s->moments_since, 0, s->optimizer_step)) return "moments_since";
    if (s->skipped != s->step - s->optimizer_step) return "skipped";
    if (!tokens_good(s)) return "tokens_seen";
    const char *guard = guard_fault(&s->guard, s->step);
    const char *noise = noise_fault(&s->noise, s->step);
    const char *scale = scale_fault(&s->scale, s->step);
    return guard ? guard : noise ? noise : scale ? scale : data_fault(s);
}

tr_status tr_state_check(const tr_ckpt_state *state, const char *where, tr_status code) {
    const char *field = fault(state);
    if (!field) return TR_OK;
    return TR_FAIL(code, "%s: /state/%s is not a value that a run of %" PRId64 " steps can have",
                   where, field, state->step);
}
