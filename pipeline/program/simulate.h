/* Simulation of lowered programs: the times of their instructions. */
#pragma once

#include "pipeline/orders/bubble.h"
#include "pipeline/program/lower.h"

/* The time of an instruction. */
typedef struct tr_instr_time {
    double start; /* when the rank arrives */
    double end;
    /* SEND: when its message has arrived. REDUCE_START, GATHER_START: when the collective is
     * complete. OFFLOAD, FETCH: when the copies are. Else 0. */
    double complete;
    double begin; /* of those except SEND: when its link begins; else 0 */
} tr_instr_time;

/* What a message, a sum, a gather or a copy takes. */
typedef struct tr_link {
    double latency, per_byte; /* in the unit of the costs */
} tr_link;

/* The links of a pipeline's ranks. A rank of the pipeline stands for `line` neighbours in the
 * world, and a host has `host` neighbours. */
typedef struct tr_simulated_links {
    tr_link near, far; /* messages: between ranks of a host; between hosts */
    int line, host;    /* host 0: all ranks are on one */
    /* Sums of gradients and gathers of values, which a rank does one after the other. */
    tr_link sum, gather;
    tr_link copy; /* to the host's memory, and back at the same time */
} tr_simulated_links;

/* Returns the link from one rank of the pipeline to another: `far` when two of their world ranks
 * that exchange messages are on different hosts. */
tr_link tr_simulated_link(const tr_simulated_links *links, int from, int to);

typedef struct tr_simulation {
    double makespan; /* until the last rank's last instruction */
    int ranks;
    tr_rank_time *time;    /* [ranks] */
    int *in_flight;        /* [ranks]: most (stage, micro-batch) pairs from F on, until W or B */
    double *exposed;       /* [ranks]: time in which the rank waited for reductions and gathers */
    double *copying;       /* [ranks]: for copies to the host's memory, and back */
    tr_instr_time **instr; /* [ranks][count] */
} tr_simulation;

/* Simulates the programs with cost[stages] (B costs i + w); links NULL: messages and sums take no
 * time. A message moves when it has been sent, the message before it on its channel has arrived,
 * and its landing buffer is free (comm/landing.h; rendezvous); after its link's time it arrives and
 * its send completes. Senders wait only in WAIT_SENT. A reduction moves on
 * links->sum when its bucket is complete and the rank's earlier collectives are over, a gather on
 * links->gather when these are over; an action that waits for gathers while it runs takes longer by
 * what it waits; a copy to the host's memory moves on links->copy when the rank's earlier ones are
 * over, and one back likewise. Fails with TR_ERR_CONFIG and the blocked instructions when not all
 * ranks reach their end. The caller releases *out with tr_simulation_destroy. */
tr_status tr_simulate(const tr_program_set *set, const tr_stage_cost *cost,
                      const tr_simulated_links *links, tr_simulation **out);
void tr_simulation_destroy(tr_simulation *simulation);
