#include "train/gathers.h"

#include "base/memory.h"
#include "train/store.h"

#include <stdlib.h>

/* The portions that one group gathers. */
typedef struct gather {
    tr_group *group;
    tr_gather_range *range; /* [ranges] */
    size_t ranges, capacity;
    int64_t ticket;
} gather;

struct tr_gathers {
    gather *gather; /* [count] */
    size_t count, capacity;
};

static tr_status gather_of(tr_gathers *g, tr_group *group, gather **out) {
    for (size_t i = 0; i < g->count; i++)
        if (g->gather[i].group == group) {
            *out = &g->gather[i];
            return TR_OK;
        }
    TR_TRY(tr_grow(&g->gather, &g->capacity, g->count + 1, sizeof *g->gather));
    *out = &g->gather[g->count++];
    **out = (gather){.group = group};
    return TR_OK;
}

tr_status tr_gathers_create(tr_gathers **out) {
    return tr_calloc(1, sizeof **out, out);
}

tr_status tr_gathers_add(tr_gathers *g, const tr_store *store, const tr_store_slot *slot,
                         void *first, int64_t unit, size_t bytes) {
    const int owners = tr_mesh_part_size(&slot->layout.owners);
    gather *to = NULL;
    TR_TRY(gather_of(g, slot->owners, &to));
    for (int r = 0; r < owners; r++) {
        const tr_range portion = tr_param_portion_of(slot->param, store->divided, r);
        if (portion.extent == 0) continue;
        TR_TRY(tr_grow(&to->range, &to->capacity, to->ranges + 1, sizeof *to->range));
        to->range[to->ranges++] =
            (tr_gather_range){.data = (char *)first + (size_t)(portion.begin / unit) * bytes,
                              .bytes = (size_t)((portion.extent + unit - 1) / unit) * bytes,
                              .rank = r};
    }
    return TR_OK;
}

void tr_gathers_destroy(tr_gathers *g) {
    if (!g) return;
    for (size_t i = 0; i < g->count; i++) free(g->gather[i].range);
    free(g->gather);
    free(g);
}

tr_status tr_gathers_start(tr_gathers *g, tr_stream *stream) {
    for (size_t i = 0; i < g->count; i++)
        TR_TRY(tr_group_gather(g->gather[i].group, stream, g->gather[i].range,
                               (int)g->gather[i].ranges, &g->gather[i].ticket));
    return TR_OK;
}

tr_status tr_gathers_wait(tr_gathers *g, tr_stream *stream) {
    for (size_t i = 0; i < g->count; i++)
        TR_TRY(tr_group_wait(g->gather[i].group, stream, g->gather[i].ticket));
    return TR_OK;
}

tr_status tr_gathers_run(tr_gathers *g, tr_stream *stream) {
    TR_TRY(tr_gathers_start(g, stream));
    return tr_gathers_wait(g, stream);
}
