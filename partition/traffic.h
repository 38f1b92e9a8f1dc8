/* Estimates, before anything runs, what the ranks of a layout send to each other and to their hosts
 * in a training step, the work of the optimizer, and how much longer both make the step. */
#pragma once

#include "config/config.h"
#include "partition/layout.h"
#include "partition/offload.h"
#include "partition/optim_cost.h"

typedef enum tr_traffic_kind {
    TR_TRAFFIC_MESSAGES, /* activations and their gradients between stages */
    TR_TRAFFIC_SUMS,     /* of gradients over data ranks */
    TR_TRAFFIC_TIES,     /* sums of a tied table's gradients over the ranks of its two uses */
    TR_TRAFFIC_GATHERS,  /* of parameters (parallel.zero) */
    TR_TRAFFIC_TENSOR,   /* sums over tensor ranks, and gathers and scatters of rows */
    TR_TRAFFIC_PRODUCTS, /* sums of muon's products over tensor ranks */
    TR_TRAFFIC_COPIES,   /* of activations to the host and back */
    TR_TRAFFIC_STEPS,    /* of the optimizer on the host: gradients there, values back */
    TR_TRAFFIC_KINDS
} tr_traffic_kind;

/* Over which links something travels. */
typedef enum tr_reach {
    TR_REACH_INSIDE_HOSTS,
    TR_REACH_BETWEEN_HOSTS,
    TR_REACH_BOTH,
    TR_REACH_TO_HOST /* to a host's memory */
} tr_reach;

/* One kind, of the pipeline rank that waits longest for it; messages: of the rank that sends
 * longest. All 0: the layout has none. */
typedef struct tr_traffic {
    int64_t count;  /* messages, sums, gathers or copies of a step; of TR_TRAFFIC_STEPS 1 */
    double bytes;   /* of the tensors that travel */
    double moving;  /* time in which they do */
    double exposed; /* time in which the rank waits; messages: by which they make the step longer */
    tr_reach over;
} tr_traffic;

typedef struct tr_step_traffic {
    tr_traffic of[TR_TRAFFIC_KINDS];
    tr_optim_cost update; /* on the device of the rank where it takes longest */
    double updating;      /* its time, without TR_TRAFFIC_PRODUCTS */
    double makespan;      /* of a step with all of it */
} tr_step_traffic;

/* Simulates the layout's training step with each kind alone, and with all of them, over the links
 * of tr_network_links. Sums over tensor ranks, those of tied gradients and the optimizer's step are
 * not in the simulation; what they expose is added to its makespan. Times are in the FLOPs that a
 * rank computes meanwhile at flops_per_s; 0: at the device's usual rate. After tr_layout_lower. */
tr_status tr_traffic_of(const tr_config *config, const tr_layout *layout, double flops_per_s,
                        tr_step_traffic *out);

/* The same, without what only its own simulation shows: messages, sums of gradients, gathers and
 * copies are 0. Takes a fifth of the simulations. */
tr_status tr_traffic_step(const tr_config *config, const tr_layout *layout, double flops_per_s,
                          tr_step_traffic *out);

/* Returns the time of the optimizer's step: on the device, on the host and for sums. */
double tr_traffic_update(const tr_step_traffic *traffic);

/* Returns what the optimizer's steps on the host move, for the rank where they take longest. */
tr_offload_traffic tr_traffic_host_steps(const tr_config *config, const tr_layout *layout);
