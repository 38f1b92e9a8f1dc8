/* The progress line: refreshed in place on a terminal, a line each interval in a pipe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct tr_progress_state {
    int64_t step, steps; /* done (from 1); of the whole run */
    double loss, grad_norm, lr, tokens_per_s;
    double val_loss;               /* the last one; NAN: none yet */
    size_t memory, memory_planned; /* bytes of this rank: live peak, plan */
    double eta_s;                  /* seconds to the end; < 0: unknown */
} tr_progress_state;

typedef struct tr_progress {
    FILE *file;
    bool terminal, colour;
    int columns; /* of the terminal, where another process told; 0: ask the file */
    int64_t every;
    int64_t first_step; /* steps done before this process began, and when that was */
    double first_s, shown_s;
    bool open_line; /* the cursor stands at the end of a refreshed line */
} tr_progress;

/* What `trireme run` tells its ranks: the columns of the terminal that their output ends on, or 0.
 * mpirun gives every rank a pseudo-terminal, whatever mpirun itself writes to. */
#define TR_TERMINAL_VARIABLE "TRIREME_TERMINAL"

/* Columns of the terminal that `file` is; 0 when it is none, or TERM is missing or "dumb". */
int tr_terminal_columns(FILE *file);

/* The line without its end, e.g. "step 120/2000 loss 3.2816 val 3.31 gnorm 0.94 lr 2.9e-04 18.4k
 * tok/s mem 0.4/1.2 GiB eta 00:41:07", in buffer; returns it. colour: with terminal codes. */
const char *tr_progress_format(const tr_progress_state *state, bool colour, char *buffer,
                               size_t size);

/* Starts on `file`, which stays the caller's. It counts as a terminal when tr_terminal_columns says
 * so; in a rank that mpirun or srun started, when TR_TERMINAL_VARIABLE does. NO_COLOR
 * (no-color.org) keeps colours away. every: steps between lines in a pipe. steps_done: before this
 * process; now_s: seconds of any steady clock. */
void tr_progress_open(FILE *file, int64_t every, int64_t steps_done, double now_s,
                      tr_progress *out);
/* After each step. In a pipe a line is written after the first step, after every `every`-th and
 * after the last, without control codes. *state: eta_s is filled in here, from the time since the
 * start. */
void tr_progress_show(tr_progress *progress, tr_progress_state *state, double now_s);
/* Ends the refreshed line, at the end or before a warning. */
void tr_progress_close(tr_progress *progress);
