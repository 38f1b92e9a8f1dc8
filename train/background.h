/* A thread that does one piece of a rank's work at a time, while the rank itself takes steps. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_background tr_background;

/* Does the piece of work with this number. */
typedef tr_status (*tr_background_fn)(void *context, int64_t number);

/* Starts the thread. purpose: a literal, for the message "cannot start a thread for <purpose>",
 * with which it fails with TR_ERR_DEVICE. */
tr_status tr_background_open(tr_background_fn work, void *context, const char *purpose,
                             tr_background **out);
/* Waits for work in progress, and ends the thread. NULL is allowed. */
void tr_background_close(tr_background *background);

/* Begins a piece of work. None may be in progress. */
void tr_background_start(tr_background *background, int64_t number);
/* Returns true while work is in progress. */
bool tr_background_busy(tr_background *background);
/* Waits for work in progress, so that the caller may use the data itself. */
void tr_background_wait(tr_background *background);
/* Waits likewise. Returns true when the last piece of work had this number, and sets *status to its
 * status, and this thread gets its error; a second call returns false. */
bool tr_background_take(tr_background *background, int64_t number, tr_status *status);
