/* Reductions of ranges over a host transport, each of which some members get. In a round each
 * member gets up to a slot of its sums, in order. The others send it their summands from where the
 * caller has them, each to a slot of scratch of its own. It adds the n values of an element in
 * group-rank order, so the bits are those of an all-reduce. */
#include "comm/group_host.h"

/* A walk over the pieces of the current round that one member gets. */
typedef struct sum_walk {
    int to, pieces;
    tr_scatter_cursor at;
    size_t used; /* bytes before the next piece */
} sum_walk;

/* A piece of a range. */
typedef struct sum_piece {
    unsigned char *buffer, *data; /* where the caller has it; where messages have it */
    size_t bytes, place;          /* place: in the slots */
} sum_piece;

static sum_walk walk_begin(const tr_group_host *g, int to) {
    return (sum_walk){.to = to, .at = g->cursor[to]};
}

/* Returns the bytes of one member's sums in a round: whole elements of all types. */
static size_t room_of(const tr_group_host *g) {
    const size_t room = g->stage ? g->piece_bytes / (size_t)g->base.n : g->slot_bytes;
    return room / sizeof(double) * sizeof(double);
}

/* Returns the next piece of the walk in *out, or false after the last one. All members find the
 * same pieces. */
static bool walk_next(const tr_group_host *g, sum_walk *w, sum_piece *out) {
    const tr_collective *r = g->first;
    for (; w->at.range < r->ranges; w->at = (tr_scatter_cursor){.range = w->at.range + 1}) {
        const tr_scatter_range *range = &r->sum[w->at.range];
        if (w->to < range->rank || w->to >= range->rank + range->ranks) continue;
        const size_t left = (size_t)range->count * tr_dtype_size(r->dtype) - w->at.byte;
        const size_t room = room_of(g), bytes = left < room - w->used ? left : room - w->used;
        if (left == 0) continue;
        if (bytes == 0 || w->pieces == TR_ROUND_PIECES) return false;
        *out = (sum_piece){
            .buffer = (unsigned char *)range->data + w->at.byte, .bytes = bytes, .place = w->used};
        out->data = g->stage ? g->stage + (size_t)w->to * room + w->used : out->buffer;
        w->pieces++;
        w->at.byte += bytes;
        w->used += bytes;
        return true;
    }
    return false;
}

void tr_collective_sums_post(tr_group_host *g) {
    const int n = g->base.n, rank = g->base.rank;
    sum_piece p;
    tr_rounds_begin(g->rounds);
    for (sum_walk w = walk_begin(g, rank); walk_next(g, &w, &p);)
        for (int r = 0; r < n; r++)
            if (r != rank)
                tr_rounds_receive(g->rounds, r, g->scratch + (size_t)r * g->slot_bytes + p.place,
                                  p.bytes);
    for (int k = 0; k < n - 1; k++) {
        const int to = tr_rounds_other(g->rounds, k);
        for (sum_walk w = walk_begin(g, to); walk_next(g, &w, &p);)
            tr_rounds_send(g->rounds, to, p.data, p.bytes);
    }
}

void tr_collective_sums_add(tr_group_host *g) {
    pthread_mutex_t *lock = &g->base.world->lock;
    const tr_collective *r = g->first;
    sum_piece p;
    g->adding = true;
    pthread_mutex_unlock(lock);
    for (sum_walk w = walk_begin(g, g->base.rank); walk_next(g, &w, &p);) {
        for (int k = 0; k < g->base.n; k++)
            g->source[k] =
                k == g->base.rank ? p.data : g->scratch + (size_t)k * g->slot_bytes + p.place;
        tr_reduce_sources(p.data, g->source, g->base.n,
                          (int64_t)(p.bytes / tr_dtype_size(r->dtype)), r->dtype, TR_REDUCE_SUM);
    }
    pthread_mutex_lock(lock);
    g->adding = false;
}

tr_status tr_collective_sums_copy(tr_group_host *g, bool in) {
    sum_piece p;
    for (int to = 0; to < g->base.n; to++)
        for (sum_walk w = walk_begin(g, to); (in || to == g->base.rank) && walk_next(g, &w, &p);)
            TR_TRY(
                tr_stream_copy(g->stream, in ? p.data : p.buffer, in ? p.buffer : p.data, p.bytes));
    return TR_OK;
}

bool tr_collective_sums_next(tr_group_host *g) {
    bool more = false;
    sum_piece p;
    for (int to = 0; to < g->base.n; to++) {
        sum_walk w = walk_begin(g, to);
        while (walk_next(g, &w, &p)) continue;
        g->cursor[to] = w.at;
        w = walk_begin(g, to);
        more |= walk_next(g, &w, &p);
    }
    return more;
}
