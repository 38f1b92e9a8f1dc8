/* Runs lowered programs for tests. Stages here pass 64-bit words instead of activations: every
 * buffer is filled with one word and checked when it is read, so that a wrong address, a wrong
 * order, a lifetime that is too short or a missing wait changes the results, which are compared
 * with a serial evaluation. */
#pragma once

#include "pipeline/program/run.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEED = 4711, MOST_RANKS = 4, STEPS = 4 };

/* --- words ------------------------------------------------------------------------------------ */

/* --- the stage -------------------------------------------------------------------------------- */

typedef struct word_stage {
    tr_stage stage;
    const tr_stage_table *t;
    int step;
    bool slow;
    bool tells;                    /* calls io->complete and io->need */
    const unsigned char *gathered; /* the rank's, of this stage */
    uint64_t sum;                  /* of W, in their order; of F when forward only */
    uint64_t part[TEST_BUCKETS];   /* of the sum: the gradients of each bucket */
    uint64_t seen; /* the sum when it was reduced, or at the end of a forward-only program */
    test_random random;
} word_stage;

tr_status forward(tr_stage *stage, const tr_stage_io *io);

/* --- serial evaluation ------------------------------------------------------------------------ */

typedef struct words {
    uint64_t *h, *g; /* [stages * micro_batches] */
    int m;
} words;

/* --- one run ---------------------------------------------------------------------------------- */

/* The data that the ranks of one run share; read-only while they run, except `result`. */
typedef struct run_case {
    const tr_stage_table *t;
    const tr_schedule *schedule[2]; /* training and forward-only, over the same stages */
    tr_program_set *set[2];
    tr_world *world[MOST_RANKS];
    bool slow;
    struct {
        uint64_t sum, seen, reduced[TEST_BUCKETS];
        int starts[TEST_BUCKETS], waits[TEST_BUCKETS];
    } * result; /* [STEPS * stages] */
    const char *failure[MOST_RANKS];
    char message[MOST_RANKS][256];
} run_case;

typedef struct rank_state {
    run_case *c;
    int rank, step, reductions, finishes, observed;
    word_stage *stage; /* [stages] */
    /* [stages * TEST_BUCKETS]: of updated values in this step: 1 the gather has started, 2 it has
     * been waited for. */
    unsigned char *gathered;
} rank_state;

tr_status run_rank(rank_state *r);

/* Fails unless the results of the stages on `rank` (below 0: all stages) are those of the serial
 * evaluation. */
void expect_results(const run_case *c, int rank);

typedef struct runner_schedule {
    const char *name;
    int least, most; /* stages a rank */
} runner_schedule;

enum { RUNNER_SCHEDULES = 12 };
/* Every schedule except the two that tests name themselves. */
extern const runner_schedule runner_schedules[RUNNER_SCHEDULES];
