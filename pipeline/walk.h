/* Ranks that do their lists in order and wait for one another: orders, listings and programs are
 * checked, estimated, lowered and simulated by one walk. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { TR_WALK_TEXT = 64 };

typedef struct tr_walk {
    const char *name; /* of what is walked, as "schedule 1f1b" in messages */
    int ranks;
    int *count, *next; /* [ranks]: items, to be set after tr_walk_open; the next one of each rank */
    void *context;
    /* Does what the rank has at `at` and sets *done to the items that this took; leaves it at 0
     * where the rank must wait. */
    tr_status (*step)(void *context, int rank, int at, int *done);
    /* Of a rank that waits: names what it is at and what it needs (TR_WALK_TEXT bytes each), and
     * returns the rank that has that. */
    int (*blocked)(const void *context, int rank, int at, char *item, char *need);
} tr_walk;

/* Takes name, context, step and blocked from the caller. Release with tr_walk_close. */
tr_status tr_walk_open(tr_walk *walk, int ranks);
void tr_walk_close(tr_walk *walk);

/* In rounds, every rank in turn takes one step, until none can. Where the ranks end does not depend
 * on the order of the steps, because no step takes away what another needs. *ended: all ranks are
 * through. */
tr_status tr_walk_advance(tr_walk *walk, bool *ended);

/* The same; TR_ERR_CONFIG when a rank remains: "NAME cannot run to its end: rank 0 at 0B0 waits for
 * 1I0; rank 1 at ..." with the cycle of waits, or the way to a rank that has ended. stuck (may be
 * NULL) becomes the first rank of the sentence. */
tr_status tr_walk_run(tr_walk *walk, int *stuck);
