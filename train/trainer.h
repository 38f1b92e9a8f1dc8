/* A training run: from a config to committed checkpoints, on one rank of a world. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "job/board.h"

typedef enum tr_resume {
    TR_RESUME_NO,   /* a new run; TR_ERR_CONFIG where log.dir contains checkpoints */
    TR_RESUME_YES,  /* from the newest valid step of log.dir; TR_ERR_NOFILE without one */
    TR_RESUME_AUTO, /* the same, or a new run where no step is saved */
} tr_resume;

typedef struct tr_train_options {
    tr_resume resume;
    int trace;              /* steps of which the timeline is recorded, from this run's second */
    const char *time_limit; /* the user's words for it; NULL: none */
    double time_end_s;      /* of the steady clock (base/clock.h) */
    tr_board *board;        /* what this rank does is shown there; its stop request is obeyed */
    FILE *out, *warnings;   /* what people read; written by rank 0 */
} tr_train_options;

/* Collective over the world. Rank 0 locks log.dir until the run ends; TR_ERR_CONFIG names the
 * process of another run that has locked it. TR_ERR_STOPPED after a stop request or at the time
 * limit, with a checkpoint saved. A failure that the ranks have not agreed on (tr_error_is_agreed)
 * is this rank's own: the caller has to abort the world. */
tr_status tr_train(const tr_config *config, tr_world *world, const tr_train_options *options);
