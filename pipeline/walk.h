/* A walk over ranks that execute their lists in order and wait for each other. Checking,
 * estimating, lowering and simulating orders, listings and programs all use it. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { TR_WALK_TEXT = 64 };

typedef struct tr_walk {
    const char *name; /* of the walked object, for messages: "schedule 1f1b" */
    int ranks;
    int *count, *next; /* [ranks]: number of items, next item */
    void *context;
    /* Executes the rank's item at `at` and sets *done to the number of items executed; leaves it at
     * 0 when the rank must wait. */
    tr_status (*step)(void *context, int rank, int at, int *done);
    /* For a rank that waits: writes its item and the need (TR_WALK_TEXT bytes each), and returns
     * the rank that has the need. */
    int (*blocked)(const void *context, int rank, int at, char *item, char *need);
} tr_walk;

/* Opens a walk over count[ranks] items; NULL: the caller sets walk->count. The caller has set name,
 * context, step and, for tr_walk_run, blocked, and releases the walk with tr_walk_close, also after
 * a failure. */
tr_status tr_walk_open(tr_walk *walk, int ranks, const int *count);
void tr_walk_close(tr_walk *walk);

/* Steps every rank in rounds until no rank can step. The final state does not depend on the order
 * of the steps, because no step removes another's need. Sets *ended when all ranks have ended. */
tr_status tr_walk_advance(tr_walk *walk, bool *ended);

/* Does the same, and fails with TR_ERR_CONFIG when a rank has not ended: "NAME cannot run to its
 * end: rank 0 at 0B0 waits for 1I0; rank 1 at ..." with the cycle of waits, or the waits up to a
 * rank that has ended. stuck (may be NULL) becomes the first rank of the sentence. */
tr_status tr_walk_run(tr_walk *walk, int *stuck);
