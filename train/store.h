/* The parameter store of one rank: memory for the parameters of its layers.
 *
 * Each parameter has a value in the model's dtype, a gradient in FP32 or BF16 (optim.gradients), an
 * FP32 master (not with optim.master none) and the states of the optimizer
 * (partition/optim_row.h) in FP32 or fewer bits; in an FP64 model all are FP64. In FP32 and FP64
 * the value is the master. With gradients in BF16 all layers write theirs of one micro-batch to the
 * same FP32 memory, the addends, where an optimizer that steps by tensor later has its directions.
 * Data ranks may divide the updates (parallel.zero): then a rank has master and states of its
 * portion of each parameter, and gathers the values of the others after every step, when the next
 * one or other work needs them (train/values.h). A frozen parameter has only its value, and a
 * gradient that is not read if it has_grad. Every use of a tied parameter has its own gradient;
 * uses on one rank share value and state; uses on different pipeline ranks hold a copy each, and
 * their gradients are summed through a tie group.
 *
 * With offload (device.offload) masters and states are in the host's memory, and the cpu device
 * steps them (train/hosted.h).
 *
 * With parallel.zero 2 a rank also has memory only for its portions of the sums of gradients. Whole
 * gradients lie in the arena, bucket by bucket, from the first W of the step until the sums have
 * been waited for (pipeline/program/lower.h).
 *
 * With parallel.zero 3 it has memory only for its portions of the values, too, also of frozen
 * parameters, and nothing is gathered after a step. Whole values lie in the arena while their stage
 * runs (train/values.h). */
#pragma once

#include "comm/mesh_groups.h"
#include "job/board.h"
#include "layers/param_layout.h"
#include "layers/placement.h"
#include "partition/optim_row.h"
#include "partition/written.h"
#include "train/gathers.h"

typedef struct tr_store_slot {
    tr_param *param;
    tr_param_layout layout;
    /* The elements that this rank updates, or of a frozen parameter keeps; all if not divided. */
    tr_range portion;
    /* The portion's, in the store's acc. NULL for an empty portion, with no_master, and in 16 bits
     * for a frozen parameter. */
    void *master;
    /* The portion's: tr_optim_state_count numbers of each state, in the store's state_dtype. NULL
     * for a state that the optimizer does not have, an empty portion and a frozen parameter. */
    void *state[TR_OPTIM_STATES];
    void *value; /* the portion's; NULL if it is empty */
    /* The portion's gradient, after its sum, and its direction in the store's acc (device/op.h,
     * DIRECTION): in the gradient's memory, or in the addend's. NULL when the portion is empty or
     * frozen. */
    void *grad, *direction;
    /* The gradient's first element in its bucket in the arena, or in the store's gradients. */
    size_t place;
    size_t value_place; /* the whole value's in its bucket in the arena, if values are divided */
    int stage, bucket;  /* of the placement; a bucket is reduced and gathered at once */
    int lap;            /* in which it is stepped */
    tr_optim_kind optimizer; /* that steps it */
    int shares;              /* slot of the use on this rank that has its value and state, or -1 */
    tr_group *sum; /* group that sums its gradient; NULL without gradients, and if frozen */
    /* With data ranks in two factors: the group that sums those sums, and the near data ranks,
     * which divide them; else NULL. */
    tr_group *across, *near;
    tr_group *owners; /* data ranks that divide its updates, or of a frozen one its value; NULL: it
                         is not divided */
    tr_group *tie;    /* group that then sums the gradients of uses on other ranks; NULL: none */
} tr_store_slot;

/* Adjacent gradients of trained parameters of one bucket that one group sums at once. */
typedef struct tr_span {
    int stage, bucket;
    int slot; /* of the first gradient */
    tr_group *sum;
    int64_t count;
} tr_span;

/* Adjacent trained parameters of one stage that all decay, or all do not, and have one optimizer
 * and lr_scale; if updates are divided, states are not in acc, there are no masters or the
 * optimizer steps by tensor, the portion of one parameter. They have the same offsets from the
 * first in each kind of memory, with zeros between them, so the optimizer steps them as one.
 * States: those of the rule (device/op.h). */
typedef struct tr_run {
    int slot; /* of the first parameter */
    char *grad, *direction, *master, *state[TR_OPTIM_STATES];
    void *value;
    int64_t count;
    tr_optim_kind optimizer;
    bool decay;
    double lr_scale;
} tr_run;

typedef struct tr_store {
    tr_device *device;
    tr_world *world;
    tr_dtype dtype; /* of values */
    tr_dtype acc;   /* of masters */
    tr_dtype grad_dtype, state_dtype;
    bool no_master; /* the values are stepped, in a type other than acc */
    tr_optim_kind optimizer;
    tr_store_slot *slot; /* in registry order */
    int slots;
    tr_span *span; /* [spans], stages in ascending order */
    int spans;
    const tr_mesh *divided; /* NULL: updates are not divided */
    bool in_arena;          /* whole gradients are in the arena */
    bool divides_values;    /* and whole values */
    tr_mesh mesh;
    tr_gathers *gathers; /* of all values, after updates; NULL: nothing is divided, or values are */
    bool outdated;       /* values of other ranks' portions are those before the last update */
    tr_run *run;         /* [runs] */
    int runs;
    int laps; /* of the optimizer's step: 1, or of directions in the addends one for each bucket */
    char *values;         /* masters and values in the model's dtype */
    char *grads, *states; /* gradients, then the addends; states: one after the other */
    tr_device *host;      /* the cpu device, which steps with offload; NULL: `device` steps */
    char *offloaded;      /* with offload masters and states, in the host's memory */
    int64_t part;         /* elements that then travel at a time */
} tr_store;

/* Returns true when trained parameters have masters apart from their values. */
static inline bool tr_store_has_masters(const tr_store *store) {
    return store->dtype != store->acc && !store->no_master;
}

typedef struct tr_store_desc {
    tr_device *device;
    tr_world *world;
    const tr_mesh *mesh;
    const tr_model *model;
    const tr_placement *placement;
    tr_dtype dtype;
    /* Opened by tr_rank_groups_open: the store is for training by the optimizer. NULL: it has only
     * values, without gradients and states. */
    tr_mesh_groups *groups;
    tr_optim_memory optimizer; /* with groups, as `zero` is */
    int zero;                  /* parallel.zero */
} tr_store_desc;

/* Allocates the memory and sets params' value and grad. In the arena params have no gradients until
 * tr_store_place_bucket. Not collective. */
tr_status tr_store_create(const tr_store_desc *desc, tr_store **out);
void tr_store_destroy(tr_store *store);
/* Returns the slot's whole gradient. */
tr_tensor tr_store_gradient(const tr_store *store, const tr_store_slot *slot);
/* Places the gradients of a bucket of one of this rank's stages in the arena. */
void tr_store_place_bucket(tr_store *store, int stage, int bucket, void *memory);

/* Returns true when the slot's value is gathered after updates. */
bool tr_store_gathers(const tr_store_slot *slot);
/* Completes outdated values. Collective over the ranks that divide the updates; later work in the
 * compute stream finds them. */
tr_status tr_store_complete(tr_store *store);

/* Sets the whole value of the slot's parameter to its place in the bucket's memory. */
void tr_store_place_value(const tr_store *store, const tr_store_slot *slot, void *bucket);

/* Returns the parameter's most precise copy, which checkpoints save, and which of its elements it
 * has: the master, or in 16 bits the value of one that is frozen or has no master. */
void *tr_store_slot_saved(const tr_store *store, const tr_store_slot *slot, tr_dtype *dtype,
                          tr_range *held);
/* Returns how this rank of the mesh and the others hold parameters, for tr_written_make. */
tr_holding tr_store_holding(const tr_store *store, const tr_mesh *mesh);

/* Draws the initial values of a store for training from the seed, and tells the world how many are
 * drawn; states are zero. Not collective. Fails with TR_ERR_STOPPED soon after a request to stop
 * on the board, which may be NULL. */
tr_status tr_store_init(tr_store *store, uint64_t seed, const tr_board *board);
/* Draws those of low-rank updates only, into the masters: tr_store_publish follows. Not
 * collective. */
tr_status tr_store_init_updates(tr_store *store, uint64_t seed);
/* Sets the states of a store for training to zero, as at the first step; does nothing to a store
 * without them. */
tr_status tr_store_clear_states(tr_store *store);
/* Computes the values from the masters, where there are any, after a load. Collective, if updates
 * are divided. */
tr_status tr_store_publish(tr_store *store);
