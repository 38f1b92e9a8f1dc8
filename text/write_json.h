/* Writing a tokenizer.json. Private to text/. */
#pragma once

#include "text/split_known.h"
#include "text/tokenizer_impl.h"

/* Append to a JSON text: a string (quotes, backslashes and control characters escaped); a special
 * added token (`more`: another one precedes it); the value of pre_tokenizer, post_processor and
 * decoder of a byte-level tokenizer that cuts by `pattern`. */
tr_status tr_write_string(tr_byte_list *out, const char *text, size_t length);
tr_status tr_write_token(tr_byte_list *out, bool more, int32_t id, const char *content,
                         size_t length);
tr_status tr_write_byte_level(tr_byte_list *out, tr_pattern pattern);

/* Appends the tokenizer.json of a byte-level model: its tokens, the special tokens `specials`
 * (texts with ids), its merges in the order of their ranks. */
typedef struct tr_special_text {
    const char *text;
    int32_t id;
} tr_special_text;
tr_status tr_write_tokenizer(tr_byte_list *out, const tr_bpe *bpe, tr_pattern pattern,
                             const tr_special_text *specials, size_t special_count);
