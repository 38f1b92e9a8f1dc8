/* What the ranks of a pipeline take at least, with any cut of the layers. It takes less time than
 * to cut them, so layouts that do not fit are found early. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "pipeline/orders/schedule.h"

/* Bytes of layers: of parameters, gradients and moments; and of what a micro-batch keeps from F
 * to I. */
typedef struct tr_least_part {
    double state, kept;
} tr_least_part;

typedef struct tr_least_memory {
    tr_least_part front, back; /* the layers before the first block, and after the last one */
    tr_least_part block;       /* the least state and the least that is kept of a block */
    tr_least_part all;         /* all layers */
    int blocks;
    double action; /* bytes of an F of a block besides: its scratch, and what it does not keep */
} tr_least_memory;

/* Measures the layers on the first tensor and data rank. So that no plan takes less, tied
 * parameters count as on one rank, and nothing is kept when some stages offload activations; with
 * parallel.cut blocks take nothing, because stages may have none; and scratch counts only on
 * devices that compute on the host, since that of a GPU depends on the rank's neighbours. Prepares
 * operators on the device. Does not depend on parallel.pp, parallel.schedule and parallel.virtual.
 * Fails like tr_layout_create. */
tr_status tr_least_memory_of(const tr_config *config, tr_device *device, tr_least_memory *out);

/* Returns true when so many pipeline ranks cannot hold the layers in `limit` bytes each: when the
 * last stage ends its first F, all stages hold the same micro-batch, in any order. */
bool tr_least_memory_exceeds(const tr_least_memory *least, int64_t ranks, double limit);

/* Sets *out to true when the ranks cannot hold the layers in this order. Takes O(actions). */
tr_status tr_least_memory_exceeds_in(const tr_least_memory *least, const tr_schedule *schedule,
                                     double limit, bool *out);
