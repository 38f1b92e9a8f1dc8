/* A relay copies what a child writes into a pipe to a file of this process, in a thread of its own.
 *
 * It stands between a program and its reader: when the reader has gone (`| head`, a closed
 * terminal), the relay goes on reading and drops the rest, so that the program never notices. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_relay tr_relay;

/* Starts copying to the descriptor `to`, which stays open. *input: the end of the pipe for the
 * child, closed on exec; the caller closes its own copy once the child has it. SIGPIPE has to be
 * ignored or blocked. line_of: a relay to the same terminal or NULL; what comes waits for a moment
 * for the end of a line that is open there, and begins a new one. TR_ERR_DEVICE without pipes or
 * threads. */
tr_status tr_relay_open(int to, const tr_relay *line_of, int *input, tr_relay **out);
/* True when every writer has closed the pipe and all is copied. Also when nothing came for a second
 * and nothing waits to be written: then some process that outlived the child holds the pipe. */
bool tr_relay_ended(const tr_relay *relay);
/* Frees the relay when all writers have closed the pipe; else the thread keeps it until the process
 * exits. NULL is fine. */
void tr_relay_close(tr_relay *relay);
