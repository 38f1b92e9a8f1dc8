/* A queue of the times at which ranks look at their work again: the earliest first, of equal times
 * the lower rank. */
#pragma once

#include "base/status.h"

/* A tournament tree: node k has the earlier of nodes 2k and 2k + 1; the leaves are the ranks. No
 * branch depends on the times, because processors could not predict it. */
typedef struct tr_wake {
    int leaves;
    double *time; /* [leaves]: INFINITY: not known */
    int *tree;    /* [2 leaves] */
} tr_wake;

/* Makes a queue with all ranks at time 0. The caller releases it with tr_wake_close. */
tr_status tr_wake_open(tr_wake *wake, int ranks);
void tr_wake_close(tr_wake *wake);

static inline int tr_wake_first(const tr_wake *wake) {
    return wake->tree[1];
}

static inline void tr_wake_set(tr_wake *wake, int rank, double time) {
    const double *at = wake->time;
    wake->time[rank] = time;
    for (int k = (wake->leaves + rank) / 2; k > 0; k /= 2) {
        const int *of = &wake->tree[2 * k];
        wake->tree[k] = of[at[of[1]] < at[of[0]]];
    }
}
