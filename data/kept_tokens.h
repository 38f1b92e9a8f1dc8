/* Tokens that a run made from text files (data.format text), kept in a folder: each file's as a
 * pair of token files, with a name that depends on the file's path, size and time and on the
 * tokenizer.
 */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns true when the folder has the tokens of the file as it is now, and writes their path
 * without .bin and .idx to stem[PATH_MAX]. */
bool tr_kept_tokens_find(const char *folder, const char *file, const tr_tokenizer *tokenizer,
                         char *stem);

typedef struct tr_kept_tokens_options {
    const char *folder; /* its parent exists */
    const tr_tokenizer *tokenizer;
    int threads;
    /* Called after each part of the work with the bytes read so far of all bytes. */
    void (*progress)(void *context, int64_t bytes, int64_t all_bytes);
    void *context;
} tr_kept_tokens_options;

/* Makes the tokens of the files that `paths` names (data.path or data.validation; key: which) where
 * the folder does not have them, and removes those of the same paths with other content. Files that
 * data.format text does not read are left out. Fails like tr_data_paths_parse, tr_data_paths_expand
 * and tr_tokenize. */
tr_status tr_kept_tokens_make(const tr_kept_tokens_options *options, const char *key,
                              const char *paths);
