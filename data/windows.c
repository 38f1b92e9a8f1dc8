#include "data/windows.h"

#include "base/philox.h"

#include <inttypes.h>

enum { FEISTEL_ROUNDS = 6 };

/* Returns the rows that the tokens are in. */
static int64_t rows_of(int64_t tokens, int64_t context) {
    return tokens / context + (tokens % context > 0);
}

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

/* Lays rows over the extent, of which the last ones are held out: at least one with validation. */
static tr_status lay_rows(const char *name, double validation, tr_data_windows *w) {
    const int64_t rows = rows_of(w->extent.split, w->context);
    w->held = (int64_t)((double)rows * validation);
    if (validation > 0 && w->held == 0) w->held = 1;
    w->front = (tr_data_stretch){.windows = rows - w->held, .phases = 1};
    w->train = w->held > 0 ? w->front.windows * w->context : w->extent.split;
    w->behind = w->extent.split - w->extent.split % w->context;
    if (w->front.windows > 0) return TR_OK;
    return TR_FAIL(
        TR_ERR_DATA,
        "the conversations of '%s' fill one sequence of model.context %" PRId64
        " tokens, and data.validation %g sets it aside: use more data, data.validation 0 "
        "or a smaller model.context",
        name, w->context, validation);
}

tr_status tr_data_windows_lay(const char *name, bool rows, double validation, int64_t context,
                              uint64_t seed, const tr_data_extent *extent, tr_data_windows *out) {
    int64_t held = (int64_t)((double)extent->split * validation);
    *out = (tr_data_windows){.context = context,
                             .seed = seed,
                             .rows = rows,
                             .extent = *extent,
                             .train = extent->split - held,
                             .held = held > 0 ? (held - 1) / context : 0};
    if (rows) return lay_rows(name, validation, out);
    TR_TRY(check(name, validation, out, held));
    out->front = lay(out->train, context);
    return TR_OK;
}

void tr_data_windows_next_row(tr_data_windows *w) {
    w->behind = rows_of(w->extent.split, w->context) * w->context;
}

/* Returns the windows that an epoch of that many tokens has after the held-out part. */
static tr_data_stretch appended(const tr_data_windows *w, int64_t tokens) {
    const int64_t split = w->extent.split;
    if (w->rows && tokens > split && tokens > w->behind)
        return (tr_data_stretch){rows_of(tokens - w->behind, w->context), 1};
    if (w->rows) return (tr_data_stretch){0, 1};
    return lay(tokens - split, w->context);
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

static tr_data_window window_at(const tr_data_windows *w, int64_t start, int64_t from,
                                int64_t end) {
    const int64_t to = start + w->context + !w->rows;
    return (tr_data_window){start, from > start ? from : start, to < end ? to : end};
}

tr_data_window tr_data_windows_get(const tr_data_windows *w, int64_t index) {
    const tr_data_extent at = tr_data_windows_at(w, index);
    const tr_data_stretch front = w->front, behind = appended(w, at.epoch_tokens);
    uint64_t key =
        tr_mix64(w->seed ^ tr_mix64(tr_hash_name("data.order"))) ^ tr_mix64((uint64_t)at.epoch);
    tr_philox r = tr_philox4x32(key, 0, ~UINT64_C(0)); /* a counter that no round uses */
    int64_t window = tr_data_permute(key, front.windows + behind.windows, index - at.epoch_sample);
    if (window < front.windows)
        return window_at(w, pick(r.v[0], r.v[1], front.phases) + window * w->context, 0, at.split);
    const int64_t begin = w->rows ? w->behind : at.split;
    return window_at(
        w, begin + pick(r.v[2], r.v[3], behind.phases) + (window - front.windows) * w->context,
        at.split, at.epoch_tokens);
}

tr_data_window tr_data_windows_get_held(const tr_data_windows *w, int64_t index) {
    return window_at(w, w->train + index % w->held * w->context, 0, w->extent.split);
}
