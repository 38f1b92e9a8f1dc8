#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[1024];
static _Thread_local char trace[1024];

static const char *file_tail(const char *file) {
    const char *slash = strrchr(file, '/');
    if (!slash) return file;
    const char *p = slash;
    while (p > file && p[-1] != '/') p--; /* keep the folder: floors matter in a trace */
    return p;
}

tr_status tr_trace_at(const char *file, int line, tr_status code) {
    size_t used = strlen(trace);
    (void)snprintf(trace + used, sizeof trace - used, "%s%s:%d", used ? " < " : "", file_tail(file),
                   line);
    return code;
}

tr_status tr_fail_at(const char *file, int line, tr_status code, const char *format, ...) {
    /* Through a local buffer: an argument may be the previous message itself. */
    char text[sizeof message];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* A name may hold any character: a sentence stays one line, and commands no terminal. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    memcpy(message, text, sizeof text);
    trace[0] = '\0';
    return tr_trace_at(file, line, code);
}

const char *tr_error_message(void) {
    return message;
}

const char *tr_error_trace(void) {
    return trace;
}

void tr_error_clear(void) {
    message[0] = trace[0] = '\0';
}
