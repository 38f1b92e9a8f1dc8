#include "base/json_scan.h"

#include "base/utf8.h"

#include <string.h>

enum { DEEPEST = 64 };

bool tr_scan_wrong(tr_scan *s, const char *what) {
    if (!s->fault) {
        s->fault = what;
        s->fault_at = s->at;
    }
    return false;
}

int tr_scan_peek(const tr_scan *s) {
    return s->at < s->length ? (unsigned char)s->line[s->at] : -1;
}

void tr_scan_space(tr_scan *s) {
    while (s->at < s->length && strchr(" \t\r\n", s->line[s->at]) && s->line[s->at]) s->at++;
}

bool tr_scan_take(tr_scan *s, char want, const char *what) {
    tr_scan_space(s);
    if (tr_scan_peek(s) != want) return tr_scan_wrong(s, what);
    s->at++;
    return true;
}

static int hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Reads the 4 digits of \uXXXX. */
static bool read_unit(tr_scan *s, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = hex_digit(tr_scan_peek(s));
        if (digit < 0) return tr_scan_wrong(s, "\\u needs 4 hexadecimal digits");
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

/* Reads the code point of an escape \uXXXX, of which "\u" is read. */
static bool read_point(tr_scan *s, uint32_t *point) {
    enum { REPLACEMENT = 0xfffd };
    if (!read_unit(s, point)) return false;
    if (*point < 0xd800 || *point > 0xdfff) return true;
    const uint32_t high = *point;
    *point = REPLACEMENT;
    if (high > 0xdbff || s->length - s->at < 6 || s->line[s->at] != '\\' ||
        s->line[s->at + 1] != 'u')
        return true;
    const size_t before = s->at;
    uint32_t low;
    s->at += 2;
    if (!read_unit(s, &low)) return false;
    if (low >= 0xdc00 && low <= 0xdfff) *point = 0x10000 + ((high & 0x3ff) << 10) + (low & 0x3ff);
    else s->at = before; /* the second escape is a character of its own */
    return true;
}

/* Reads a string to `to` (NULL: passes over it). */
bool tr_scan_string(tr_scan *s, char *to, size_t *length) {
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char *begin = to;
    uint8_t put[4];
    tr_scan_space(s);
    if (tr_scan_peek(s) != '"') return tr_scan_wrong(s, "a string in quotes is missing");
    const size_t open = s->at++;
    for (int c; (c = tr_scan_peek(s)) != '"';) {
        if (c < 0) {
            s->at = open;
            return tr_scan_wrong(s, "a string does not end");
        }
        if (c < 0x20) return tr_scan_wrong(s, "a control character within a string");
        s->at++;
        if (c != '\\') {
            if (to) *to++ = (char)c;
            continue;
        }
        c = tr_scan_peek(s);
        s->at++;
        const char *known = c > 0 ? strchr(plain, c) : NULL;
        uint32_t point = known ? (uint32_t)(unsigned char)means[known - plain] : 0;
        if (c == 'u') {
            if (!read_point(s, &point)) return false;
        } else if (!known) {
            s->at -= 2;
            return tr_scan_wrong(s, "an unknown escape");
        }
        const size_t bytes = tr_utf8_put(point, put); /* never more than its escape has */
        if (to) to = mempcpy(to, put, bytes);
    }
    s->at++;
    if (length) *length = (size_t)(to - begin);
    return true;
}

static size_t skip_digits(tr_scan *s) {
    size_t from = s->at;
    while (tr_scan_peek(s) >= '0' && tr_scan_peek(s) <= '9') s->at++;
    return s->at - from;
}

static bool skip_number(tr_scan *s) {
    const size_t begin = s->at;
    if (tr_scan_peek(s) == '-') s->at++;
    const bool zero = tr_scan_peek(s) == '0';
    size_t digits = skip_digits(s);
    bool good = digits > 0 && !(zero && digits > 1);
    if (good && tr_scan_peek(s) == '.') {
        s->at++;
        good = skip_digits(s) > 0;
    }
    if (good && (tr_scan_peek(s) == 'e' || tr_scan_peek(s) == 'E')) {
        s->at++;
        if (tr_scan_peek(s) == '+' || tr_scan_peek(s) == '-') s->at++;
        good = skip_digits(s) > 0;
    }
    if (good) return true;
    s->at = begin;
    return tr_scan_wrong(s, "a value is missing");
}

static bool skip_word(tr_scan *s, const char *word) {
    size_t n = strlen(word);
    if (s->length - s->at < n || memcmp(s->line + s->at, word, n) != 0)
        return tr_scan_wrong(s, "a value is missing");
    s->at += n;
    return true;
}

bool tr_scan_value(tr_scan *s, int depth) {
    tr_scan_space(s);
    int c = tr_scan_peek(s);
    if (c == '"') return tr_scan_string(s, NULL, NULL);
    if (c == 't') return skip_word(s, "true");
    if (c == 'f') return skip_word(s, "false");
    if (c == 'n') return skip_word(s, "null");
    if (c != '{' && c != '[') return skip_number(s);
    if (depth == DEEPEST) return tr_scan_wrong(s, "values are nested too deep");
    const char close = c == '{' ? '}' : ']';
    s->at++;
    tr_scan_space(s);
    for (bool first = true; tr_scan_peek(s) != close; first = false) {
        if (!first && !tr_scan_take(s, ',', "a comma is missing")) return false;
        if (c == '{' &&
            !(tr_scan_string(s, NULL, NULL) && tr_scan_take(s, ':', "a colon is missing")))
            return false;
        if (!tr_scan_value(s, depth + 1)) return false;
        tr_scan_space(s);
    }
    s->at++;
    return true;
}

bool tr_scan_next(tr_scan *s, char close, bool first, bool *more) {
    tr_scan_space(s);
    *more = tr_scan_peek(s) != close;
    if (*more) return first || tr_scan_take(s, ',', "a comma is missing");
    s->at++;
    return true;
}
