/* The learning rate of each step, by optim.schedule. */
#pragma once

#include "config/config.h"
#include "config/points.h"

typedef enum tr_lr_shape {
    TR_LR_COSINE, /* half a cosine (Loshchilov & Hutter 2017, eq. 5) */
    TR_LR_CONSTANT,
    TR_LR_LINEAR,
    TR_LR_INVERSE_ROOT, /* Vaswani et al. 2017, section 5.3 */
    TR_LR_STEPS,        /* times a factor at milestones */
    TR_LR_WSD,          /* constant, then linear (warm-up, stable, decay: Hu et al. 2024) */
    TR_LR_CYCLES,       /* triangles (Smith 2017) */
    TR_LR_SHAPES
} tr_lr_shape;

typedef struct tr_lr {
    tr_lr_shape shape;
    double highest, lowest;
    int64_t warmup, horizon;
    int64_t decay;  /* TR_LR_WSD: steps; 0: a tenth of those after the warm-up */
    int64_t cycle;  /* TR_LR_CYCLES: steps; 0: a quarter of those after the warm-up */
    double factor;  /* TR_LR_STEPS */
    int milestones; /* TR_LR_STEPS; 0: half and three quarters of the horizon */
    int restarts;
    int64_t milestone[TR_CONFIG_POINTS], restart[TR_CONFIG_POINTS]; /* ascending */
} tr_lr;

/* Returns the schedule that the config's keys describe. */
tr_lr tr_lr_of(const tr_config *config);

/* Returns the learning rate of step `step` (from 1): highest * step / warmup up to step = warmup,
 * where every shape begins at `highest`. cosine, linear and wsd reach `lowest` at step = horizon
 * and stay there; inverse-root is highest * sqrt(s / (step - warmup + s)) with s the warm-up, or
 * 10000 without one; no shape falls below `lowest`. After step restart[i] the schedule begins
 * again with its warm-up, and its horizon is the next restart or the last one. Milestones count
 * from the last restart. A pure function: every rank computes the same bits. */
double tr_lr_at(const tr_lr *lr, int64_t step);
/* Returns true when the horizon changes the learning rate of some step. */
bool tr_lr_has_horizon(const tr_lr *lr);

enum { TR_LR_NOTE = 256 };
/* Writes to text[TR_LR_NOTE] that in a run of `steps` steps a warm-up is longer than the schedule
 * up to a restart or the horizon, or than the run, and what to do; else "". */
void tr_lr_note_warmup(const tr_lr *lr, int64_t steps, char *text);
