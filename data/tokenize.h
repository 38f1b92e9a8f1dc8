/* Text files to a pair of token files, on all cores. */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_tokenize_progress {
    int64_t bytes, all_bytes; /* of the files, as they are on disk */
    int64_t text;             /* bytes of text that this process read */
    int64_t tokens, documents;
    bool continued; /* an earlier process had begun */
    bool unlocked;  /* another process with the same output would not be noticed */
} tr_tokenize_progress;

typedef struct tr_tokenize_options {
    const char *const *files;
    int count;
    const tr_tokenizer *tokenizer;
    const char *key; /* of the text in JSON lines */
    bool no_special; /* the text of a special token is ordinary text */
    const char *prefix;
    bool only_tokens; /* the tokenizer is not written */
    int threads;
    double commit_s; /* seconds between two places from which a later process can go on */
    /* Called after each part of the work. Returns false to stop there: a later call goes on. */
    bool (*progress)(void *context, const tr_tokenize_progress *progress);
    void *context;
} tr_tokenize_options;

/* Writes the tokens of all files to PREFIX.bin and PREFIX.idx, and the tokenizer to
 * PREFIX.tokenizer.json. A file that ends in .json, .jsonl or .ndjson (before .gz or .zst) has one
 * JSON object a line, each a document; any other file is one document. A document ends with the
 * tokenizer's document end, if it has one. The tokens do not depend on the number of threads or on
 * interruptions: the same call goes on where a stopped one was.
 *
 * Fails with TR_ERR_NOFILE when a file does not exist, with TR_ERR_DATA, file, line and byte when
 * it is damaged, with TR_ERR_STOPPED when `progress` stopped it, and like tr_token_output_open;
 * PREFIX.bin and PREFIX.idx do not exist then. Of damaged files nothing is left for a later call:
 * it would fail at the same place, or read changed files from their beginning. */
tr_status tr_tokenize(const tr_tokenize_options *options, tr_tokenize_progress *done);
