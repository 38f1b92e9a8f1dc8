#include "base/status.h"

#include "base/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local tr_error last;

static const char *file_tail(const char *file) {
    const char *slash = strrchr(file, '/');
    if (!slash) return file;
    const char *p = slash;
    while (p > file && p[-1] != '/') p--; /* keep the folder: floors matter in a trace */
    return p;
}

tr_status tr_trace_at(const char *file, int line, tr_status code) {
    size_t used = strlen(last.trace);
    (void)snprintf(last.trace + used, sizeof last.trace - used, "%s%s:%d", used ? " < " : "",
                   file_tail(file), line);
    return code;
}

tr_status tr_fail_at(const char *file, int line, tr_status code, const char *format, ...) {
    /* Through a local buffer: an argument may be the previous message itself. It has room for two
     * paths of any length. */
    char text[2 * PATH_MAX + 1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* A name may contain any character: the sentence must stay one line without control codes. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    tr_text_mend(text);
    (void)tr_text_fit(last.message, sizeof last.message, text);
    last.trace[0] = '\0';
    last.agreed = false;
    return tr_trace_at(file, line, code);
}

const char *tr_error_message(void) {
    return last.message;
}

const char *tr_error_trace(void) {
    return last.trace;
}

const char *tr_error_remedy(tr_status code) {
    if (code != TR_ERR_INTERNAL) return "";
    return "; this is a bug in Trireme or in a library: repeat the command with "
           "TRIREME_BACKTRACE=1, and report its output and the config";
}

void tr_error_clear(void) {
    last = (tr_error){0};
}

bool tr_error_is_agreed(void) {
    return last.agreed;
}

void tr_error_set_agreed(void) {
    last.agreed = true;
}

void tr_error_save(tr_error *out) {
    *out = last;
}

void tr_error_restore(const tr_error *error) {
    last = *error;
}
