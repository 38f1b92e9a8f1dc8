/* Reductions of ranges over a host transport, each of which some members get. In a round each
 * member gets up to a slot of its sums, in order. The other members send it their summands from
 * where the caller has them, each to a slot of scratch of its own. It adds the n values of an
 * element in group-rank order, so the bits are those of an all-reduce. */
#include "comm/group_host.h"

/* A piece of a range. */
typedef struct sum_piece {
    unsigned char *buffer, *data; /* where the caller has it; where messages have it */
    int64_t count;
    size_t held, bytes, place; /* bytes of it for the caller and in messages; place: in the slots */
} sum_piece;

static int run_of(const tr_group_host *g) {
    return g->first->sum[0].ranks;
}

static int leader_of(const tr_group_host *g, int member) {
    return member - member % run_of(g);
}

/* Returns the bytes of the pinned buffer that one member's sums in a round have. */
static size_t stage_room(const tr_group_host *g) {
    return g->piece_bytes / (size_t)g->base.n / sizeof(double) * sizeof(double);
}

/* Returns the elements of one member's sums in a round. */
static int64_t room_of(const tr_group_host *g) {
    const tr_collective *r = g->first;
    return (int64_t)(g->stage ? stage_room(g) / tr_dtype_size(r->held)
                              : g->slot_bytes / tr_dtype_size(r->dtype));
}

static tr_scatter_walk walk_begin(const tr_group_host *g, int member) {
    const int leader = leader_of(g, member);
    return (tr_scatter_walk){.range = g->first->sum,
                             .ranges = g->first->ranges,
                             .leader = leader,
                             .room = room_of(g),
                             .at = g->cursor[leader]};
}

/* Returns the next piece of the walk in *out, or false after the last one. */
static bool walk_next(const tr_group_host *g, tr_scatter_walk *w, sum_piece *out) {
    const tr_collective *r = g->first;
    const size_t held = tr_dtype_size(r->held), element = tr_dtype_size(r->dtype);
    tr_scatter_walk_piece p;
    if (!tr_scatter_walk_next(w, TR_ROUND_PIECES, &p)) return false;
    *out = (sum_piece){.buffer = (unsigned char *)r->sum[p.range].data + (size_t)p.begin * held,
                       .count = p.count,
                       .held = (size_t)p.count * held,
                       .bytes = (size_t)p.count * element,
                       .place = (size_t)p.place * element};
    out->data = out->buffer;
    if (g->stage) out->data = g->stage + (size_t)w->leader * stage_room(g) + (size_t)p.place * held;
    return true;
}

void tr_collective_sums_pack(const tr_group_host *g) {
    sum_piece p;
    for (int to = 0; to < g->base.n; to += run_of(g))
        for (tr_scatter_walk w = walk_begin(g, to); walk_next(g, &w, &p);)
            tr_reduce_pack(p.data, p.count);
}

void tr_collective_sums_post(tr_group_host *g) {
    const int n = g->base.n, rank = g->base.rank;
    sum_piece p;
    tr_rounds_begin(g->rounds);
    for (tr_scatter_walk w = walk_begin(g, rank); walk_next(g, &w, &p);)
        for (int r = 0; r < n; r++)
            if (r != rank)
                tr_rounds_receive(g->rounds, r, g->scratch + (size_t)r * g->slot_bytes + p.place,
                                  p.bytes);
    for (int k = 0; k < n - 1; k++) {
        const int to = tr_rounds_other(g->rounds, k);
        for (tr_scatter_walk w = walk_begin(g, to); walk_next(g, &w, &p);)
            tr_rounds_send(g->rounds, to, p.data, p.bytes);
    }
}

void tr_collective_sums_add(const tr_group_host *g) {
    const tr_collective *r = g->first;
    sum_piece p;
    for (tr_scatter_walk w = walk_begin(g, g->base.rank); walk_next(g, &w, &p);) {
        for (int k = 0; k < g->base.n; k++)
            g->source[k] =
                k == g->base.rank ? p.data : g->scratch + (size_t)k * g->slot_bytes + p.place;
        tr_reduce_sources(p.data, g->source, g->base.n, p.count, r->dtype, TR_REDUCE_SUM);
        if (r->held != r->dtype) tr_reduce_unpack(p.data, p.count);
    }
}

tr_status tr_collective_sums_copy(tr_group_host *g, bool in) {
    const int run = run_of(g), own = leader_of(g, g->base.rank);
    sum_piece p;
    for (int to = in ? 0 : own; to < (in ? g->base.n : own + 1); to += run)
        for (tr_scatter_walk w = walk_begin(g, to); walk_next(g, &w, &p);)
            TR_TRY(
                tr_stream_copy(g->stream, in ? p.data : p.buffer, in ? p.buffer : p.data, p.held));
    return TR_OK;
}

bool tr_collective_sums_next(tr_group_host *g) {
    bool more = false;
    for (int to = 0; to < g->base.n; to += run_of(g))
        more |= tr_scatter_walk_end_round(walk_begin(g, to), TR_ROUND_PIECES, &g->cursor[to]);
    return more;
}
