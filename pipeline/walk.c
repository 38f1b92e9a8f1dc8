#include "pipeline/walk.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

tr_status tr_walk_open(tr_walk *w, int ranks, const int *count) {
    w->ranks = ranks;
    TR_TRY(tr_calloc((size_t)ranks, sizeof *w->count, &w->count));
    if (count) memcpy(w->count, count, (size_t)ranks * sizeof *count);
    return tr_calloc((size_t)ranks, sizeof *w->next, &w->next);
}

void tr_walk_close(tr_walk *w) {
    free(w->next);
    free(w->count);
}

tr_status tr_walk_advance(tr_walk *w, bool *ended) {
    for (bool moved = true; moved;) {
        moved = false;
        *ended = true;
        for (int r = 0; r < w->ranks; r++) {
            int done = 0;
            if (w->next[r] == w->count[r]) continue;
            TR_TRY(w->step(w->context, r, w->next[r], &done));
            w->next[r] += done;
            moved = moved || done;
            *ended = *ended && w->next[r] == w->count[r];
        }
    }
    return TR_OK;
}

static int blocked(const tr_walk *w, int rank, char *item, char *need) {
    return w->blocked(w->context, rank, w->next[rank], item, need);
}

/* Fails with the cycle of waits. Follows the waits from rank to rank: after as many as there are
 * ranks it is on the cycle, unless the next rank has ended. */
static tr_status fail(const tr_walk *w, int rank, int *stuck) {
    char text[768] = "", item[TR_WALK_TEXT], need[TR_WALK_TEXT];
    for (int k = 0; k < w->ranks; k++) {
        int next = blocked(w, rank, item, need);
        if (w->next[next] == w->count[next]) break;
        rank = next;
    }
    int first = rank, shown = 0;
    bool ended = false;
    do {
        int next = blocked(w, rank, item, need);
        tr_text_add(text, sizeof text, "%srank %d at %s waits for %s", shown ? "; " : "", rank,
                    item, need);
        rank = next;
        ended = w->next[rank] == w->count[rank];
    } while (rank != first && !ended && ++shown < 8);
    if (ended) tr_text_add(text, sizeof text, ", and rank %d has ended", rank);
    else if (rank != first) tr_text_add(text, sizeof text, "; ...");
    if (stuck) *stuck = first;
    return TR_FAIL(TR_ERR_CONFIG, "%s cannot run to its end: %s", w->name, text);
}

tr_status tr_walk_run(tr_walk *w, int *stuck) {
    bool ended;
    TR_TRY(tr_walk_advance(w, &ended));
    for (int r = 0; r < w->ranks && !ended; r++)
        if (w->next[r] < w->count[r]) return fail(w, r, stuck);
    return TR_OK;
}
