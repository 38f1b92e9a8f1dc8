#include "job/mpi_output.h"

#include <string.h>
#include <unistd.h>

/* Open MPI's complaints about a message to or from a process that has just died, in shared memory
 * and over TCP, and those of mpirun's libevent about its pipe. They are dropped, because the job's
 * message already says what happened. mpirun's warning that its ssh began before it could set a
 * process group is dropped, too: the child has set its own. So is what a rank's MPI says when it
 * cannot start, of which the rank has its own message. */
static const char *const complaints[] = {
    "] Read -1, expected ",
    "mca_btl_tcp_frag_send: writev failed",
    "mca_btl_tcp_frag_recv: readv failed",
    "mca_btl_tcp_recv_blocking] recv(",
    "mca_btl_tcp_endpoint_send_handler] invalid connection state",
    "[warn] Epoll MOD(",
    "] PMIX ERROR: PMIX_ERR_UNREACH in file ",
    ": Warning: setpgid(", /* of plm:rsh, which version 5 calls plm:ssh */
    "*** An error occurred in MPI_Init_thread",
    "*** on a NULL communicator",
    "*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",
    "***    and MPI will try to terminate your MPI job as well)",
    "] Local abort before MPI_INIT completed ",
};

size_t tr_drop_lines(char *data, size_t bytes, const char *text) {
    char *found;
    while ((found = memmem(data, bytes, text, strlen(text)))) {
        char *begin = found, *end = memchr(found, '\n', bytes - (size_t)(found - data));
        while (begin > data && begin[-1] != '\n') begin--;
        if (!end) return (size_t)(begin - data);
        size_t rest = bytes - (size_t)(end + 1 - data);
        memmove(begin, end + 1, rest);
        bytes = (size_t)(begin - data) + rest;
    }
    return bytes;
}

/* Open MPI writes such a complaint in parts, and the job's message may come between them. Removes
 * the beginning of a complaint, "[HOST][JOB,RANK][FILE:LINE:FUNCTION] ", in front of that message;
 * returns the remaining bytes. */
static size_t drop_beginnings(char *data, size_t bytes) {
    static const char function[] = ":mca_btl_tcp_", message[] = "] trireme: ";
    char *at = data, *found;
    while ((found = memmem(at, bytes - (size_t)(at - data), message, strlen(message)))) {
        char *begin = found;
        at = found + 2;
        while (begin > data && begin[-1] != '\n') begin--;
        if (!memmem(begin, (size_t)(found - begin), function, strlen(function))) continue;
        memmove(begin, at, bytes - (size_t)(at - data));
        bytes -= (size_t)(at - begin);
        at = begin;
    }
    return bytes;
}

/* --- notices ---------------------------------------------------------------------------------- */

enum { ROW = 74 }; /* dashes in the first and the last line of a notice */

/* How the notices begin that Open MPI 5 prints when a rank has ended early or could not start MPI,
 * or when a host or a rank there does not answer. It has no setting against them. */
static const char *const notices[] = {
    "prterun detected that one or more processes exited",
    "prterun noticed that process rank ",
    "prterun has exited due to process rank ",
    "PRTE has lost communication with a remote daemon",
    "MPI_ABORT was invoked on rank ",
    "An MPI communication peer process has unexpectedly disconnected.",
    "A requested component was not found, ",
    "It looks like MPI_INIT failed ",
};

static bool begins_with(const char *at, const char *end, const char *text) {
    const size_t length = strlen(text);
    return (size_t)(end - at) >= length && memcmp(at, text, length) == 0;
}

static char *next_line(char *at, char *end) {
    char *newline = memchr(at, '\n', (size_t)(end - at));
    return newline ? newline + 1 : end;
}

/* Returns the end of the row of dashes at this line, or NULL when it has none. Open MPI writes the
 * NUL at the end of some notices too. */
static char *end_of_row(char *line, char *end) {
    while (line < end && *line == '\0') line++;
    if (end - line <= ROW || line[ROW] != '\n') return NULL;
    for (int i = 0; i < ROW; i++)
        if (line[i] != '-') return NULL;
    return line + ROW + 1;
}

/* Returns the end of the notice that begins with this line, or the line itself when none does.
 * *open: a notice may begin there, and the rest has not come yet. */
static char *end_of_notice(char *line, char *end, bool *open) {
    char *at = end_of_row(line, end), *after;
    *open = at != NULL;
    if (!at || at == end) return line;
    *open = false;
    for (size_t i = 0; i < sizeof notices / sizeof *notices; i++)
        *open |= begins_with(at, end, notices[i]);
    for (; *open && at < end; at = next_line(at, end)) {
        after = end_of_row(at, end);
        if (!after) continue;
        *open = false;
        while (after < end && *after == '\0') after++;
        return after;
    }
    return line;
}

bool tr_mpi_notice_is_open(char *data, size_t bytes) {
    char *end = data + bytes;
    bool open = false;
    for (char *line = data, *after; line < end && !open; line = after) {
        after = end_of_notice(line, end, &open);
        if (after == line) after = next_line(line, end);
    }
    return open;
}

/* Writes a notice as one line to the file. */
static void keep_notice(int file, const char *notice, const char *end) {
    char text[1024];
    size_t length = 0;
    for (const char *c = notice; c < end && length < sizeof text - 1; c++)
        text[length++] = *c == '\n' ? ' ' : *c;
    text[length++] = '\n';
    if (file >= 0) (void)!write(file, text, length);
}

/* Removes the notices, except a job's message that came between their lines; returns the remaining
 * bytes. */
static size_t drop_notices(char *data, size_t bytes, int file, bool *after_notice) {
    char *end = data + bytes, *out = data, *after = data; /* after: the end of the last notice */
    char *line = data;
    bool open;
    while (*after_notice && line < end && *line == '\0') line++;
    for (char *next; line < end; line = next) {
        if (line >= after) {
            after = end_of_notice(line, end, &open);
            if (after > line) keep_notice(file, line, after);
        }
        next = next_line(line, end);
        if (line < after && next > after) next = after; /* past its NUL */
        if (line < after && !begins_with(line, end, "trireme: ")) continue;
        memmove(out, line, (size_t)(next - line));
        out += next - line;
    }
    if (out > data || after > data) *after_notice = after == end;
    return (size_t)(out - data);
}

size_t tr_mpi_output_clean(char *data, size_t bytes, int file, bool *after_notice) {
    bytes = drop_notices(data, bytes, file, after_notice);
    bytes = drop_beginnings(data, bytes);
    for (size_t i = 0; i < sizeof complaints / sizeof *complaints; i++)
        bytes = tr_drop_lines(data, bytes, complaints[i]);
    return bytes;
}
