/* The ranks of a job in one process: each has a thread, a local world, a device of one thread, and
 * an engine. */
#pragma once

#include "train/engine.h"

enum { MOST_ENGINE_RANKS = 8 };

typedef struct engine_rank {
    tr_world *world;
    tr_device *device;
    int rank, ranks;
    tr_engine *engine; /* that the test makes; destroyed when the test's function has returned */
} engine_rank;

/* What a rank does; *state is its own. */
typedef tr_status (*engine_rank_fn)(engine_rank *r, void *state);

/* Calls run(r, r's element of states) on every rank and waits for all. When a rank fails, the
 * others do not wait for it, and the test fails after their sentences. */
void run_engine_ranks(int ranks, const char *device, engine_rank_fn run, void *states,
                      size_t state_size);

/* Fails unless the bytes that the engine took are those that it planned, in every class. */
tr_status check_planned_memory(const engine_rank *r);
