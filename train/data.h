/* Training data: a file of bytes, read by global sample index.
 *
 * A sample is a window of context + 1 tokens: inputs are the first `context`, labels the last.
 * Which window a sample is, is a pure function of (seed, sample index, what is read): any rank can
 * read any sample, and a run continues from any step. The last part of the file is held out.
 *
 * A file may grow at its end between two parts of a run: the held-out part stays where it is, the
 * epoch in progress stays as it was, and later epochs read what was appended too. */
#pragma once

#include "train/fetch.h"

#include <stdint.h>

typedef struct tr_data tr_data;

/* Opens the file. format: "bytes". validation: fraction in [0, 1) at the end of the file that is
 * held out; 0: none. Fails as tr_input_open does, and with TR_ERR_DATA and both numbers when a
 * sequence is longer than the training part or (validation > 0) the held-out part. Bytes that are
 * appended later are not read. */
tr_status tr_data_open(const char *path, const char *format, double validation, int64_t context,
                       uint64_t seed, tr_data **out);
void tr_data_close(tr_data *data);

/* What a run reads of the file. */
typedef struct tr_data_extent {
    int64_t bytes; /* of the file; epochs after the one below read all but the held-out part */
    int64_t split; /* of the file when its last part was held out */
    /* The epoch in progress: its number, its first sample, and of how many bytes it is made. */
    int64_t epoch, epoch_sample, epoch_bytes;
} tr_data_extent;

/* Reads on as `extent` says, from its epoch_sample on. A file that was opened is read whole, from
 * sample 0. TR_ERR_DATA when the file is shorter, or as tr_data_open. */
tr_status tr_data_use(tr_data *data, const tr_data_extent *extent);
/* Returns what is read from `sample` (>= epoch_sample) on: the extent with that sample's epoch. */
tr_data_extent tr_data_extent_at(const tr_data *data, int64_t sample);
/* Hash of the first `bytes` of the file: of all of them up to 4 MiB, of 64 blocks of 64 KiB from
 * the first to the last byte of a longer one. Fails as tr_data_sample does. */
tr_status tr_data_hash(const tr_data *data, int64_t bytes, uint64_t *hash);

/* Tokens of the file, and of those in front of the held-out part. */
int64_t tr_data_tokens(const tr_data *data);
int64_t tr_data_train_tokens(const tr_data *data);
/* Training windows of an epoch after the one in progress; held-out windows. */
int64_t tr_data_windows(const tr_data *data);
int64_t tr_data_validation_windows(const tr_data *data);

/* First token of the window that training sample `index` (>= epoch_sample) is. In each epoch the
 * windows lie side by side from a phase in [0, context) drawn by (seed, epoch), those of what was
 * appended behind the held-out part from another, and all are visited in an order permuted by
 * (seed, epoch). */
int64_t tr_data_window_start(const tr_data *data, int64_t index);
/* Reads what is wanted of training sample `index`: TR_INPUT_TOKENS, TR_INPUT_LABELS and
 * TR_INPUT_DOCUMENT_STARTS, i32[context] each. TR_ERR_DATA when the file has been shortened since
 * it was opened, TR_ERR_IO when it cannot be read, TR_ERR_CONFIG for an input that bytes do not
 * have. One thread at a time. */
tr_status tr_data_sample(tr_data *data, int64_t index, const tr_fetch *wanted, int count);
/* Reads the held-out window `index` modulo their number, in file order; as tr_data_sample. */
tr_status tr_data_validation_sample(tr_data *data, int64_t index, const tr_fetch *wanted,
                                    int count);
/* From now on a document ends after every token `last`, whose label does not count: it is the first
 * token of another document. -1, as after opening: a sample is one document. */
void tr_data_end_documents(tr_data *data, int32_t last);

/* A bijection of 0..n-1, keyed: a Feistel network over Philox with cycle walking (Black & Rogaway
 * 2002), without memory. 0 <= index < n. */
int64_t tr_data_permute(uint64_t key, int64_t n, int64_t index);

typedef struct tr_data_facts {
    int distinct; /* different tokens in the whole file */
    /* Cross entropy, in nats a token, of the held-out part under a bigram model of the training
     * part that is smoothed towards the unigram model: p(b|a) = (n(a,b) + alpha * p(b)) / (n(a) +
     * alpha), p(b) = (n(b) + 1) / (N + 256) (MacKay & Peto 1995, eq. 21). NAN when nothing is held
     * out. */
    double bigram_nats;
} tr_data_facts;
enum { TR_BIGRAM_ALPHA = 8 };
/* Reads the whole file. Fails as tr_data_sample does. */
tr_status tr_data_examine(const tr_data *data, double alpha, tr_data_facts *out);
