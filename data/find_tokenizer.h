/* Which tokenizer belongs to data. */
#pragma once

#include "text/tokenizer.h"

#include <stdbool.h>

/* Opens the first of these: `named` (data.tokenizer, may be ""), which must exist; the tokenizer
 * that `trireme data tokenize` wrote next to data.path, PREFIX.tokenizer.json; the one in the
 * folder `origin` (model.init_from, may be ""). *out is NULL when there is none: bytes are ids
 * then. text: the data is text, which needs a tokenizer; without it a tokenizer in `origin` that
 * cannot be opened counts as none. Fails like tr_tokenizer_open, and with TR_ERR_CONFIG when the
 * tokenizer has more tokens than `vocab`. */
tr_status tr_data_find_tokenizer(const char *named, const char *data_path, const char *origin,
                                 int64_t vocab, bool text, tr_tokenizer **out);
