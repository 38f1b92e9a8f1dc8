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
