/* The signals that ask a run to stop: how a rank handles them, and the messages about them.
 *
 * The first one lets the run finish its step and save. A second SIGINT or SIGTERM aborts it; a
 * second SIGHUP or SIGUSR1 does not, because terminals and batch systems send them more than once.
 * Where the board says so, SIGINT interrupts what the job does instead. A signal that was ignored
 * when the process began (nohup) stays ignored.
 *
 * A thread of its own waits for them, and no other thread is interrupted: the stack pointer of
 * oneDNN's FP32 GEMM is in a buffer of the heap, so the frame of a handler that interrupts it
 * overwrites the memory below that buffer. */
#pragma once

#include "job/board.h"

/* Signals of one user or system within this time count as one: `timeout`, for example, signals its
 * child and the child's group. */
#define TR_SECOND_SIGNAL_S 0.5

/* Makes signals ask this rank to stop, and ignores SIGPIPE. launched: a launcher handles the
 * terminal's signals, and a second signal. prints: without a launcher, this rank prints what a
 * signal does. Call it once per process, before it has another thread: every thread inherits that
 * the signals are blocked. Where no thread can be started for them now, tr_signals_use starts
 * it. */
void tr_signals_take(bool launched, bool prints);
/* Sends requests to this board from now on, including one that came earlier. NULL: to no board; the
 * previous one may then be closed. Fails (TR_ERR_DEVICE) where no thread takes the signals and none
 * can be started. */
tr_status tr_signals_use(tr_board *board);

/* Returns true for SIGINT and SIGTERM, which abort the run when they come a second time. */
bool tr_signal_is_urgent(int signal);
/* Returns true when this process ignores the signal. */
bool tr_signal_is_ignored(int signal);
/* Returns the sentence about a request to stop by this signal. saves: the job takes steps and saves
 * them. */
const char *tr_signal_text(int signal, bool saves);
/* Returns the sentence about a second signal, which aborts the run, and about what is saved
 * according to the board (NULL: not known). */
const char *tr_signal_abort_text(const tr_board *board);
/* Writes "trireme: SENTENCE" to stderr with one call. refreshes: the terminal shows a progress line
 * that is refreshed, and the sentence replaces it. */
void tr_signal_say(const char *sentence, bool refreshes);
/* Returns true when stdout and stderr are a terminal on which a progress line is refreshed. */
bool tr_signal_refreshes(void);
