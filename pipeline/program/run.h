/* The runner: executes a rank's program on the device's compute stream. It does not depend on
 * schedules. */
#pragma once

#include "comm/comm.h"
#include "pipeline/program/lower.h"

/* The channels of one rank of a pipeline line: one for each directed pair of ranks between which an
 * edge or its gradient travels. Programs over the same stages share them; only one runs at a
 * time. */
typedef struct tr_links tr_links;

/* Opens the channels. Every rank of the line calls it with the same arguments, except `rank`. A
 * rank that fails gives up (tr_world_give_up), since closing its channels would wait for the
 * others. rank_of[stages] is as in the schedule, line[ranks] are the world ranks. */
tr_status tr_links_open(tr_world *world, tr_device *device, const tr_stage_table *table,
                        const int *rank_of, const int *line, int ranks, int rank, tr_links **out);
void tr_links_close(tr_links *links);
/* Return the channel to or from another rank of the line; NULL when no edge connects them. */
tr_channel *tr_links_to(const tr_links *links, int rank);
tr_channel *tr_links_from(const tr_links *links, int rank);
/* Returns the rank at the other end of an edge of this rank, if no earlier edge connects the two;
 * otherwise -1. So all edges name each peer once. */
int tr_links_peer(const tr_stage_table *table, const int *rank_of, int rank, int edge);
/* Returns the device bytes of this rank's links, the channels' landing buffers, without opening
 * them. */
size_t tr_links_bytes(const tr_stage_table *table, const int *rank_of, int rank);

/* Functions that the runner calls. They may be NULL. */
typedef struct tr_run_hooks {
    /* Start to sum a bucket of the stage's weight gradients, which is complete in stream order; and
     * make later work of the stream wait for the sum. */
    tr_status (*reduce_start)(void *context, int stage, int bucket);
    tr_status (*reduce_wait)(void *context, int stage, int bucket);
    /* Start to gather the values of a bucket's parameters to `memory` (NULL: to memory of their
     * own), and make later work of the stream wait for the gather and find them there. */
    tr_status (*gather_start)(void *context, int stage, int bucket, void *memory);
    tr_status (*gather_wait)(void *context, int stage, int bucket, void *memory);
    /* Called in stream order after the first F, and after the first W or B, of a stage: its weight
     * gradients, or those that F writes, are this micro-batch's. */
    tr_status (*first_gradients)(void *context, int stage, bool in_forward);
    /* The program has ended (in stream order). */
    tr_status (*finish)(void *context);
    /* Called before and after every instruction on the caller's thread; must be cheap. An action
     * may have GATHER_WAITs within it. */
    void (*observe)(void *context, const tr_instr *instr, bool begin);
    void *context;
} tr_run_hooks;

typedef struct tr_runner_options {
    tr_device *device;
    tr_links *links;           /* may be NULL for a program without transfers */
    const tr_program *program; /* outlives the runner */
    tr_stage *const *stages;   /* [program->stages]; those of this rank */
    void *arena;               /* program->arena_bytes of device memory, aligned to TR_ALIGN */
    void *host;                /* program->host_bytes of staging memory */
    tr_run_hooks hooks;
} tr_runner_options;

typedef struct tr_runner tr_runner;

/* Resolves every instruction to its pointers. Fails with TR_ERR_INTERNAL when a stage or channel is
 * missing. */
tr_status tr_runner_create(const tr_runner_options *options, tr_runner **out);
void tr_runner_destroy(tr_runner *runner);

/* Runs the program once: enqueues all work on the compute stream, without allocating. On a host
 * device the stream runs in the caller, so the step is done on return. After a failure the line's
 * channels are in an unknown state. */
tr_status tr_runner_step(tr_runner *runner);
