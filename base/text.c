#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool tr_text_ends(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

void tr_text_add(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

/* Returns true for a byte of UTF-8 that continues a character. */
static bool continues(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

const char *tr_text_fit(char *text, size_t size, const char *sentence) {
    static const char gap[] = " ... ";
    const size_t length = strlen(sentence), room = size - 1;
    size_t head = room / 3, tail = room - head - (sizeof gap - 1);
    if (length <= room) {
        memmove(text, sentence, length + 1);
        return text;
    }
    while (head > 0 && continues(sentence[head])) head--;
    while (tail > 0 && continues(sentence[length - tail])) tail--;
    memmove(text, sentence, head);
    memcpy(text + head, gap, sizeof gap - 1);
    memmove(text + head + sizeof gap - 1, sentence + length - tail, tail + 1);
    return text;
}

/* Returns the bytes of the character of UTF-8 that begins with `byte`. */
static int character_bytes(char byte) {
    const unsigned char b = (unsigned char)byte;
    return b < 0xc2 || b > 0xf4 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

void tr_text_mend(char *text) {
    char *to = text;
    for (const char *from = text; *from;) {
        const int bytes = character_bytes(*from);
        int present = 1;
        while (present < bytes && continues(from[present])) present++;
        if (present == bytes) memmove(to, from, (size_t)bytes);
        else *to = '?';
        to += present == bytes ? bytes : 1;
        from += present;
    }
    *to = '\0';
}

void tr_text_add_range(char *text, size_t size, int first, int last) {
    tr_text_add(text, size, "%d", first);
    if (last > first) tr_text_add(text, size, "-%d", last);
}

const char *tr_text_bytes(double bytes, char *text, size_t size) {
    static const char *const unit[] = {"bytes", "kB", "MB", "GB", "TB"};
    int u = 0;
    for (; bytes >= 999.5 && u < 4; u++) bytes /= 1000;
    const int digits = !u || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    (void)snprintf(text, size, "%.*f %s", digits, bytes, unit[u]);
    return text;
}

const char *tr_text_memory(size_t bytes, char *text, size_t size) {
    if (bytes < 1 << 10) (void)snprintf(text, size, "%zu byte%s", bytes, bytes == 1 ? "" : "s");
    else if (bytes < 1 << 20) (void)snprintf(text, size, "%.1f KiB", (double)bytes / (1 << 10));
    else (void)snprintf(text, size, "%.1f MiB", (double)bytes / (1 << 20));
    return text;
}

const char *tr_text_flop(double amount, const char *unit, char *text, size_t size) {
    static const char prefix[] = "MGTPE";
    int k = 0;
    for (amount *= 1e-6; amount >= 999.5 && prefix[k + 1]; k++) amount *= 1e-3;
    (void)snprintf(text, size, "%.3g %c%s", amount, prefix[k], unit);
    return text;
}
