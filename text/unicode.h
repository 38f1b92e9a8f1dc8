/* What the tokenizers' patterns ask of a code point. */
#pragma once

#include "base/status.h"
#include "base/utf8.h"

/* Properties of a code point; TR_CP_INVALID + byte has none. */
enum {
    TR_CP_LETTER = 1,     /* \p{L} */
    TR_CP_NUMBER = 2,     /* \p{N} */
    TR_CP_SPACE = 4,      /* \s: White_Space */
    TR_CP_NEWLINE = 8,    /* CR and LF */
    TR_CP_UPPER = 16,     /* \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M} */
    TR_CP_LOWER = 32,     /* \p{Ll} \p{Lm} \p{Lo} \p{M} */
    TR_CP_WORD = 64,      /* \w */
    TR_CP_UNSTABLE = 128, /* NFC may change it, or join it to the character before it */
};

/* Makes the table of TR_CP_COUNT sets of properties, by Unicode 16. The caller frees it. */
tr_status tr_cp_table(uint8_t **out);

/* Returns the bytes of the character at p < end of a text in which surrogates stand for invalid
 * bytes: a surrogate is one character. */
static inline size_t tr_cp_escaped(const uint8_t *p, const uint8_t *end) {
    uint32_t cp;
    size_t bytes = tr_utf8_next(p, end, &cp);
    return cp == TR_CP_INVALID + 0xED && end - p >= 3 ? 3 : bytes;
}

/* Returns the i-th range of code points that utf8proc and PCRE2 may not know yet, and their
 * properties; false when there are no more. */
bool tr_cp_since(size_t i, uint32_t *first, uint32_t *last, uint8_t *set);
