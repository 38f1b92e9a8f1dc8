/* The text of the progress line, for any width: the last finished step, and the work in
 * progress. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TR_LINE_SIZE = 384 };

/* The work in progress; also its number on the board. */
typedef enum tr_activity_phase {
    TR_ACTIVITY_NONE, /* no long work */
    TR_ACTIVITY_OPEN,
    TR_ACTIVITY_SCHEDULE,
    TR_ACTIVITY_PREPARE,
    TR_ACTIVITY_LOAD, /* in bytes */
    TR_ACTIVITY_DRAW,
    TR_ACTIVITY_STEP,
    TR_ACTIVITY_VALIDATE,
    TR_ACTIVITY_SAMPLE,
    TR_ACTIVITY_SAVE, /* in bytes */
    TR_ACTIVITY_PHASES
} tr_activity_phase;

/* Returns true for loading and saving, which count their progress in bytes. */
bool tr_activity_counts_bytes(tr_activity_phase phase);

/* The last finished step. */
typedef struct tr_progress_state {
    int64_t step, steps; /* the last one (from 1); steps of the whole run */
    double loss, grad_norm, lr, tokens_per_s;
    double flops_per_s;            /* model FLOPs, of a rank on average; 0: not known */
    double val_loss;               /* the last one; NAN: none yet */
    double noise_scale;            /* tokens; NAN: not known */
    size_t memory, memory_planned; /* bytes of this rank: live peak, plan */
    double eta_s;                  /* seconds to the end; < 0: unknown */
    /* The work of the remaining steps, in steps like the mean of those since the start; 0: all
     * steps are alike. */
    double left;
} tr_progress_state;

typedef struct tr_activity {
    tr_activity_phase phase;
    int64_t step; /* the step in progress, or the one being saved */
    bool first;   /* the first step of this process */
    int64_t micro_batch,
        micro_batches;   /* of rank 0, from 0; -1: none. micro_batches 0: not known */
    int64_t done, total; /* of all ranks; total 0: not known */
    double seconds;      /* since its begin */
} tr_activity;

/* "step 120/2000 loss 3.2816 val 3.31 gnorm 0.94 lr 2.9e-04 18.4k tok/s mem 0.4/1.2 GiB eta
 * 00:41:07", and " | micro-batch 3/8, 28 s left" if activity is not NULL. Writes it to buffer
 * [TR_LINE_SIZE] and returns that. With columns > 0 the line is at most that wide: step and loss
 * stay, cut if even they do not fit; the other fields, first the time left, are added by their
 * importance while they fit. colour: with terminal codes. */
const char *tr_line_step(const tr_progress_state *state, const tr_activity *activity, int columns,
                         bool colour, char *buffer);
/* Writes "now      warming up: step 1, micro-batch 3 of 8, about 30 s left", cut to the columns. */
const char *tr_line_activity(const tr_activity *activity, int columns, char *buffer);
