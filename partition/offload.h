/* What is kept in the host's memory (device.offload). Of the optimizer: masters and states, and the
 * memory through which gradients, values and directions travel; the plan counts here, and
 * train/store.c, train/hosted.c and train/updates.c allocate the same. Of activations: the stages.
 *
 * The plan does not count the norms that the host has for an optimizer that steps by tensor:
 * train/norms.c allocates 8 bytes for every TR_PARAM_BLOCK elements of a parameter with a master,
 * and 8 bytes more for each parameter; train/hosted.c allocates 16 bytes for each part of a tensor,
 * of the lap that has most of them. */
#pragma once

#include "config/config.h"
#include "layers/stage.h"
#include "partition/param_memory.h"

/* Parts of parameters that are on their way at one time: while the host steps one, another one's
 * gradient comes, and the values of the one before return. */
enum { TR_OFFLOAD_BUFFERS = 3 };

/* Returns how many elements travel and are stepped at a time: whole blocks of base/code8.h, or
 * all. */
int64_t tr_offload_part(const tr_param_memory *memory);
/* Return the bytes of one part's gradients, values and directions. Directions take 0 bytes when the
 * optimizer does not step by tensor, and when gradients are in FP32, which directions then
 * replace. */
size_t tr_offload_gradient_bytes(tr_optim_memory optimizer, tr_dtype dtype, int64_t part);
size_t tr_offload_value_bytes(tr_dtype dtype, int64_t part);
size_t tr_offload_direction_bytes(tr_optim_memory optimizer, tr_dtype dtype, int64_t part);
/* Returns the bytes of the host's memory that the plan counts for a rank's offload of the
 * optimizer; 0 without it. */
size_t tr_offload_bytes(const tr_param_memory *memory, tr_dtype dtype);

/* Marks the table's stages that offload activations. */
void tr_offload_mark(int64_t first, int64_t stages, tr_stage_table *table);

/* What the offload of a rank moves in a step, in bytes. */
typedef struct tr_offload_traffic {
    double down, up; /* to the host, and back */
    double host;     /* that the host's cores read and write */
} tr_offload_traffic;

/* Computes what a rank's offload moves in a step, and in which time: that of the slowest of the
 * link to the host (tr_network_host_bytes), the link back and the host's cores, which work at one
 * time. */
tr_offload_traffic tr_offload_traffic_of(const tr_param_memory *memory, tr_dtype dtype);
double tr_offload_seconds(const tr_config *config, tr_offload_traffic traffic);
