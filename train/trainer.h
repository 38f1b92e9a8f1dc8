/* A training run: from a config to committed checkpoints, on one rank of a world. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "job/board.h"

typedef enum tr_resume {
    TR_RESUME_NO,   /* start a new run; fails with TR_ERR_CONFIG if log.dir contains checkpoints */
    TR_RESUME_YES,  /* continue from the newest valid step of log.dir; fails with TR_ERR_NOFILE
                       without one */
    TR_RESUME_AUTO, /* the same, or start a new run if no step is saved */
} tr_resume;

typedef struct tr_train_options {
    tr_resume resume;
    bool debug_nan; /* names the operator that makes the first value that is not finite */
    int trace;      /* number of steps to record in the trace, from this run's second step */
    const char *time_limit; /* the user's text; NULL: no limit */
    double time_end_s;      /* of the steady clock (base/clock.h) */
    double patience_s;      /* how long to wait for a log.dir that another run has locked */
    const char *job;        /* of the launcher; its restarts, which continue the run that it has
                               begun, have the same name. NULL: none */
    tr_board *board;        /* shows what this rank does, and has the stop request */
    FILE *out, *warnings;   /* rank 0 writes the lines for people to them */
} tr_train_options;

/* Trains. Collective over the world. Rank 0 locks log.dir until the run ends; if another run has
 * locked it, fails with TR_ERR_CONFIG and names its process. Returns TR_ERR_STOPPED after a stop
 * request or at the time limit, with a checkpoint saved. A failure that the ranks have not agreed
 * on (tr_error_is_agreed) is this rank's own: the caller must then abort the world. */
tr_status tr_train(const tr_config *config, tr_world *world, const tr_train_options *options);
