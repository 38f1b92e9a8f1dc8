/* What the tokenizers' patterns ask of a code point, and UTF-8 with invalid bytes. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TR_CP_LETTER = 1,     /* \p{L} */
    TR_CP_NUMBER = 2,     /* \p{N} */
    TR_CP_SPACE = 4,      /* \s: White_Space */
    TR_CP_NEWLINE = 8,    /* CR and LF */
    TR_CP_UPPER = 16,     /* \p{Lu} \p{Lt} \p{Lm} \p{Lo} \p{M} */
    TR_CP_LOWER = 32,     /* \p{Ll} \p{Lm} \p{Lo} \p{M} */
    TR_CP_WORD = 64,      /* \w */
    TR_CP_UNSTABLE = 128, /* NFC may change it, or join it to the character before it */
    TR_CP_COUNT = 0x110000,
    /* An invalid byte b has the code point TR_CP_INVALID + b, a surrogate, which valid UTF-8 cannot
     * contain. It has none of the properties above. */
    TR_CP_INVALID = 0xDC00,
};

/* Makes the table of TR_CP_COUNT sets of properties, by Unicode 16. The caller frees it. */
tr_status tr_cp_table(uint8_t **out);

/* Decodes the character at p < end into *cp and returns its bytes. An invalid byte is a character
 * of its own, TR_CP_INVALID + byte. */
static inline size_t tr_utf8_next(const uint8_t *p, const uint8_t *end, uint32_t *cp) {
    uint32_t c = p[0];
    size_t left = (size_t)(end - p);
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c >= 0xC2 && c < 0xE0 && left >= 2 && (p[1] & 0xC0) == 0x80) {
        *cp = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (c >= 0xE0 && c < 0xF0 && left >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        uint32_t v = (c & 0xF) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if (v >= 0x800 && (v < 0xD800 || v > 0xDFFF)) {
            *cp = v;
            return 3;
        }
    }
    if (c >= 0xF0 && c < 0xF5 && left >= 4 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 &&
        (p[3] & 0xC0) == 0x80) {
        uint32_t v = (c & 7) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        if (v >= 0x10000 && v < TR_CP_COUNT) {
            *cp = v;
            return 4;
        }
    }
    *cp = TR_CP_INVALID + c;
    return 1;
}

/* Returns the bytes of the character at p < end of a text in which surrogates stand for invalid
 * bytes: a surrogate is one character. */
static inline size_t tr_utf8_escaped(const uint8_t *p, const uint8_t *end) {
    uint32_t cp;
    size_t bytes = tr_utf8_next(p, end, &cp);
    return cp == TR_CP_INVALID + 0xED && end - p >= 3 ? 3 : bytes;
}

/* Returns the i-th range of code points that utf8proc and PCRE2 may not know yet, and their
 * properties; false when there are no more. */
bool tr_cp_since(size_t i, uint32_t *first, uint32_t *last, uint8_t *set);

/* Writes a code point as UTF-8 and returns its bytes (at most 4); a surrogate gives 3. */
size_t tr_utf8_put(uint32_t cp, uint8_t out[4]);

/* Returns true when text[length] is valid UTF-8. */
bool tr_utf8_is_valid(const uint8_t *text, size_t length);
