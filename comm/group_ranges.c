/* Gathers of ranges over a host transport: each range is sent by the member that computed it,
 * several in one round of messages; staged, as many as the pinned buffer holds. */
#include "comm/group_host.h"

#include <string.h>

/* A walk over the pieces of the current round: the next range and its next byte, and the bytes of
 * the round before it. */
typedef struct walk {
    int range;
    size_t byte, used;
} walk;

/* A piece of a range. */
typedef struct range_piece {
    unsigned char *buffer, *data; /* where the caller has it; where messages have it */
    size_t bytes;
    int rank;
} range_piece;

static walk walk_begin(const tr_group_host *g) {
    memset(g->pieces, 0, (size_t)g->base.n * sizeof *g->pieces);
    return (walk){.range = g->range, .byte = g->byte};
}

/* Returns the next piece of the round in *out, or false after the last one. All members find the
 * same pieces. */
static bool walk_next(const tr_group_host *g, walk *w, range_piece *out) {
    const tr_collective *r = g->first;
    while (w->range < r->ranges && w->byte == r->range[w->range].bytes) {
        w->range++;
        w->byte = 0;
    }
    if (w->range == r->ranges) return false;
    const tr_gather_range *range = &r->range[w->range];
    size_t bytes = range->bytes - w->byte;
    if (g->stage && bytes > g->piece_bytes - w->used) bytes = g->piece_bytes - w->used;
    if (bytes == 0 || g->pieces[range->rank] == TR_ROUND_PIECES) return false;
    g->pieces[range->rank]++;
    *out = (range_piece){
        .buffer = (unsigned char *)range->data + w->byte, .bytes = bytes, .rank = range->rank};
    out->data = g->stage ? g->stage + w->used : out->buffer;
    w->byte += bytes;
    w->used += bytes;
    return true;
}

size_t tr_collective_ranges_sent(const tr_collective *r, size_t bytes) {
    return bytes / tr_dtype_size(r->held) * tr_dtype_size(r->dtype);
}

void tr_collective_ranges_pack(const tr_group_host *g) {
    range_piece p;
    for (walk w = walk_begin(g); walk_next(g, &w, &p);)
        if (p.rank == g->base.rank) tr_reduce_pack(p.data, (int64_t)(p.bytes / sizeof(float)));
}

void tr_collective_ranges_unpack(const tr_group_host *g) {
    range_piece p;
    for (walk w = walk_begin(g); walk_next(g, &w, &p);)
        tr_reduce_unpack(p.data, (int64_t)(p.bytes / sizeof(float)));
}

void tr_collective_ranges_post(tr_group_host *g) {
    range_piece p;
    tr_rounds_begin(g->rounds);
    for (walk w = walk_begin(g); walk_next(g, &w, &p);) {
        const size_t bytes = tr_collective_ranges_sent(g->first, p.bytes);
        if (p.rank != g->base.rank) tr_rounds_receive(g->rounds, p.rank, p.data, bytes);
    }
    for (walk w = walk_begin(g); walk_next(g, &w, &p);) {
        const size_t bytes = tr_collective_ranges_sent(g->first, p.bytes);
        for (int k = 0; k < g->base.n - 1 && p.rank == g->base.rank; k++)
            tr_rounds_send(g->rounds, tr_rounds_other(g->rounds, k), p.data, bytes);
    }
}

tr_status tr_collective_ranges_copy(tr_group_host *g, bool in) {
    range_piece p;
    for (walk w = walk_begin(g); walk_next(g, &w, &p);)
        if ((p.rank == g->base.rank) == in)
            TR_TRY(
                tr_stream_copy(g->stream, in ? p.data : p.buffer, in ? p.buffer : p.data, p.bytes));
    return TR_OK;
}

bool tr_collective_ranges_next(tr_group_host *g) {
    range_piece p;
    walk w = walk_begin(g);
    while (walk_next(g, &w, &p)) continue;
    g->range = w.range;
    g->byte = w.byte;
    w = walk_begin(g);
    return walk_next(g, &w, &p);
}
