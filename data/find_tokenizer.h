/* Which tokenizer belongs to data. */
#pragma once

#include "text/tokenizer.h"

#include <stdbool.h>

enum { TR_DATA_NOTE = 768 };

/* Opens the first of these: `named` (data.tokenizer, may be ""), which must exist; the tokenizer
 * that `trireme data tokenize` wrote next to data.path, PREFIX.tokenizer.json; the one in the
 * folder `origin` (where the weights came from, may be ""). *out is NULL when there is none: bytes
 * are ids then. needed: the data cannot be read without it; otherwise one that was not named and
 * cannot be opened counts as none, and note says so ("" when there is nothing to say). Fails like
 * tr_tokenizer_open, and with TR_ERR_CONFIG when the tokenizer has more tokens than `vocab`. */
tr_status tr_data_find_tokenizer(const char *named, const char *data_path, const char *origin,
                                 int64_t vocab, bool needed, char note[TR_DATA_NOTE],
                                 tr_tokenizer **out);
