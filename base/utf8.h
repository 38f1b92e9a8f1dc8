/* UTF-8: characters one by one, and the check of a text that comes in pieces. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TR_CP_COUNT = 0x110000,
    /* An invalid byte b has the code point TR_CP_INVALID + b, a surrogate, which valid UTF-8 cannot
     * contain. */
    TR_CP_INVALID = 0xDC00,
};

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

/* Writes a code point as UTF-8 and returns its bytes (at most 4); a surrogate gives 3. */
size_t tr_utf8_put(uint32_t cp, uint8_t out[4]);

/* The check of a text that is read in pieces. Start with zero; `at` may be another offset. */
typedef struct tr_utf8_scan {
    int64_t at;     /* valid bytes, complete characters only */
    uint8_t first;  /* of the character after them that has begun */
    uint8_t have;   /* bytes of it so far; 0: none has begun */
    uint8_t length; /* bytes that it will have */
} tr_utf8_scan;

/* Checks the next bytes. Returns false at an invalid character, which begins at scan->at with the
 * byte scan->first. At the text's end a character that has begun (have > 0) is invalid too. */
bool tr_utf8_scan_add(tr_utf8_scan *scan, const uint8_t *text, size_t length);

/* Returns how many bytes at the beginning of text[length] are valid UTF-8. */
size_t tr_utf8_valid(const uint8_t *text, size_t length);
/* Returns true when text[length] is valid UTF-8. */
bool tr_utf8_is_valid(const uint8_t *text, size_t length);
/* Returns the bytes of the byte order mark, 3 or 0, with which editors on Windows may begin a
 * text. */
size_t tr_utf8_mark(const char *text, size_t length);
/* Replaces the bytes of a text that are not part of a valid character by '?'. */
void tr_utf8_repair(char *text);
