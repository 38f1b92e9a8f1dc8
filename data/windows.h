/* Windows of context + 1 tokens over a corpus, and the order in which an epoch visits them. Pure
 * arithmetic: a window is a function of (seed, index, extent).
 *
 * A corpus may grow at its end between two parts of a run: the held-out part and the epoch in
 * progress stay the same, and later epochs also read the appended tokens.
 *
 * Rows (data.format instruct) begin at multiples of `context` in every epoch, and need no token
 * behind them. A row in which a corpus ended before it grew is read up to that place in one window,
 * and from that place on in another, unless the rest of the row is padding. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The part of a corpus that a run reads, in tokens. */
typedef struct tr_data_extent {
    /* Of the corpus; epochs after the one below read all of it except the held-out part. */
    int64_t tokens;
    int64_t split; /* tokens of the corpus when its last part was set aside */
    /* The epoch in progress: its number, its first sample, and how many tokens it reads. */
    int64_t epoch, epoch_sample, epoch_tokens;
} tr_data_extent;

/* A range of tokens that adjacent windows of an epoch cover. */
typedef struct tr_data_stretch {
    int64_t windows;
    int64_t phases; /* the first window starts at one of 0..phases-1 */
} tr_data_stretch;

typedef struct tr_data_window {
    int64_t start;    /* its first token */
    int64_t from, to; /* the tokens that are read; in rows the others are padding */
} tr_data_window;

typedef struct tr_data_windows {
    int64_t context;
    uint64_t seed;
    bool rows; /* windows are rows of `context` tokens, which do not overlap */
    tr_data_extent extent;
    int64_t train;         /* tokens before the held-out part */
    tr_data_stretch front; /* of every epoch; windows of tokens appended after the held-out part
                              follow */
    int64_t held;          /* windows held out */
    int64_t behind;        /* rows: the first token of the first row with appended tokens */
} tr_data_windows;

/* Lays windows over the extent, of which the fraction `validation` before `split` is held out.
 * `name` names the corpus. Fails with TR_ERR_DATA and both numbers when a sequence is longer than
 * the training part or (validation > 0) the held-out part. */
tr_status tr_data_windows_lay(const char *name, bool rows, double validation, int64_t context,
                              uint64_t seed, const tr_data_extent *extent, tr_data_windows *out);
/* Makes the rows of appended tokens begin with the row after the one in which the corpus ended: the
 * rest of that row is padding. */
void tr_data_windows_next_row(tr_data_windows *windows);
/* Returns the extent with the epoch of `sample` (>= epoch_sample). */
tr_data_extent tr_data_windows_at(const tr_data_windows *windows, int64_t sample);
/* Returns the windows of an epoch after the one in progress. */
int64_t tr_data_windows_count(const tr_data_windows *windows);
/* Returns the window of sample `index` (>= epoch_sample). In each epoch adjacent windows begin at a
 * phase in [0, context) drawn by (seed, epoch), rows at 0; windows of tokens appended after the
 * held-out part begin at another. All are visited in an order permuted by (seed, epoch). */
tr_data_window tr_data_windows_get(const tr_data_windows *windows, int64_t index);
/* Returns the held-out window `index` modulo their number. */
tr_data_window tr_data_windows_get_held(const tr_data_windows *windows, int64_t index);

/* Returns index's image under a keyed bijection of 0..n-1: a Feistel network over Philox with cycle
 * walking (Black & Rogaway 2002), without memory. 0 <= index < n. */
int64_t tr_data_permute(uint64_t key, int64_t n, int64_t index);
