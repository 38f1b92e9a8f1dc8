/* The plan of a run: bytes by class of every rank and the simulated time of a step, without running
 * it. */
#pragma once

#include "partition/layout.h"
#include "partition/request.h"
#include "pipeline/program/simulate.h"

/* A step with one of the batches of a run. */
typedef struct tr_run_step {
    int64_t batch, until;      /* sequences, and the last step that takes them */
    double makespan, ideal;    /* as tr_run_plan has them for the whole batch */
    const tr_program_set *set; /* of tensor rank 0 */
} tr_run_step;

typedef struct tr_run_plan {
    tr_layout *layout; /* of tensor rank 0 */
    tr_orders orders;  /* of its steps */
    int ranks;
    tr_memory_plan *memory; /* [ranks]: of each world rank */
    int64_t *parameters; /* [ranks]: parameters of each rank, tied ones on one rank counted once */
    size_t limit;        /* bytes that each rank may take */
    /* [pipeline ranks]: of the cut (tr_layout_desc.room); NULL: the fastest cut fits, or no other
     * one is nearer */
    double *room;
    double fastest;    /* with room: the makespan of the fastest cut, as `time` has it */
    size_t host_bytes; /* most bytes that a host keeps for its ranks */
    size_t host_limit; /* that they may take; SIZE_MAX: not known, or they take none */
    /* One step with actions that take the layers' FLOPs, and transfers that take no time; times in
     * FLOPs of a rank. */
    tr_simulation *time;
    double ideal;                        /* makespan without bubbles: the mean of the ranks' work */
    tr_run_step step[TR_CONFIG_BATCHES]; /* [steps], the smallest first */
    int steps;
    bool sketched; /* only the ranks of tensor index 0 are planned; the others have their bytes */
} tr_run_plan;

/* Plans every rank of the config's layout, which all share this machine. When the fastest cut of
 * the layers does not fit, and parallel.cut is auto, takes the fastest of those found that do, or
 * the one that needs least.
 *
 * Prepares the ranks' operators on the device one by one, and allocates no device memory. With the
 * same device and number of threads as in training, the bytes are exactly those that training
 * takes. Fails with TR_ERR_CONFIG when training would refuse the config. A plan over the limit is
 * not an error. The caller releases *out with tr_run_plan_destroy. */
tr_status tr_run_plan_make(const tr_config *config, tr_device *device, tr_run_plan **out);
/* The same with a limit other than the config's (tr_request_memory). */
tr_status tr_run_plan_make_within(const tr_config *config, tr_device *device, size_t limit,
                                  tr_run_plan **out);
/* The same as tr_run_plan_make with the fastest cut, whether it fits or not. */
tr_status tr_run_plan_make_fastest(const tr_config *config, tr_device *device, tr_run_plan **out);
/* The same as tr_run_plan_make_within, but plans the ranks of tensor index 0, and takes their bytes
 * for the others, unless a host's memory would not suffice then. The others take no more, except
 * that with parallel.zero 3 their smaller pieces may pack worse, and that a library's product may
 * need more scratch for a smaller slice of the vocabulary. */
tr_status tr_run_plan_sketch(const tr_config *config, tr_device *device, size_t limit,
                             tr_run_plan **out);
/* Plans the other ranks of a sketch that was made of this config on this device: *plan is then that
 * of tr_run_plan_make_within. */
tr_status tr_run_plan_complete(const tr_config *config, tr_device *device, tr_run_plan *plan);
void tr_run_plan_destroy(tr_run_plan *plan);

/* Returns the rank that takes most. */
int tr_run_plan_largest(const tr_run_plan *plan);
/* Return true when every rank's memory suffices, when every host's does, and when both do. */
bool tr_run_plan_fits_device(const tr_run_plan *plan);
bool tr_run_plan_fits_host(const tr_run_plan *plan);
bool tr_run_plan_fits(const tr_run_plan *plan);

/* Sets device.host_memory of *config, which differs from the plan's by a change, to the plan's
 * limit, or to the bytes that the plan keeps in a host's memory if they exceed it. A plan of
 * *config then fits when the change makes it fit the ranks' memory, and takes no more than that of
 * a host's. */
void tr_run_plan_limit_host(const tr_run_plan *plan, tr_config *config);

/* Sets *fits to whether the fastest cut fits, as the plan of tr_run_plan_make_fastest says, and if
 * it does *stages to its stages. Takes less time, most of all when it does not fit. A layout that
 * the schedule or the model refuses, or that overflows a size, does not fit either. */
tr_status tr_run_plan_try(const tr_config *config, tr_device *device, bool *fits, int *stages);

/* Returns the most pipeline ranks that tr_run_plan_fewest_ranks tries: 512 more than the config's,
 * or model.layers. */
int64_t tr_run_plan_most_ranks(const tr_config *config);
/* Sets *pp to the fewest pipeline ranks, from the config's on, with which the fastest cut fits; to
 * more than model.layers when there are none. Numbers that a plan refuses do not fit. Above 128
 * ranks it assumes that more ranks fit where fewer do, and finds a number of which one less does
 * not fit. */
tr_status tr_run_plan_fewest_ranks(const tr_config *config, tr_device *device, int64_t *pp);
