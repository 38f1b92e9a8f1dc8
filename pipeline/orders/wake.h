/* When each rank looks at its work again: the earliest first, of equal ones the lower rank. */
#pragma once

#include "base/status.h"

/* A tournament: node k of the tree has the earlier of nodes 2k and 2k + 1; the leaves are the
 * ranks. No branch depends on the times, which no processor could predict. */
typedef struct tr_wake {
    int leaves;
    double *time; /* [leaves]: INFINITY: not known */
    int *tree;    /* [2 leaves] */
} tr_wake;

/* All ranks at time 0. Release with tr_wake_close. */
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
