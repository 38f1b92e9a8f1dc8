/* Training data: files of tokens, read by global sample index.
 *
 * A sample is a window of context + 1 tokens: inputs are the first `context`, labels the last. Its
 * corpus and its window are pure functions of (seed, sample index, position), so any rank can read
 * any sample, and a run can continue from any step. The last part of each corpus is held out, or
 * validation has a corpus of its own.
 *
 * With data.format instruct a sample is a row of `context` tokens, in which conversations are
 * whole, and only answers have labels that count. */
#pragma once

#include "data/corpus.h"
#include "data/fetch.h"
#include "data/mixture.h"
#include "data/windows.h"

typedef struct tr_data tr_data;

typedef struct tr_data_options {
    const char *path;   /* data.path: see data/paths.h */
    const char *format; /* data.format */
    double validation;  /* fraction in [0, 1) of each corpus, at its end, that is held out */
    const char *validation_path;   /* the held-out corpus; NULL: that fraction */
    const tr_tokenizer *tokenizer; /* of text and instruct; used while the files are opened */
    const char *tokens;            /* a folder with kept tokens (kept_tokens.h); NULL: none */
    int64_t context, vocab;
    uint64_t seed;
    bool packed; /* documents end within a sample; false: a sample is one document */
    /* The token that ends a document, where files list no ends. -1: the tokenizer's, or the one
     * that the files' format has. */
    int32_t document_end;
} tr_data_options;

/* Opens the files. Fails like tr_data_paths_parse and tr_corpus_open, and with TR_ERR_DATA and both
 * numbers when a sequence is longer than the training part or (validation > 0) the held-out part of
 * a corpus. Fails with TR_ERR_CONFIG when `packed` and no document end is known. Does not read
 * tokens that are appended later. */
tr_status tr_data_open(const tr_data_options *options, tr_data **out);
void tr_data_close(tr_data *data);

/* Return the corpora of the mixture (1: no mixture), and what a message calls one. */
int tr_data_parts(const tr_data *data);
const char *tr_data_name(const tr_data *data, int part);
/* Writes a sentence about conversations that are longer than a row to text[size]; "" when there are
 * none. */
void tr_data_note(const tr_data *data, char *text, size_t size);
/* Returns the corpus's weight as data.path has it, in millionths; 0 without weights. */
int64_t tr_data_weight(const tr_data *data, int part);

/* Sets the extent of a corpus to read, from its epoch_sample on; samples are counted in the corpus.
 * After opening, each whole corpus is read from sample 0. Fails with TR_ERR_DATA when the corpus is
 * shorter, or like tr_data_open. */
tr_status tr_data_use(tr_data *data, int part, const tr_data_extent *extent);
/* Makes the mixture's sequence begin at global sample `since`, before which each corpus has given
 * taken[part] samples. After opening both are 0. */
void tr_data_mix_from(tr_data *data, int64_t since, const int64_t *taken);
/* Fills taken[part] with the samples that each corpus gives before global sample `sample` (>=
 * since). */
void tr_data_taken(tr_data *data, int64_t sample, int64_t *taken);
/* Returns the corpus's extent with the epoch that global sample `sample` finds. */
tr_data_extent tr_data_extent_at(tr_data *data, int part, int64_t sample);
/* Hashes the first tokens of a corpus like tr_corpus_hash. */
tr_status tr_data_hash(const tr_data *data, int part, int64_t tokens, uint64_t *hash);

/* Return the tokens of a corpus, and those before its held-out part. */
int64_t tr_data_tokens(const tr_data *data, int part);
int64_t tr_data_train_tokens(const tr_data *data, int part);
/* Returns the training windows of an epoch of the corpus after the one in progress. */
int64_t tr_data_windows_of(const tr_data *data, int part);
/* Return the held-out windows of a corpus, and of all. */
int64_t tr_data_held_windows(const tr_data *data, int part);
int64_t tr_data_validation_windows(const tr_data *data);

/* Returns the first token of the window of training sample `index`, in its corpus, and sets *part
 * (may be NULL) to the corpus. */
int64_t tr_data_window_start(tr_data *data, int64_t index, int *part);
/* Reads the wanted step inputs of training sample `index`: TR_STEP_INPUT_TOKENS,
 * TR_STEP_INPUT_LABELS and TR_STEP_INPUT_DOCUMENT_STARTS, i32[context] each. Fails like
 * tr_corpus_read, and with TR_ERR_CONFIG on an unknown input. Only one thread may call it at a
 * time. */
tr_status tr_data_sample(tr_data *data, int64_t index, const tr_fetch *wanted, int count);
/* Reads held-out window `index`, like tr_data_sample: of one corpus in its order; of a mixture, the
 * corpora that have windows left take turns as in training, so that each window has one place.
 * Windows after the last one have no label that counts. */
tr_status tr_data_validation_sample(tr_data *data, int64_t index, const tr_fetch *wanted,
                                    int count);
/* Returns a corpus, and the token that ends documents (-1: none), for tr_data_examine. */
const tr_corpus *tr_data_corpus(const tr_data *data, int part);
int32_t tr_data_document_end(const tr_data *data);

typedef struct tr_data_facts {
    int64_t distinct;  /* different tokens in the whole corpus */
    int64_t documents; /* in the whole corpus; the last one may lack its end */
    /* Cross entropy, in nats a token, of the held-out part under a bigram model of the training
     * part, smoothed towards the unigram model: p(b|a) = (n(a,b) + alpha * p(b)) / (n(a) + alpha),
     * p(b) = (n(b) + 1) / (N + 256) (MacKay & Peto 1995, eq. 21). A token that ends a document has
     * no label, so no pair begins with it. NAN without a pair in the held-out part, and where a
     * token of the files takes more than one byte. */
    double bigram_nats;
    int64_t answers; /* of data.format instruct: tokens that count in the loss */
} tr_data_facts;
enum { TR_BIGRAM_ALPHA = 8 };
/* Reads a whole corpus and computes its facts. Fails like tr_data_sample. */
tr_status tr_data_examine(const tr_data *data, int part, double alpha, tr_data_facts *out);
