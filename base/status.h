/* Status codes and the error trace.
 *
 * Every fallible function returns a tr_status: 0 is success, any other value is the process exit
 * code that the failure deserves (README, Exit codes). The function that finds the fault calls
 * tr_fail() with one sentence (cause and remedy); callers return the code with TR_TRY, which adds
 * their file:line to a thread-local trace. Nothing below main prints or exits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef enum tr_status {
    TR_OK = 0,
    TR_ERR_USAGE = 64,    /* wrong command line */
    TR_ERR_DATA = 65,     /* bad data, bad checkpoint, non-finite loss */
    TR_ERR_NOFILE = 66,   /* a named path does not exist */
    TR_ERR_DEVICE = 69,   /* device or library unavailable, wrong launch */
    TR_ERR_INTERNAL = 70, /* a bug in Trireme, or a library that broke its contract */
    TR_ERR_IO = 74,       /* disk full, read or write error */
    TR_ERR_STOPPED = 75,  /* stopped by a signal or a time limit, and saved: resume */
    TR_ERR_FIT = 76,      /* does not fit the memory */
    TR_ERR_RANK = 77,     /* a rank was lost, or a wait for it passed the deadline */
    TR_ERR_CONFIG = 78,   /* bad configuration */
} tr_status;

/* Records a failure in this thread: replaces message and trace, returns `code`. The sentence names
 * the cause and, if there is one, the remedy; beyond 1023 bytes its middle is cut (tr_text_fit). */
tr_status tr_fail_at(const char *file, int line, tr_status code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define TR_FAIL(code, ...) tr_fail_at(__FILE__, __LINE__, (code), __VA_ARGS__)

/* Adds one line to this thread's trace and returns `code` unchanged. */
tr_status tr_trace_at(const char *file, int line, tr_status code);

/* Returns a failure to the caller, with this line added to the trace. */
#define TR_TRY(expr)                                                                               \
    do {                                                                                           \
        tr_status tr_try_ = (expr);                                                                \
        if (tr_try_ != TR_OK) return tr_trace_at(__FILE__, __LINE__, tr_try_);                     \
    } while (0)

/* Goes to the label `out` on failure, for clean-up. Needs a variable `tr_status status`. */
#define TR_TRY_OUT(expr)                                                                           \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != TR_OK) {                                                                     \
            (void)tr_trace_at(__FILE__, __LINE__, status);                                         \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* Return this thread's last failure: the sentence, and "file:line < file:line < ...". Never NULL;
 * valid until the next failure in this thread. */
const char *tr_error_message(void);
const char *tr_error_trace(void);
/* Returns the end of a printed sentence: for TR_ERR_INTERNAL how to report the bug, for other codes
 * "", because their sentences name the remedy. */
const char *tr_error_remedy(tr_status code);
void tr_error_clear(void);
/* Returns true when all ranks of the job agreed on this failure (tr_world_agree): the job can then
 * shut down cleanly. Until then the failure is this rank's own. */
bool tr_error_is_agreed(void);
void tr_error_set_agreed(void);

/* A copy of this thread's last failure. Callers save it before work that may fail without
 * consequence, and restore it afterwards, so that the first failure is the one reported. */
typedef struct tr_error {
    char message[1024], trace[1024];
    bool agreed;
} tr_error;
void tr_error_save(tr_error *out);
void tr_error_restore(const tr_error *error);
