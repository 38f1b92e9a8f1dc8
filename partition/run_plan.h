/* What a run of a config will take of every rank, without running it: bytes by class and the time
 * of a step on paper. */
#pragma once

#include "config/config.h"
#include "partition/layout.h"
#include "pipeline/program/simulate.h"

typedef struct tr_run_plan {
    tr_layout *layout; /* of tensor rank 0 */
    int ranks;
    tr_memory_plan *memory; /* [ranks]: of each world rank */
    int64_t *parameters;    /* [ranks]: that live there, tied ones on one rank once */
    size_t limit;           /* bytes that each may take */
    /* One step's actions at the layers' FLOPs, transfers in no time; times in FLOPs of a rank. */
    tr_simulation *time;
    double ideal; /* of the makespan: the mean of the ranks' work */
} tr_run_plan;

/* Plans every rank of the config's layout; all of them share this machine. The device prepares
 * their operators one after the other and allocates nothing: with the device and the number of
 * threads that training has, the bytes are those that training takes. TR_ERR_CONFIG for what
 * training refuses. A plan over the limit is not an error. Release with tr_run_plan_destroy. */
tr_status tr_run_plan_make(const tr_config *config, tr_device *device, tr_run_plan **out);
void tr_run_plan_destroy(tr_run_plan *plan);

/* The rank that takes most; the plan fits when it does. */
int tr_run_plan_largest(const tr_run_plan *plan);
bool tr_run_plan_fits(const tr_run_plan *plan);

/* True when some rank's parameters, gradients and moments alone are over the limit: such a config
 * is not worth a plan. Errors as tr_run_plan_make has them. */
tr_status tr_run_plan_is_hopeless(const tr_config *config, tr_device *device, bool *out);
