/* A relay copies a child's output from a pipe to a file of this process, in its own thread.
 *
 * When the reader of that file has gone (`| head`, a closed terminal), the relay continues to read
 * and drops the rest, so that the child does not fail. A launcher asks tr_relay_lost, and ends a
 * command that is only worth its output. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct tr_relay tr_relay;

/* Starts copying to the descriptor `to`, which stays open. *input is the child's end of the pipe,
 * closed on exec; the caller closes its own copy once the child has it. SIGPIPE must be ignored or
 * blocked. line_of: a relay to the same terminal, or NULL; while that relay has an unfinished line,
 * output waits for a moment and then begins a new line. Fails with TR_ERR_DEVICE when a pipe or a
 * thread cannot be created. */
tr_status tr_relay_open(int to, const tr_relay *line_of, int *input, tr_relay **out);
/* Writes to a duplicate of that file, each as one line, the notices that Open MPI 5's mpirun prints
 * when a rank has ended early or a host does not answer. A relay never copies them, because the
 * job's message says what happened. Does nothing for -1; is called once. */
void tr_relay_keep_notices(tr_relay *relay, int file);
/* Drops from now on the lines that Open MPI prints about the process `pid` of this host: a job that
 * has ended early has its message, and what mpirun says then, such as the trace of its own crash,
 * only hides it. */
void tr_relay_drop_from(tr_relay *relay, pid_t pid);
/* Returns true when every writer has closed the pipe and everything is copied. Returns true also
 * when the pipe is empty, everything is copied and no byte has come for a second: then a process
 * that outlived the child keeps the pipe open. */
bool tr_relay_ended(const tr_relay *relay);
/* Returns true when any bytes were copied; false for NULL. */
bool tr_relay_has_copied(const tr_relay *relay);
/* Returns true when bytes were dropped because they could not be written; false for NULL. */
bool tr_relay_lost(const tr_relay *relay);
/* Returns true when a sentence that begins with "trireme: " was copied; false for NULL. */
bool tr_relay_printed(const tr_relay *relay);
/* Returns true when such a sentence named a lost rank or host; false for NULL. */
bool tr_relay_printed_loss(const tr_relay *relay);
/* What is said when that was the result of a command. */
#define TR_STDOUT_LOST "stdout cannot be written: is the disk full or the pipe closed?"
/* Frees the relay and returns true if all writers have closed the pipe. Otherwise returns false:
 * its thread uses it, and the relay that it was given as line_of, until the process exits. Close
 * that one later. NULL: true. */
bool tr_relay_close(tr_relay *relay);
