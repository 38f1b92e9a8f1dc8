/* The signals that ask a run to stop: what they do to a rank, and the messages about them.
 *
 * The first one lets the run finish its step and save. A second SIGINT or SIGTERM ends it at once;
 * SIGHUP and SIGUSR1 never do, since terminals and batch systems send them more than once. A signal
 * that was ignored when the process began (nohup) stays ignored. */
#pragma once

#include "job/board.h"

/* Signals of one user or system within this time count as one: `timeout`, for example, signals its
 * child and the child's group. */
#define TR_SECOND_SIGNAL_S 0.5
/* The message of a process that a second signal ends. */
#define TR_SECOND_SIGNAL_TEXT                                                                      \
    "aborted by a second signal, without saving; the last checkpoint is intact"

/* Makes signals ask this rank to stop, and keeps closed outputs from ending it. launched: a
 * launcher handles the terminal's signals and a second one. speaks: without a launcher, this rank
 * prints what a signal does. Once per process. */
void tr_signals_take(bool launched, bool speaks);
/* Sends requests to this board from now on, also one that came before. NULL: to no board; the last
 * one may then be closed. */
void tr_signals_use(tr_board *board);

/* True for SIGINT and SIGTERM, of which a second one ends the run at once. */
bool tr_signal_is_urgent(int signal);
/* True when this process ignores the signal. */
bool tr_signal_is_ignored(int signal);
/* Returns the sentence about a request to stop by this signal. Async-signal-safe. */
const char *tr_signal_text(int signal);
/* Writes "trireme: SENTENCE" to stderr in one piece; refreshes: the terminal shows a line that is
 * refreshed in place, and the sentence takes its row. Async-signal-safe. */
void tr_signal_say(const char *sentence, bool refreshes);
/* True when stdout and stderr are a terminal on which a progress line is refreshed. */
bool tr_signal_refreshes(void);
