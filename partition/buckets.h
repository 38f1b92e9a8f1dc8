/* The buckets of gradients and values: how many bytes a rank reduces when each of its layers is
 * done, and gathers before its stage, or the layer, runs. */
#pragma once

#include "comm/comm.h"
#include "layers/placement.h"
#include "layers/stage.h"
#include "pipeline/program/simulate.h"

/* Adds the buckets of all stages to a table of the model's stages: one for each layer. dtype: of
 * the gradients. reduce: how the ranks sum them. zero: parallel.zero. */
tr_status tr_buckets_make(const tr_model *model, const tr_placement *placement, const tr_mesh *mesh,
                          tr_dtype dtype, tr_reduce reduce, int zero, tr_stage_table *table);
