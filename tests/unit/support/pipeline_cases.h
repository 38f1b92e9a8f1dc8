/* Tables and orders for the tests of pipeline/: chains, random graphs of stages, random valid
 * orders, and a V schedule written by hand. */
#pragma once

#include "base/memory.h"
#include "base/philox.h"
#include "pipeline/orders/check.h"
#include "pipeline/orders/make.h"
#include "pipeline/program/lower.h"

#include <stdlib.h>
#include <string.h>

typedef struct test_random {
    uint64_t state;
} test_random;

uint64_t test_next(test_random *r);

/* Returns a random number in [low, high]. */
int test_between(test_random *r, int low, int high);

tr_edge test_edge(int from, int to, size_t bytes, tr_lifetime life);

/* Makes a chain of stages with equal costs F = I = W = 1 and blocks of the given bytes. */
void test_table_chain(int stages, size_t fi, size_t fw, size_t iw, tr_stage_table *t);

enum { TEST_BUCKETS = 3 };

/* Gives every stage zero to three buckets, about one in four of them without bytes; or one to three
 * in the arena. About half of the tables have divided values in three of four buckets. */
void test_table_buckets(test_random *r, tr_stage_table *t);

/* Returns true when a program reduces this bucket of the stage. */
bool test_reduces(const tr_stage_table *t, int stage, int bucket);

/* Makes a table of random costs, block sizes, stages that offload, buckets and edges: the chain,
 * and `extra` more edges from a stage to a later one, also several between one pair. */
void test_table_random(test_random *r, int stages, int extra, tr_stage_table *t);

typedef struct test_order {
    const tr_stage_table *t;
    tr_schedule *s;
    unsigned char *done, *split; /* [stages * micro_batches] */
} test_order;

/* Makes a random order that can run: at each step it takes one ready action at random, or an
 * overlapped pair. */
tr_schedule *test_schedule_random(test_random *r, const tr_stage_table *t, int ranks,
                                  int micro_batches);

/* Makes the order of a named schedule for at most this many ranks, with all choices at random. */
tr_schedule *test_schedule_named(test_random *r, int ranks);

/* Adds the actions of a row such as "0F0,3F0,0F1&3B0" to a rank; & joins an overlapped pair.
 * Returns false when the row cannot be read. */
bool test_add_row(tr_schedule *s, int rank, const char *row);

/* Makes an order of two ranks, four stages in a V (0 and 3 on rank 0, 1 and 2 on rank 1) and three
 * micro-batches, with I and W apart and together. */
tr_schedule *test_schedule_v(void);

/* Makes each WAIT_SENT name the SEND of its message again, if there is one, after instructions have
 * moved. */
void test_relink(tr_program *p);

/* Changes one of the program's instructions that `of` is true of: drops, repeats or moves it, lets
 * it change places with another one, or makes its micro-batch (bucket) one of 0 .. most; then
 * relinks it. */
void test_program_change(test_random *r, tr_program *p, bool (*of)(tr_action a), int most);
