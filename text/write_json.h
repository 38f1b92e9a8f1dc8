/* Writing a tokenizer.json. Private to text/. */
#pragma once

#include "text/split_known.h"
#include "text/tokenizer_impl.h"

/* Append to a JSON text: a string (quotes, backslashes and control characters escaped); a special
 * added token (`more`: another one precedes it); the values of pre_tokenizer and decoder of a
 * byte-level tokenizer that cuts by `pattern`. */
tr_status tr_write_string(tr_byte_list *out, const char *text, size_t length);
tr_status tr_write_token(tr_byte_list *out, bool more, int32_t id, const char *content,
                         size_t length);
tr_status tr_write_byte_level(tr_byte_list *out, tr_pattern pattern);

typedef struct tr_special_text {
    const char *text;
    int32_t id;
} tr_special_text;

/* The parts of a tokenizer.json except its model. */
typedef struct tr_tokenizer_form {
    tr_pattern pattern;
    bool nfc;                       /* texts are normalized to NFC */
    const tr_special_text *special; /* the special tokens */
    size_t special_count;
    const tr_special_text *begin; /* put before each text; NULL: nothing */
    bool no_model;                /* the vocabulary and the list of merges stay empty */
} tr_tokenizer_form;

/* Appends the tokenizer.json of a byte-level model, with its merges in the order of their ranks. */
tr_status tr_write_tokenizer(tr_byte_list *out, const tr_bpe *bpe, const tr_tokenizer_form *form);
