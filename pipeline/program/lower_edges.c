#include "base/memory.h"
#include "pipeline/program/lower_impl.h"

#include <stdlib.h>

tr_status tr_lower_edges_make(const tr_stage_table *t, tr_lower_edges *out) {
    int *first;
    TR_TRY(tr_calloc((size_t)t->stages + 2, sizeof *out->first, &out->first));
    TR_TRY(tr_calloc(2 * (size_t)t->edges, sizeof *out->edge, &out->edge));
    /* Counts are stored two places ahead, because filling moves each start by one. */
    first = out->first + 1;
    for (int e = 0; e < t->edges; e++) {
        first[t->edge[e].from + 1]++;
        first[t->edge[e].to + 1]++;
    }
    for (int s = 1; s <= t->stages; s++) first[s] += first[s - 1];
    for (int e = 0; e < t->edges; e++) {
        out->edge[first[t->edge[e].from]++] = e;
        out->edge[first[t->edge[e].to]++] = e;
    }
    return TR_OK;
}

void tr_lower_edges_free(tr_lower_edges *edges) {
    free(edges->first);
    free(edges->edge);
}
