#include "base/utf8.h"

#include <string.h>

size_t tr_utf8_put(uint32_t cp, uint8_t out[4]) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

/* Returns the bytes of a character that begins with `first`; 0: none does. */
static uint8_t length_of(uint8_t first) {
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* Returns true when `byte` may be the second of a character (Unicode 15, table 3-7). */
static bool may_follow(uint8_t first, uint8_t byte) {
    const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return byte >= low && byte <= high;
}

/* Returns how many bytes of text[length] come before the first 8 that are not all ASCII. */
static size_t ascii(const uint8_t *text, size_t length) {
    size_t i = 0;
    for (uint64_t eight; i + 8 <= length; i += 8) {
        memcpy(&eight, text + i, 8);
        if (eight & 0x8080808080808080) break;
    }
    return i;
}

bool tr_utf8_scan_add(tr_utf8_scan *s, const uint8_t *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (s->have == 0) {
            const size_t plain = ascii(text + i, length - i);
            s->at += (int64_t)plain;
            i += plain;
            if (i == length) break;
            s->first = text[i];
            s->length = length_of(text[i]);
            if (s->length == 0) return false;
        } else if (s->have == 1 ? !may_follow(s->first, text[i]) : (text[i] & 0xC0) != 0x80) {
            return false;
        }
        if (++s->have < s->length) continue;
        s->at += s->length;
        s->have = 0;
    }
    return true;
}

size_t tr_utf8_valid(const uint8_t *text, size_t length) {
    tr_utf8_scan scan = {0};
    (void)tr_utf8_scan_add(&scan, text, length);
    return (size_t)scan.at;
}

bool tr_utf8_is_valid(const uint8_t *text, size_t length) {
    return tr_utf8_valid(text, length) == length;
}

size_t tr_utf8_mark(const char *text, size_t length) {
    return length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

void tr_utf8_repair(char *text) {
    const size_t length = strlen(text);
    for (size_t at = 0;; text[at] = '?') {
        at += tr_utf8_valid((const uint8_t *)text + at, length - at);
        if (at == length) return;
    }
}
