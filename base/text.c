#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tr_text_add(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, size - used, format, args);
    va_end(args);
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
    if (bytes < 1 << 10) (void)snprintf(text, size, "%zu bytes", bytes);
    else if (bytes < 1 << 20) (void)snprintf(text, size, "%.1f KiB", (double)bytes / (1 << 10));
    else (void)snprintf(text, size, "%.1f MiB", (double)bytes / (1 << 20));
    return text;
}
