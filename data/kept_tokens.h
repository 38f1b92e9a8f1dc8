/* Tokens that a run made of the files of data.format text and instruct, kept in a folder: a text's
 * as a pair of token files, conversations as rows (kept_rows.h). The name depends on the file's
 * path, size and time and on all that the tokens depend on. */
#pragma once

#include "data/source.h"

#include <limits.h>

/* Returns true when the folder options->tokens has the tokens of the file as it is now, and writes
 * their path to path[PATH_MAX]: of text without .bin and .idx. */
bool tr_kept_tokens_find(const tr_source_options *options, const char *file, char *path);

/* Returns the status with which the tokens that tr_kept_tokens_find found were opened. If they are
 * damaged, the sentence says that the run can make them again. */
tr_status tr_kept_tokens_opened(const tr_source_options *options, tr_status status);

typedef struct tr_kept_tokens_options {
    tr_source_options source; /* format: text or instruct; tokens: the folder, whose parent exists;
                                 progress: called for both formats */
    int threads;
} tr_kept_tokens_options;

/* Makes the tokens of the files that `paths` names (data.path or data.validation; key: which) where
 * the folder does not have them, and removes those of the same paths with other content. Files that
 * the format does not read are left out. Fails like tr_data_paths_parse, tr_data_paths_expand,
 * tr_tokenize, tr_source_open and tr_kept_rows_write. */
tr_status tr_kept_tokens_make(const tr_kept_tokens_options *options, const char *key,
                              const char *paths);
