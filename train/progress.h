/* What a run shows while it runs: the line of steps, and what goes on where a step, the set-up or a
 * save takes long. Refreshed in place on a terminal, whole lines in a pipe.
 *
 * A thread of its own watches the time, since the caller computes meanwhile; it reads the board and
 * changes nothing. It is not the watchdog's thread: a stopped terminal (Ctrl-S) must not stop
 * heartbeats. */
#pragma once

#include "job/board.h"
#include "train/line.h"

#include <pthread.h>
#include <stdio.h>

typedef struct tr_progress_options {
    FILE *file;            /* stays the caller's */
    int64_t every;         /* steps between lines in a pipe */
    int64_t micro_batches; /* of a step on one data rank */
    const tr_board *board; /* of which this rank's work is shown, and the columns; may be NULL */
} tr_progress_options;

typedef struct tr_progress {
    tr_progress_options options;
    bool terminal, colour;
    int columns; /* of the terminal, where another process told; 0: ask the file */
    /* One lock for all that is written for people, and for what is below. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool watched, stop;
    bool open_line; /* the cursor stands at the end of a refreshed line */
    tr_activity_phase phase;
    int64_t phase_step;
    double phase_s;          /* when it began */
    tr_progress_state state; /* the last step shown; steps 0: none yet */
    int64_t first_step;      /* steps done before this process began, and when that was */
    double first_s;
    double said_s;     /* when the last step ended, or something else was said */
    double step_s;     /* when the last step ended */
    double shown_s;    /* when it was last refreshed */
    double activity_s; /* when it was last said what goes on */
} tr_progress;

/* Shows nothing yet. The file counts as a terminal when tr_terminal_columns says so; in a rank that
 * mpirun or srun started, when TR_TERMINAL_VARIABLE does. NO_COLOR (no-color.org) keeps colours
 * away. now_s, here and below: seconds of the steady clock (base/clock.h). */
void tr_progress_open(const tr_progress_options *options, double now_s, tr_progress *out);
/* Starts the thread that calls tr_progress_tick; without one (a limit of processes) long work stays
 * silent. */
void tr_progress_watch(tr_progress *progress);
/* Ends the thread and the refreshed line; nothing is shown afterwards. */
void tr_progress_close(tr_progress *progress);

/* A phase begins; step: the one that is made or saved. */
void tr_progress_phase(tr_progress *progress, tr_activity_phase phase, int64_t step, double now_s);
/* The steps begin, after `done` of them: the time left is counted from here. */
void tr_progress_start(tr_progress *progress, int64_t done, double now_s);
/* True when this step has a line of its own in a pipe: the first one, every `every`-th, the last.
 */
bool tr_progress_is_due(const tr_progress *progress, int64_t step, int64_t steps);
/* Shows a finished step: refreshed on a terminal; in a pipe a line without control codes when the
 * step is due. state->eta_s is not read: the time left follows from the time since the start. */
void tr_progress_show(tr_progress *progress, const tr_progress_state *state, double now_s);
/* Shows what goes on when nothing else has been said for a while: refreshed on a terminal; in a
 * pipe a line, at most one in 10 s, and within a step after the first only when it takes longer. */
void tr_progress_tick(tr_progress *progress, double now_s);

/* Between the two the caller may write to the file, and to others on the same terminal: the
 * refreshed line is ended, and no other thread writes. */
void tr_progress_hold(tr_progress *progress);
void tr_progress_release(tr_progress *progress);
