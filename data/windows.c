#include "data/windows.h"

#include "base/philox.h"

#include <inttypes.h>

enum { FEISTEL_ROUNDS = 6 };

/* Lays windows over `tokens`; none if they are too few for a window and its last label. */
static tr_data_stretch lay(int64_t tokens, int64_t context) {
    if (tokens <= context) return (tr_data_stretch){0, 1};
    /* One window fewer, so that every phase has the same number of windows. */
    int64_t windows = (tokens - context) / context;
    if (windows == 0) windows = 1;
    int64_t slack = tokens - 1 - windows * context;
    return (tr_data_stretch){windows, slack < context ? slack + 1 : context};
}

static tr_status check(const char *name, double validation, const tr_data_windows *w,
                       int64_t held) {
    int64_t need = w->context + 1; /* a label for every input */
    if (w->train < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "training part of '%s', %" PRId64 " tokens: use more data or a smaller "
                       "model.context",
                       need, name, w->train);
    if (validation > 0 && held < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "held-out part of '%s', %" PRId64 " tokens: use more data, a larger "
                       "data.validation (0 for none) or a smaller model.context",
                       need, name, held);
    return TR_OK;
}

tr_status tr_data_windows_lay(const char *name, double validation, int64_t context, uint64_t seed,
                              const tr_data_extent *extent, tr_data_windows *out) {
    int64_t held = (int64_t)((double)extent->split * validation);
    *out = (tr_data_windows){.context = context,
                             .seed = seed,
                             .extent = *extent,
                             .train = extent->split - held,
                             .held = held > 0 ? (held - 1) / context : 0};
    TR_TRY(check(name, validation, out, held));
    out->front = lay(out->train, context);
    return TR_OK;
}

/* Returns the windows that an epoch of that many tokens has after the held-out part. */
static tr_data_stretch appended(const tr_data_windows *w, int64_t tokens) {
    return lay(tokens - w->extent.split, w->context);
}

static int64_t windows_of(const tr_data_windows *w, int64_t tokens) {
    return w->front.windows + appended(w, tokens).windows;
}

tr_data_extent tr_data_windows_at(const tr_data_windows *w, int64_t sample) {
    tr_data_extent at = w->extent;
    int64_t next = at.epoch_sample + windows_of(w, at.epoch_tokens);
    if (sample < next) return at;
    int64_t windows = windows_of(w, at.tokens), whole = (sample - next) / windows;
    at.epoch += 1 + whole;
    at.epoch_sample = next + whole * windows;
    at.epoch_tokens = at.tokens;
    return at;
}

int64_t tr_data_windows_count(const tr_data_windows *w) {
    return windows_of(w, w->extent.tokens);
}

int64_t tr_data_permute(uint64_t key, int64_t n, int64_t index) {
    int half = 1; /* bits of each half: the network permutes 0..4^half-1, at most 4n numbers */
    while (half < 31 && (INT64_C(1) << (2 * half)) < n) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)index;
    do { /* until the walk is back inside 0..n-1 */
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            tr_philox r = tr_philox4x32(key, right, round);
            uint64_t next = left ^ (r.v[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Picks one of 0..n-1 by 64 random bits. */
static int64_t pick(uint32_t low, uint32_t high, int64_t n) {
    return (int64_t)(((uint64_t)high << 32 | low) % (uint64_t)n);
}

int64_t tr_data_windows_start(const tr_data_windows *w, int64_t index) {
    const tr_data_extent at = tr_data_windows_at(w, index);
    const tr_data_stretch front = w->front, behind = appended(w, at.epoch_tokens);
    uint64_t key =
        tr_mix64(w->seed ^ tr_mix64(tr_hash_name("data.order"))) ^ tr_mix64((uint64_t)at.epoch);
    tr_philox r = tr_philox4x32(key, 0, ~UINT64_C(0)); /* a counter that no round uses */
    int64_t window = tr_data_permute(key, front.windows + behind.windows, index - at.epoch_sample);
    if (window < front.windows) return pick(r.v[0], r.v[1], front.phases) + window * w->context;
    return at.split + pick(r.v[2], r.v[3], behind.phases) + (window - front.windows) * w->context;
}
