/* What a continued run keeps of the saved run's config, and what it has otherwise. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "partition/optim_row.h"
#include "train/recorder.h"

/* How a saved run and the run that continues it differ where that changes the numbers. */
typedef struct tr_saved_run {
    bool unfrozen;                   /* parameters are trained that the saved run froze */
    bool kept_horizon;               /* the continued run keeps the saved one's horizon */
    char new_states[TR_OPTIM_NAMES]; /* states of the optimizer that begin at zero, or "" */
    const char *unused;              /* a key of new runs alone that differs, or NULL */
    const char *reblocked;           /* the key that puts 8-bit moments in other blocks, or NULL */
    char narrowed[8];                /* the saved optim.moments, if it has more bits, or "" */
    bool unmastered;                 /* the masters, which this run rounds to BF16 */
    bool rounded;                    /* it computed in FP64, of which a checkpoint keeps FP32 */
    bool narrowed_frozen;            /* this run keeps frozen parameters in other or fewer bits */
    char unread[256];                /* why this version cannot read the saved config, or "" */
} tr_saved_run;

/* Compares *config with the config of the saved state of a run with checkpoints in `root`, and
 * describes the differences in *out. Sets in *config the keys that a continued run keeps: those
 * with another default on other devices, and the learning rate's horizon. Sets state->moments_since
 * if the optimizer's moments start again. Fails with TR_ERR_CONFIG for another seed, or for another
 * model or sample order: tensors alone do not show, for example, another number of heads. If this
 * version cannot read the saved config, only the seed is compared, and out->unread is the cause. */
tr_status tr_saved_run_check(tr_ckpt_state *state, const char *root, tr_config *config,
                             tr_saved_run *out);
/* Prints a warning for each difference. config: that of the continued run, after the check. */
void tr_saved_run_say(const tr_saved_run *saved, const tr_config *config, tr_recorder *recorder);
