/* data.path as text: the files of a corpus, or a mixture of corpora with weights.
 *
 *   corpus.txt                 one file, also when its name contains spaces
 *   'part one.bin' more-*.bin  several files, in this order, as one corpus; patterns as in a shell
 *   0.7 web-*.bin 0.3 code.bin a mixture: a weight before each corpus
 *
 * Words are separated by spaces; quotes and \ protect characters as in a shell. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TR_DATA_PARTS = 32 }; /* corpora of a mixture */

/* One corpus of the text. */
typedef struct tr_data_words {
    int64_t weight; /* in millionths; 0: the text has no weights */
    char **word;
    int count;
} tr_data_words;

typedef struct tr_data_paths {
    tr_data_words part[TR_DATA_PARTS];
    int parts;
} tr_data_paths;

/* Splits the text. Text that names an existing file is this file. Fails with TR_ERR_CONFIG when a
 * quote does not end, when a weight is not a number above 0 with at most 6 decimals, has no file
 * behind it or there are too many; the sentence begins with `key`. The caller releases *out with
 * tr_data_paths_free, also after a failure. */
tr_status tr_data_paths_parse(const char *key, const char *text, tr_data_paths *out);
void tr_data_paths_free(tr_data_paths *paths);

/* Lists the files that a corpus's words name, in order: each word, or the files that match it, by
 * name, when there is no file of that very name. Fails with TR_ERR_NOFILE when no file matches a
 * pattern. The caller releases them with tr_data_paths_free_files, also after a failure. */
tr_status tr_data_paths_expand(const char *key, const tr_data_words *words, char ***files,
                               int *count);

void tr_data_paths_free_files(char **files, int count);

/* Appends a path to text[size] as one word of data.path. Returns false when it does not fit. */
bool tr_data_paths_quote(const char *path, char *text, size_t size);
