/* Shows the progress of a run: the line of steps, and the work in progress when a step, the set-up
 * or a save takes long. A terminal shows one refreshed line, a pipe gets whole lines.
 *
 * A separate thread watches the time, since the caller computes; it only reads the board. It is not
 * the watchdog's thread, because a stopped terminal (Ctrl-S) must not stop heartbeats. */
#pragma once

#include "job/board.h"
#include "train/line.h"

#include <pthread.h>
#include <stdio.h>

typedef struct tr_progress_options {
    FILE *file;            /* the caller closes it */
    int64_t every;         /* steps between lines in a pipe */
    int64_t micro_batches; /* of a step on one data rank, until tr_progress_set_micro_batches */
    const tr_board *board; /* shows this rank's work and has the columns; may be NULL */
} tr_progress_options;

typedef struct tr_progress {
    tr_progress_options options;
    bool terminal, colour;
    int columns; /* of the terminal, if the launcher set them; 0: ask the file */
    /* Guards all output for people, and the fields below. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool watched, stop;
    bool open_line; /* the cursor is at the end of a refreshed line */
    tr_activity_phase phase;
    int64_t phase_step;
    double phase_s;          /* when it began */
    tr_progress_state state; /* the last step shown; steps 0: none yet */
    int64_t first_step;      /* steps done before this process began, and when that was */
    double first_s;
    double paced_s;    /* when the first step of this process ended */
    double said_s;     /* when the last step ended, or the last line was printed */
    double step_s;     /* when the last step ended */
    double shown_s;    /* when it was last refreshed */
    double activity_s; /* when the work in progress was last shown */
} tr_progress;

/* Prepares *out without showing anything. The file counts as a terminal as tr_terminal_shows says.
 * NO_COLOR (no-color.org) turns colours off. now_s, here and below: seconds of the steady clock
 * (base/clock.h). */
void tr_progress_open(const tr_progress_options *options, double now_s, tr_progress *out);
/* Starts the thread that calls tr_progress_tick. If it cannot be started, long work is not
 * shown. */
void tr_progress_watch(tr_progress *progress);
/* Ends the thread and the refreshed line. Shows nothing afterwards. */
void tr_progress_close(tr_progress *progress);

/* Begins a phase; step: the step in progress, or the one being saved. */
void tr_progress_phase(tr_progress *progress, tr_activity_phase phase, int64_t step, double now_s);
/* Sets the micro-batches of later steps. */
void tr_progress_set_micro_batches(tr_progress *progress, int64_t micro_batches);
/* Begins the steps after the first `done`. */
void tr_progress_start(tr_progress *progress, int64_t done, double now_s);
/* Returns true when a pipe gets a line for this step: for the first one, every `every`-th, and the
 * last. */
bool tr_progress_is_due(const tr_progress *progress, int64_t step, int64_t steps);
/* Returns the step after which the time left is measured, once `step` has ended: the first one of
 * this process, which also warms up, counts only while there is no other. */
int64_t tr_progress_paced_from(const tr_progress *progress, int64_t step);
/* Shows a finished step: on a terminal in the refreshed line, in a pipe as a line without control
 * codes if the step is due. Ignores state->eta_s, and computes the time left from the steps since
 * tr_progress_paced_from. */
void tr_progress_show(tr_progress *progress, const tr_progress_state *state, double now_s);
/* Shows the work in progress when nothing has been shown for a while: on a terminal in the
 * refreshed line; in a pipe as a line, at most one in 10 s, and during a step after the first only
 * if it takes longer. */
void tr_progress_tick(tr_progress *progress, double now_s);

/* Between these two calls the caller may write to the file, and to others on the same terminal: the
 * refreshed line has ended, and no other thread writes. */
void tr_progress_hold(tr_progress *progress);
void tr_progress_release(tr_progress *progress);
