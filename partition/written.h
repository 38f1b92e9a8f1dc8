/* Which rank writes what to a checkpoint, and the snapshot of it from which a run saves in the
 * background (checkpoint.background). train/store_tensors.c lists tensors by these functions, and
 * the plan counts with them, so that planned bytes equal allocated bytes. */
#pragma once

#include "layers/param_layout.h"
#include "layers/placement.h"
#include "partition/optim_row.h"

/* How the ranks hold parameters. */
typedef struct tr_holding {
    const tr_mesh *mesh;
    bool divides, divides_values; /* data ranks divide updates; and values (parallel.zero) */
    bool has_masters;             /* trained parameters have masters apart from their values */
} tr_holding;

/* Returns true when data ranks divide what is saved of the parameter's weights, so that each has
 * elements that no other one has. */
bool tr_holding_divides_saved(const tr_holding *holding, const tr_param *param);

/* Which memory of a parameter a rank writes. */
typedef struct tr_written {
    bool weights, state[TR_OPTIM_STATES];
} tr_written;

/* Decides for the rank holding->mesh->index: of the ranks that may save the parameter
 * (tr_param_layout) the data rank that writes the fewest elements so far, or the rank that has a
 * portion. optimizer: that steps the parameter. load[data ranks]: 0 before the first parameter;
 * every rank visits all of its own in registry order, except those that share their value with
 * another use, and makes the same choice. */
tr_status tr_written_make(const tr_holding *holding, const tr_param *param,
                          const tr_param_layout *layout, tr_optim_kind optimizer, int64_t *load,
                          tr_written *out);

/* What the bytes of a rank's snapshot depend on. */
typedef struct tr_written_desc {
    const tr_model *model;
    const tr_placement *placement;
    const tr_mesh *mesh;
    tr_dtype dtype;
    tr_optim_memory optimizer;
    int zero; /* parallel.zero */
} tr_written_desc;

/* Computes the bytes of a snapshot of everything that the rank mesh->index writes. */
tr_status tr_written_snapshot(const tr_written_desc *desc, size_t *out);
