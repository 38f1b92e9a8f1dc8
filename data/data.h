/* Training data: a file of bytes, read by global sample index.
 *
 * A sample is a window of context + 1 tokens: inputs are the first `context`, labels the last. The
 * window of a sample is a pure function of (seed, sample index, extent), so any rank can read any
 * sample, and a run can continue from any step. The last part of the file is held out.
 *
 * A file may grow at its end between two parts of a run: the held-out part and the epoch in
 * progress stay the same, and later epochs also read the appended bytes. */
#pragma once

#include "data/fetch.h"

#include <stdint.h>

typedef struct tr_data tr_data;

/* Opens the file. format: "bytes". validation: fraction in [0, 1) at the end of the file that is
 * held out; 0: none. Fails like tr_input_open, and with TR_ERR_DATA and both numbers when a
 * sequence is longer than the training part or (validation > 0) the held-out part. Does not read
 * bytes that are appended later. */
tr_status tr_data_open(const char *path, const char *format, double validation, int64_t context,
                       uint64_t seed, tr_data **out);
void tr_data_close(tr_data *data);

/* The part of the file that a run reads. */
typedef struct tr_data_extent {
    int64_t bytes; /* of the file; epochs after the one below read all except the held-out part */
    int64_t split; /* length of the file when its last part was set aside */
    /* The epoch in progress: its number, its first sample, and how many bytes it reads. */
    int64_t epoch, epoch_sample, epoch_bytes;
} tr_data_extent;

/* Sets the extent to read, from its epoch_sample on. After opening, the whole file is read from
 * sample 0. Fails with TR_ERR_DATA when the file is shorter, or like tr_data_open. */
tr_status tr_data_use(tr_data *data, const tr_data_extent *extent);
/* Returns the extent with the epoch of `sample` (>= epoch_sample). */
tr_data_extent tr_data_extent_at(const tr_data *data, int64_t sample);
/* Hashes the first `bytes` of the file: all of them up to 4 MiB, else 64 blocks of 64 KiB spread
 * from the first to the last byte. Fails like tr_data_sample. */
tr_status tr_data_hash(const tr_data *data, int64_t bytes, uint64_t *hash);

/* Return the tokens of the file, and those before the held-out part. */
int64_t tr_data_tokens(const tr_data *data);
int64_t tr_data_train_tokens(const tr_data *data);
/* Return the training windows of an epoch after the one in progress, and the held-out windows. */
int64_t tr_data_windows(const tr_data *data);
int64_t tr_data_validation_windows(const tr_data *data);

/* Returns the first token of the window of training sample `index` (>= epoch_sample). In each epoch
 * adjacent windows begin at a phase in [0, context) drawn by (seed, epoch); windows of bytes
 * appended after the held-out part begin at another. All are visited in an order permuted by (seed,
 * epoch). */
int64_t tr_data_window_start(const tr_data *data, int64_t index);
/* Reads the wanted step inputs of training sample `index`: TR_INPUT_TOKENS, TR_INPUT_LABELS and
 * TR_INPUT_DOCUMENT_STARTS, i32[context] each. Fails with TR_ERR_DATA when the file has been
 * shortened since it was opened, with TR_ERR_IO when it cannot be read, and with TR_ERR_CONFIG on
 * an unknown input. Only one thread may call it at a time. */
tr_status tr_data_sample(tr_data *data, int64_t index, const tr_fetch *wanted, int count);
/* Reads the held-out window `index` modulo their number, in file order, like tr_data_sample. */
tr_status tr_data_validation_sample(tr_data *data, int64_t index, const tr_fetch *wanted,
                                    int count);
/* Makes a document end after every token `last`. That token's label does not count, because it is
 * the first token of another document. -1, as after opening: a sample is one document. */
void tr_data_end_documents(tr_data *data, int32_t last);

/* Returns index's image under a keyed bijection of 0..n-1: a Feistel network over Philox with cycle
 * walking (Black & Rogaway 2002), without memory. 0 <= index < n. */
int64_t tr_data_permute(uint64_t key, int64_t n, int64_t index);

typedef struct tr_data_facts {
    int distinct;      /* different tokens in the whole file */
    int64_t documents; /* in the whole file; the last one may lack its end */
    /* Cross entropy, in nats a token, of the held-out part under a bigram model of the training
     * part, smoothed towards the unigram model: p(b|a) = (n(a,b) + alpha * p(b)) / (n(a) + alpha),
     * p(b) = (n(b) + 1) / (N + 256) (MacKay & Peto 1995, eq. 21). A token that ends a document has
     * no label, so no pair begins with it. NAN without a pair in the held-out part. */
    double bigram_nats;
} tr_data_facts;
enum { TR_BIGRAM_ALPHA = 8 };
/* Reads the whole file and computes its facts. Fails like tr_data_sample. */
tr_status tr_data_examine(const tr_data *data, double alpha, tr_data_facts *out);
