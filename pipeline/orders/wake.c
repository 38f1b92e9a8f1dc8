#include "pipeline/orders/wake.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

tr_status tr_wake_open(tr_wake *w, int ranks) {
    for (w->leaves = 2; w->leaves < ranks;) w->leaves *= 2;
    TR_TRY(tr_calloc((size_t)w->leaves, sizeof *w->time, &w->time));
    TR_TRY(tr_calloc(2 * (size_t)w->leaves, sizeof *w->tree, &w->tree));
    for (int k = 0; k < w->leaves; k++) {
        w->time[k] = k < ranks ? 0 : INFINITY;
        w->tree[w->leaves + k] = k;
    }
    for (int k = w->leaves - 1; k > 0; k--)
        w->tree[k] = w->tree[2 * k]; /* all equal: the lowest rank */
    return TR_OK;
}

void tr_wake_close(tr_wake *w) {
    free(w->tree);
    free(w->time);
}
