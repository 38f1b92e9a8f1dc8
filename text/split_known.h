/* The patterns of well-known tokenizers as code: several times faster than a regular expression. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum tr_pattern {
    TR_PATTERN_OTHER, /* none of these */
    TR_PATTERN_GPT2,
    TR_PATTERN_CL100K, /* of tiktoken: white space at the end of the text is one piece */
    TR_PATTERN_LLAMA3,
    TR_PATTERN_QWEN, /* as Llama 3, with single digits */
    TR_PATTERN_O200K,
} tr_pattern;

/* Returns which pattern this regular expression is, TR_PATTERN_OTHER for any other. */
tr_pattern tr_pattern_find(const char *regex);
/* Returns the regular expression of a pattern, as tokenizer.json files have it; not of
 * TR_PATTERN_OTHER. */
const char *tr_pattern_regex(tr_pattern pattern);

/* Returns the bytes of the first piece of the text [p, end), p < end, by the properties in `table`
 * (tr_cp_table). */
size_t tr_pattern_next(tr_pattern pattern, const uint8_t *table, const uint8_t *p,
                       const uint8_t *end);
/* Returns the last place in a text that a piece ends before whatever follows the text, so that the
 * pieces of the text are those of its two parts; 0 when it finds none. cut.c. */
size_t tr_pattern_last_cut(tr_pattern pattern, const uint8_t *table, const uint8_t *text,
                           size_t length);
