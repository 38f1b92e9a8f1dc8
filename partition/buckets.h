/* The buckets of gradients: how many bytes a rank reduces when each of its layers is done. */
#pragma once

#include "layers/placement.h"
#include "layers/stage.h"
#include "pipeline/program/simulate.h"

/* Adds the buckets of all stages to a table of the model's stages: one for each layer. */
tr_status tr_buckets_make(const tr_model *model, const tr_placement *placement, const tr_mesh *mesh,
                          tr_dtype dtype, tr_stage_table *table);

/* Returns the link over which n ranks with this kind of device sum tensors, in the FLOPs that a
 * rank computes meanwhile at this rate (0: the device's usual one): of the n values of an element a
 * rank sends and receives 2 (n - 1) / n times its own. */
tr_link tr_sum_link(const char *device, double flops_per_s, int n);
