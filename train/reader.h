/* A thread that reads the next step's samples while the device computes this step. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_reader tr_reader;

/* Reads the samples of the step that begins with global sample `first`. */
typedef tr_status (*tr_reader_fn)(void *context, int64_t first);

/* Starts the thread. Fails with TR_ERR_DEVICE when no thread can be started. */
tr_status tr_reader_open(tr_reader_fn read, void *context, tr_reader **out);
/* Waits for a read in progress, and ends the thread. NULL is allowed. */
void tr_reader_close(tr_reader *reader);

/* Begins to read the samples from `first` on. No read may be in progress. */
void tr_reader_start(tr_reader *reader, int64_t first);
/* Waits for a read in progress, so that the caller may use the data itself. */
void tr_reader_wait(tr_reader *reader);
/* Waits likewise. Returns true when the last read was of `first`, and sets *status to its status,
 * and this thread gets its error; a second call returns false. */
bool tr_reader_take(tr_reader *reader, int64_t first, tr_status *status);
