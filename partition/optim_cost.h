/* Estimates, before anything runs, what the optimizer's step costs a rank's device. */
#pragma once

#include "config/config.h"
#include "layers/placement.h"
#include "partition/param_memory.h"

typedef struct tr_optim_cost {
    double bytes;     /* of the device's memory that are read and written */
    double flops;     /* of muon's products */
    double sums;      /* of these products that the tensor ranks make */
    double sum_bytes; /* of the products that they sum */
    int turns;        /* tr_muon_room_turns */
} tr_optim_cost;

/* Returns the bytes that stepping a rank's parameters reads and writes: gradients, masters, states,
 * values, and directions where an optimizer has them. They are the host's memory with
 * device.offload optimizer, otherwise the device's. */
double tr_optim_bytes(const tr_param_memory *memory, tr_dtype dtype);

/* Computes the cost of the rank at mesh->index. Includes the norms of gradients, and of tensors and
 * their directions; with device.offload the device takes only norms, and not those of masters. Sums
 * of norms over ranks, the noise scale and adafactor's sums are not in it. zero: parallel.zero. */
tr_optim_cost tr_optim_cost_of(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, tr_optim_memory optimizer);

/* Returns the time of a step in FLOPs that a rank computes meanwhile at flops_per_s: bytes at the
 * usual rate of the device's memory, and its FLOPs. 0: at the device's usual rate. */
double tr_optim_time(const tr_config *config, tr_optim_cost cost, double flops_per_s);

/* The time of the step's sums over tensor ranks, and of waiting for them, in the same unit. */
typedef struct tr_optim_sums {
    double moving, exposed;
} tr_optim_sums;

/* While a matrix's sum travels, the rank computes the step of the other matrix in turn, if there is
 * one. A last sum is always exposed. */
tr_optim_sums tr_optim_sums_of(const tr_config *config, const tr_mesh *mesh, tr_optim_cost cost,
                               double flops_per_s);
