/* The signals that ask a run to stop: what they do to a rank, and what is said about them.
 *
 * The first one lets the run finish its step and save. A second SIGINT or SIGTERM ends it at once;
 * SIGHUP and SIGUSR1 never do, since terminals and batch systems send them more than once. A signal
 * that was ignored when the process began (nohup) stays ignored. */
#pragma once

#include "comm/board.h"

/* Signals of one user or system within this time count as one: `timeout`, for example, signals its
 * child and the child's group. */
#define TR_SECOND_SIGNAL_S 0.5
/* What a process says before it ends for a second signal. */
#define TR_SECOND_SIGNAL_TEXT                                                                      \
    "aborted by a second signal, without saving; the last checkpoint is intact"

/* From now on this rank's signals ask it to stop, and closed outputs do not end it. launched: a
 * launcher decides about the terminal's signals and about a second one. speaks: where there is no
 * launcher, this rank says what a signal does. Once per process. */
void tr_signals_take(bool launched, bool speaks);
/* Requests go to this board from now on, one that came before as well. NULL: to none; the board may
 * be closed after that. */
void tr_signals_use(tr_board *board);

/* True for SIGINT and SIGTERM, of which a second one ends the run at once. */
bool tr_signal_is_urgent(int signal);
/* True when this process ignores the signal. */
bool tr_signal_is_ignored(int signal);
/* The sentence about a request to stop by this signal. Async-signal-safe. */
const char *tr_signal_text(int signal);
/* Writes "trireme: SENTENCE" to stderr in one piece; refreshes: the terminal shows a line that is
 * refreshed in place, and the sentence takes its row. Async-signal-safe. */
void tr_signal_say(const char *sentence, bool refreshes);
/* True when stdout and stderr are a terminal on which a progress line is refreshed. */
bool tr_signal_refreshes(void);
