/* The guard of a run: judges each step by its loss and gradient norm.
 *
 * A step is out of line when one of the two is more than guard.sigma standard deviations above its
 * running mean. Both means weigh the last TR_GUARD_WINDOW steps exponentially; they are part of the
 * checkpoint, so a resumed run judges as an undisturbed one. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "train/engine.h"

enum {
    TR_GUARD_WINDOW = 100, /* steps: the newest one weighs 1 / window */
    TR_GUARD_LEAST = 20,   /* steps before which none is out of line */
    TR_GUARD_TEXT = 256
};

typedef enum tr_verdict {
    TR_VERDICT_TAKEN,
    TR_VERDICT_WARNED,      /* taken, although it is out of line */
    TR_VERDICT_SKIPPED,     /* it has changed no parameter; the run goes on */
    TR_VERDICT_ROLLED_BACK, /* as SKIPPED; the run is to go back to its newest checkpoint */
    TR_VERDICT_DIVERGED     /* the run is to end */
} tr_verdict;

/* The largest loss and norm that are in line; 0: no limit. */
typedef struct tr_guard_limits {
    double loss, norm;
} tr_guard_limits;

/* Computes the limits of the next step. */
tr_guard_limits tr_guard_next(const tr_config *config, const tr_ckpt_guard *guard);
/* Returns true when a step beyond the limits must change no parameter. */
bool tr_guard_prevents(const tr_config *config);
/* Returns true when the run goes back after a step beyond the limits. saved: there is a checkpoint;
 * without one guard.action rollback skips such a step. */
bool tr_guard_goes_back(const tr_config *config, bool saved);
/* Judges a step that was taken with these limits, and updates the guard. text[TR_GUARD_TEXT] says
 * what is wrong with it, without the step's number; "" for TR_VERDICT_TAKEN. saved: as above. */
tr_verdict tr_guard_judge(const tr_config *config, const tr_guard_limits *limits, bool saved,
                          const tr_step_result *result, tr_ckpt_guard *guard, char *text);
/* Notes that a checkpoint was saved, so that the count of returns begins again. */
void tr_guard_saved(const tr_config *config, tr_ckpt_guard *guard);
