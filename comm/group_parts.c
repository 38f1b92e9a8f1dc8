/* Reductions of which every rank gets its part, and gathers of such parts, over a host transport:
 * the buffer has one part for each rank, all equally long. A piece of the collective is a run of
 * the same elements of every part. In a reduction rank j receives its run from all ranks and adds
 * the n values of an element in group-rank order, so the bits are those of an all-reduce. Staged,
 * the runs of a piece are next to each other in the pinned buffer. */
#include "base/minmax.h"
#include "comm/group_host.h"

int64_t tr_collective_parts_count(const tr_group_host *g) {
    const tr_collective *r = g->first;
    const int64_t rest = r->count - g->at;
    /* Without a pinned buffer the messages of a gather go from and to the caller's memory. */
    if (r->kind == TR_COLLECTIVE_PARTS && !g->stage) return rest;
    return tr_min_i64(rest,
                      (int64_t)(g->piece_bytes / tr_dtype_size(r->dtype)) / (int64_t)g->base.n);
}

/* Returns rank j's run of the piece where the caller has it. */
static unsigned char *buffer_of(const tr_group_host *g, int j) {
    const tr_collective *r = g->first;
    return r->buffer + (size_t)(j * r->count + g->at) * tr_dtype_size(r->dtype);
}

static size_t bytes_of(const tr_group_host *g) {
    return (size_t)tr_collective_parts_count(g) * tr_dtype_size(g->first->dtype);
}

/* Returns rank j's run where messages have it. */
static unsigned char *data_of(const tr_group_host *g, int j) {
    return g->stage ? g->stage + (size_t)j * bytes_of(g) : buffer_of(g, j);
}

void tr_collective_parts_post(tr_group_host *g) {
    const bool sums = g->first->kind == TR_COLLECTIVE_SCATTER;
    const size_t bytes = bytes_of(g);
    const int rank = g->base.rank;
    tr_rounds_begin(g->rounds);
    for (int j = 0; j < g->base.n; j++) {
        unsigned char *slot = sums ? g->scratch + (size_t)j * g->slot_bytes : data_of(g, j);
        g->source[j] = j == rank ? data_of(g, rank) : slot;
        if (j != rank) tr_rounds_receive(g->rounds, j, slot, bytes);
    }
    for (int k = 0; k < g->base.n - 1; k++) {
        const int to = tr_rounds_other(g->rounds, k);
        tr_rounds_send(g->rounds, to, data_of(g, sums ? to : rank), bytes);
    }
}

unsigned char *tr_collective_parts_sum(const tr_group_host *g) {
    const tr_collective *r = g->first;
    return g->stage ? data_of(g, g->base.rank) : r->part + (size_t)g->at * tr_dtype_size(r->dtype);
}

tr_status tr_collective_parts_copy(tr_group_host *g, bool in) {
    const tr_collective *r = g->first;
    const bool sums = r->kind == TR_COLLECTIVE_SCATTER;
    const size_t bytes = bytes_of(g);
    const int rank = g->base.rank;
    if (sums && !in)
        return tr_stream_copy(g->stream, r->part + (size_t)g->at * tr_dtype_size(r->dtype),
                              data_of(g, rank), bytes);
    for (int j = 0; j < g->base.n; j++) {
        if (!sums && (j == rank) != in) continue;
        TR_TRY(tr_stream_copy(g->stream, in ? data_of(g, j) : buffer_of(g, j),
                              in ? buffer_of(g, j) : data_of(g, j), bytes));
    }
    return TR_OK;
}
