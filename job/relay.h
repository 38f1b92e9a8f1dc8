/* A relay copies a child's output from a pipe to a file of this process, in a thread of its own.
 *
 * When the reader of that file has gone (`| head`, a closed terminal), the relay goes on reading
 * and drops the rest, so that the child does not fail. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_relay tr_relay;

/* Starts copying to the descriptor `to`, which stays open. *input: the end of the pipe for the
 * child, closed on exec; the caller closes its own copy once the child has it. SIGPIPE has to be
 * ignored or blocked. line_of: a relay to the same terminal or NULL; output waits for a moment for
 * the end of a line that is open there, and begins a new one. Fails with TR_ERR_DEVICE when a
 * pipe or a thread cannot be made. */
tr_status tr_relay_open(int to, const tr_relay *line_of, int *input, tr_relay **out);
/* True when every writer has closed the pipe and all is copied. True also when the pipe is empty,
 * all is copied and no byte came for a second: then a process that outlived the child keeps the
 * pipe open. */
bool tr_relay_ended(const tr_relay *relay);
/* Frees the relay when all writers have closed the pipe; otherwise its thread uses it until the
 * process exits. NULL is allowed. */
void tr_relay_close(tr_relay *relay);
