/* What the ranks of a pipeline take at least, with any cut of the layers. It takes less time than
 * to cut them, so layouts that do not fit are found early. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "partition/layout.h"
#include "pipeline/orders/schedule.h"

/* Bytes of layers. */
typedef struct tr_least_part {
    double state;         /* of parameters, gradients and moments */
    double values, grads; /* whole ones, in the arena (tr_memory_gathers, tr_memory_in_arena) */
    double kept;          /* of what a micro-batch keeps from F to I */
} tr_least_part;

typedef struct tr_least_memory {
    tr_least_part front, back; /* the layers before the first block, and after the last one */
    tr_least_part block;       /* the least state and the least that is kept of a block */
    tr_least_part all;         /* all layers */
    int blocks;
    double action; /* bytes that an F of a block takes and does not keep, with its scratch */
} tr_least_memory;

/* What a rank of an order holds when it holds most micro-batches. */
typedef struct tr_held_rank {
    int stages;   /* of the rank */
    int64_t all;  /* micro-batches of all its stages */
    int least;    /* micro-batches of the stage with fewest */
    int last;     /* the stage of the F after which it holds them */
    int backward; /* the stage of its next action if that is a B, or -1 */
} tr_held_rank;

typedef struct tr_held {
    int ranks, stages;
    int first_owner, last_owner; /* of the first and the last stage */
    int first, final;            /* micro-batches that these ranks hold of these stages */
    tr_held_rank *rank;          /* [ranks] */
} tr_held;

/* Measures what does not need operators: all but `action`. whole: of all layers on one rank
 * (partition/whole.h). keeps: as below. */
tr_status tr_least_memory_measure(const tr_layout *whole, bool keeps, tr_least_memory *out);

/* Measures the layers on the first tensor and data rank. So that no plan takes less, tied
 * parameters count as on one rank, and nothing is kept when some stages offload activations; with
 * parallel.cut blocks take nothing, because stages may have none; and scratch counts only on
 * devices that compute on the host, since that of a GPU depends on the rank's neighbours. Prepares
 * operators on the device. Does not depend on parallel.pp, parallel.schedule and parallel.virtual.
 * Fails like tr_layout_create. */
tr_status tr_least_memory_of(const tr_config *config, tr_device *device, tr_least_memory *out);

/* Returns true when this number of pipeline ranks cannot hold the layers in `limit` bytes each.
 * When the last stage ends its first F, all stages hold the same micro-batch, in any order. */
bool tr_least_memory_exceeds(const tr_least_memory *least, int64_t ranks, double limit);

/* Measures an order, in O(actions). The caller releases *out with tr_held_free. */
tr_status tr_held_of(const tr_schedule *schedule, tr_held *out);
void tr_held_free(tr_held *held);

/* Returns how many blocks the rank with most of them has at least when ranks hold the layers in
 * this order in `limit` bytes each; INFINITY: they cannot hold them. */
double tr_least_memory_blocks(const tr_least_memory *least, const tr_held *held, double limit);
/* Returns bytes below which the ranks cannot hold the layers in this order; held NULL: in any. */
double tr_least_memory_in(const tr_least_memory *least, const tr_held *held, int64_t ranks);
