#include "data/json_line.h"

#include <stdint.h>
#include <string.h>

enum { DEEPEST = 64 };

typedef struct scanner {
    const char *line;
    size_t length, at;
    const char *fault;
    size_t fault_at;
} scanner;

static bool wrong(scanner *s, const char *what) {
    if (!s->fault) {
        s->fault = what;
        s->fault_at = s->at;
    }
    return false;
}

static int peek(const scanner *s) {
    return s->at < s->length ? (unsigned char)s->line[s->at] : -1;
}

static void skip_space(scanner *s) {
    while (s->at < s->length && strchr(" \t\r\n", s->line[s->at]) && s->line[s->at]) s->at++;
}

static bool take(scanner *s, char want, const char *what) {
    skip_space(s);
    if (peek(s) != want) return wrong(s, what);
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
static bool read_unit(scanner *s, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = hex_digit(peek(s));
        if (digit < 0) return wrong(s, "\\u needs 4 hexadecimal digits");
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

/* Writes a code point as UTF-8: never more bytes than its escape has. */
static char *put_point(char *to, uint32_t p) {
    if (p < 0x80) {
        *to++ = (char)p;
    } else if (p < 0x800) {
        *to++ = (char)(0xc0 | p >> 6);
        *to++ = (char)(0x80 | (p & 0x3f));
    } else if (p < 0x10000) {
        *to++ = (char)(0xe0 | p >> 12);
        *to++ = (char)(0x80 | (p >> 6 & 0x3f));
        *to++ = (char)(0x80 | (p & 0x3f));
    } else {
        *to++ = (char)(0xf0 | p >> 18);
        *to++ = (char)(0x80 | (p >> 12 & 0x3f));
        *to++ = (char)(0x80 | (p >> 6 & 0x3f));
        *to++ = (char)(0x80 | (p & 0x3f));
    }
    return to;
}

/* Reads the code point of an escape \uXXXX, of which "\u" is read. */
static bool read_point(scanner *s, uint32_t *point) {
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
static bool read_string(scanner *s, char *to, size_t *length) {
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    char *begin = to, four[4];
    skip_space(s);
    if (peek(s) != '"') return wrong(s, "a string in quotes is missing");
    const size_t open = s->at++;
    for (int c; (c = peek(s)) != '"';) {
        if (c < 0) {
            s->at = open;
            return wrong(s, "a string does not end");
        }
        if (c < 0x20) return wrong(s, "a control character within a string");
        s->at++;
        if (c != '\\') {
            if (to) *to++ = (char)c;
            continue;
        }
        c = peek(s);
        s->at++;
        const char *known = c > 0 ? strchr(plain, c) : NULL;
        uint32_t point = known ? (uint32_t)(unsigned char)means[known - plain] : 0;
        if (c == 'u') {
            if (!read_point(s, &point)) return false;
        } else if (!known) {
            s->at -= 2;
            return wrong(s, "an unknown escape");
        }
        if (to) to = put_point(to, point);
        else (void)put_point(four, point);
    }
    s->at++;
    if (length) *length = (size_t)(to - begin);
    return true;
}

static size_t skip_digits(scanner *s) {
    size_t from = s->at;
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return s->at - from;
}

static bool skip_number(scanner *s) {
    const size_t begin = s->at;
    if (peek(s) == '-') s->at++;
    const bool zero = peek(s) == '0';
    size_t digits = skip_digits(s);
    bool good = digits > 0 && !(zero && digits > 1);
    if (good && peek(s) == '.') {
        s->at++;
        good = skip_digits(s) > 0;
    }
    if (good && (peek(s) == 'e' || peek(s) == 'E')) {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        good = skip_digits(s) > 0;
    }
    if (good) return true;
    s->at = begin;
    return wrong(s, "a value is missing");
}

static bool skip_word(scanner *s, const char *word) {
    size_t n = strlen(word);
    if (s->length - s->at < n || memcmp(s->line + s->at, word, n) != 0)
        return wrong(s, "a value is missing");
    s->at += n;
    return true;
}

static bool skip_value(scanner *s, int depth) {
    skip_space(s);
    int c = peek(s);
    if (c == '"') return read_string(s, NULL, NULL);
    if (c == 't') return skip_word(s, "true");
    if (c == 'f') return skip_word(s, "false");
    if (c == 'n') return skip_word(s, "null");
    if (c != '{' && c != '[') return skip_number(s);
    if (depth == DEEPEST) return wrong(s, "values are nested too deep");
    const char close = c == '{' ? '}' : ']';
    s->at++;
    skip_space(s);
    for (bool first = true; peek(s) != close; first = false) {
        if (!first && !take(s, ',', "a comma is missing")) return false;
        if (c == '{' && !(read_string(s, NULL, NULL) && take(s, ':', "a colon is missing")))
            return false;
        if (!skip_value(s, depth + 1)) return false;
        skip_space(s);
    }
    s->at++;
    return true;
}

/* Reads the object's members, and the wanted one to out->text. */
static bool read_object(scanner *s, const char *key, char *buffer, tr_jsonl *out) {
    const size_t wanted = strlen(key);
    if (!take(s, '{', "a line is one JSON object, which begins with {")) return false;
    skip_space(s);
    for (bool first = true; peek(s) != '}'; first = false) {
        size_t length;
        if (!first && !take(s, ',', "a comma is missing")) return false;
        /* A name never reaches the text, because the text is written where it is found again. */
        if (!read_string(s, buffer, &length)) return false;
        const bool found = length == wanted && memcmp(buffer, key, wanted) == 0;
        if (!take(s, ':', "a colon is missing")) return false;
        skip_space(s);
        out->at = found ? s->at : out->at;
        if (found && peek(s) != '"') return wrong(s, "the value is not a string");
        if (!skip_value(s, 1)) return false;
        if (found) out->text = buffer;
        skip_space(s);
    }
    s->at++;
    skip_space(s);
    return s->at == s->length || wrong(s, "text after the object");
}

bool tr_jsonl_read(const char *line, size_t length, const char *key, char *buffer, tr_jsonl *out) {
    scanner s = {.line = line, .length = length};
    *out = (tr_jsonl){0};
    bool good = read_object(&s, key, buffer, out);
    if (good && !out->text) {
        s.at = 0;
        good = wrong(&s, "the object does not have that key");
    }
    if (!good) {
        out->fault = s.fault;
        out->at = s.fault_at;
        return false;
    }
    s.at = out->at;
    return read_string(&s, buffer, &out->length);
}
