/* A large sum runs in pieces, one after the other on the group's stream. The landing buffer has a
 * row for each member. A sum that travels in BF16 is rounded to the buffer's second half first,
 * where its messages come from, and rows land in the first. */
#include "comm/nccl_sums.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "comm/nccl_library.h"
#include "comm/rounds.h"
#include "comm/scatter_walk.h"
#include "device/op.h"

#include <stdlib.h>
#include <string.h>

/* Rows and parts have multiples of this, so that kernels move whole packs of 16 bytes. */
enum { ALIGN_ELEMENTS = 64 };

struct tr_nccl_sums {
    tr_nccl_comm *comm;
    tr_device *device;
    int n, rank;
    unsigned char *land; /* [bytes] */
    size_t bytes;
    tr_scatter_cursor *cursor; /* [n] */
    /* The operators of all sizes so far, which are few: steps repeat them. */
    tr_op **op; /* [ops] */
    size_t ops, capacity;
};

/* How a sum travels. */
typedef struct wire {
    tr_dtype held, sent; /* types of the caller's elements, and of messages */
    size_t held_bytes, sent_bytes;
    bool packs;          /* the two differ */
    unsigned char *pack; /* [n][room] rounded summands; packs only */
    int64_t room;        /* elements of a row */
} wire;

static wire wire_of(const tr_nccl_sums *s, tr_dtype dtype, tr_reduce op) {
    wire w = {.held = dtype, .sent = tr_reduce_wire(op, dtype)};
    w.held_bytes = tr_dtype_size(w.held);
    w.sent_bytes = tr_dtype_size(w.sent);
    w.packs = w.held != w.sent;
    const size_t bytes = w.packs ? s->bytes / 2 : s->bytes;
    w.pack = s->land + bytes;
    w.room = (int64_t)(bytes / w.sent_bytes) / s->n / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    return w;
}

int tr_nccl_type(tr_dtype dtype) {
    switch (dtype) {
    case TR_F32: return ncclFloat32;
    case TR_F64: return ncclFloat64;
    case TR_F16: return ncclFloat16;
    default: return ncclBfloat16;
    }
}

/* --- operators -------------------------------------------------------------------------------- */

/* Returns the operator of this description, which it prepares at first. */
static tr_status find_op(tr_nccl_sums *s, const tr_op_desc *desc, tr_op **out) {
    for (size_t i = 0; i < s->ops; i++) {
        const tr_rows_desc *a = &s->op[i]->desc.rows, *b = &desc->rows;
        if (s->op[i]->desc.kind == desc->kind && a->width == b->width && a->dtype == b->dtype &&
            a->to == b->to) {
            *out = s->op[i];
            return TR_OK;
        }
    }
    TR_TRY(tr_grow(&s->op, &s->capacity, s->ops + 1, sizeof *s->op));
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = s->device}, desc, out));
    s->op[s->ops++] = *out;
    return TR_OK;
}

static tr_status cast(tr_nccl_sums *s, tr_dtype from, tr_dtype to, int64_t count, void *x,
                      void *y) {
    const tr_op_desc desc = {.kind = TR_OP_CAST,
                             .rows = {.rows = 1, .width = count, .dtype = from, .to = to}};
    tr_op *op;
    TR_TRY(find_op(s, &desc, &op));
    return tr_op_run(op, s->comm->stream,
                     &(tr_op_args){.t = {[TR_CAST_X] = tr_tensor_matrix(x, from, 1, count),
                                         [TR_CAST_Y] = tr_tensor_matrix(y, to, 1, count)}});
}

/* Adds the n rows of `count` elements in the landing buffer. */
static tr_status add_rows(tr_nccl_sums *s, tr_dtype dtype, int64_t count, void *to) {
    const tr_op_desc desc = {.kind = TR_OP_ADD_ROWS,
                             .rows = {.rows = s->n, .width = count, .dtype = dtype, .to = dtype}};
    tr_op *op;
    TR_TRY(find_op(s, &desc, &op));
    return tr_op_run(
        op, s->comm->stream,
        &(tr_op_args){.t = {[TR_ADD_ROWS_X] = tr_tensor_matrix(s->land, dtype, s->n, count),
                            [TR_ADD_ROWS_Y] = tr_tensor_vector(to, dtype, count)}});
}

/* --- messages of all members to all others, in one group of NCCL's calls ---------------------- */

typedef struct exchange {
    const tr_nccl_sums *sums;
    tr_dtype type;
    ncclResult_t result;
} exchange;

static exchange begin_exchange(const tr_nccl_sums *s, tr_dtype type) {
    tr_nccl_begin(s->comm, "all_to_all");
    return (exchange){.sums = s, .type = type, .result = ncclGroupStart()};
}

static void send(exchange *x, int to, const void *data, int64_t count) {
    const tr_nccl_comm *comm = x->sums->comm;
    if (x->result == ncclSuccess && count > 0)
        x->result = ncclSend(data, (size_t)count, (ncclDataType_t)tr_nccl_type(x->type), to,
                             comm->handle, tr_stream_native(comm->stream));
}

static void receive(exchange *x, int from, void *data, int64_t count) {
    const tr_nccl_comm *comm = x->sums->comm;
    if (x->result == ncclSuccess && count > 0)
        x->result = ncclRecv(data, (size_t)count, (ncclDataType_t)tr_nccl_type(x->type), from,
                             comm->handle, tr_stream_native(comm->stream));
}

static tr_status end_exchange(const exchange *x) {
    const ncclResult_t ended = ncclGroupEnd();
    return tr_nccl_end(x->sums->comm, (int)(x->result == ncclSuccess ? ended : x->result));
}

/* --- sums of whole buffers -------------------------------------------------------------------- */

/* The elements of a piece that a member adds. */
typedef struct part {
    int64_t begin, count;
} part;

static part part_of(const tr_nccl_sums *s, int64_t count, int member) {
    const int64_t even = (count + s->n - 1) / s->n;
    const int64_t width = (even + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    const int64_t begin = tr_min_i64(member * width, count);
    return (part){begin, tr_min_i64(begin + width, count) - begin};
}

/* Sums a piece: its summands, and then its sum, are at `data` as messages have them. */
static tr_status reduce_sent(tr_nccl_sums *s, const wire *w, unsigned char *data, int64_t count) {
    const part own = part_of(s, count, s->rank);
    const size_t e = w->sent_bytes, row = (size_t)own.count * e;
    exchange x = begin_exchange(s, w->sent);
    for (int r = 0; r < s->n; r++) {
        const part of = part_of(s, count, r);
        if (r == s->rank) continue;
        send(&x, r, data + (size_t)of.begin * e, of.count);
        receive(&x, r, s->land + (size_t)r * row, own.count);
    }
    TR_TRY(end_exchange(&x));
    if (own.count > 0) {
        unsigned char *mine = data + (size_t)own.begin * e;
        TR_TRY(tr_stream_copy(s->comm->stream, s->land + (size_t)s->rank * row, mine, row));
        TR_TRY(add_rows(s, w->sent, own.count, mine));
    }
    x = begin_exchange(s, w->sent);
    for (int r = 0; r < s->n; r++) {
        const part of = part_of(s, count, r);
        if (r == s->rank) continue;
        send(&x, r, data + (size_t)own.begin * e, own.count);
        receive(&x, r, data + (size_t)of.begin * e, of.count);
    }
    return end_exchange(&x);
}

tr_status tr_nccl_sums_reduce(tr_nccl_sums *s, void *buffer, int64_t count, tr_dtype dtype,
                              tr_reduce op) {
    const wire w = wire_of(s, dtype, op);
    for (int64_t at = 0, most = s->n * w.room; at < count; at += most) {
        const int64_t n = tr_min_i64(most, count - at);
        unsigned char *held = (unsigned char *)buffer + (size_t)at * w.held_bytes;
        if (w.packs) TR_TRY(cast(s, w.held, w.sent, n, held, w.pack));
        TR_TRY(reduce_sent(s, &w, w.packs ? w.pack : held, n));
        if (w.packs) TR_TRY(cast(s, w.sent, w.held, n, w.pack, held));
    }
    return TR_OK;
}

/* --- sums of parts ---------------------------------------------------------------------------- */

tr_status tr_nccl_sums_scatter(tr_nccl_sums *s, void *whole, void *part_, int64_t count,
                               tr_dtype dtype) {
    const wire w = wire_of(s, dtype, TR_REDUCE_SUM);
    const unsigned char *from = whole;
    for (int64_t at = 0; at < count; at += w.room) {
        const int64_t n = tr_min_i64(w.room, count - at);
        const size_t e = w.sent_bytes, row = (size_t)n * e;
        exchange x = begin_exchange(s, w.sent);
        for (int r = 0; r < s->n; r++) {
            if (r == s->rank) continue;
            send(&x, r, from + (size_t)(r * count + at) * e, n);
            receive(&x, r, s->land + (size_t)r * row, n);
        }
        TR_TRY(end_exchange(&x));
        TR_TRY(tr_stream_copy(s->comm->stream, s->land + (size_t)s->rank * row,
                              from + (size_t)(s->rank * count + at) * e, row));
        TR_TRY(add_rows(s, w.sent, n, (unsigned char *)part_ + (size_t)at * e));
    }
    return TR_OK;
}

/* --- sums of ranges --------------------------------------------------------------------------- */

/* A reduction of ranges. */
typedef struct scatter {
    tr_nccl_sums *sums;
    wire wire;
    const tr_scatter_range *range; /* [ranges] */
    int ranges, run;
} scatter;

/* Begins a walk over what `member` gets in the current round. */
static tr_scatter_walk walk_of(const scatter *c, int member) {
    const int leader = member - member % c->run;
    return (tr_scatter_walk){.range = c->range,
                             .ranges = c->ranges,
                             .leader = leader,
                             .room = c->wire.room,
                             .at = c->sums->cursor[leader]};
}

static bool next(tr_scatter_walk *walk, tr_scatter_walk_piece *out) {
    return tr_scatter_walk_next(walk, TR_ROUND_PIECES, out);
}

/* Returns where the caller has a piece. */
static unsigned char *held_of(const scatter *c, const tr_scatter_walk_piece *p) {
    return (unsigned char *)c->range[p->range].data + (size_t)p->begin * c->wire.held_bytes;
}

/* Returns where the messages of a piece that the members of `leader` get come from. */
static unsigned char *sent_of(const scatter *c, int leader, const tr_scatter_walk_piece *p) {
    if (!c->wire.packs) return held_of(c, p);
    return c->wire.pack + (size_t)(leader * c->wire.room + p->place) * c->wire.sent_bytes;
}

/* Returns where a piece of this rank's lands from a member, in a row of `used` elements. */
static unsigned char *landing_of(const scatter *c, int member, int64_t used,
                                 const tr_scatter_walk_piece *p) {
    return c->sums->land + (size_t)(member * used + p->place) * c->wire.sent_bytes;
}

/* Rounds the round's summands to BF16. */
static tr_status pack(const scatter *c) {
    tr_scatter_walk_piece p;
    for (int leader = 0; leader < c->sums->n; leader += c->run)
        for (tr_scatter_walk w = walk_of(c, leader); next(&w, &p);)
            TR_TRY(cast(c->sums, c->wire.held, c->wire.sent, p.count, held_of(c, &p),
                        sent_of(c, leader, &p)));
    return TR_OK;
}

static tr_status exchange_pieces(const scatter *c, int64_t used) {
    const tr_nccl_sums *s = c->sums;
    tr_scatter_walk_piece p;
    exchange x = begin_exchange(s, c->wire.sent);
    for (int r = 0; r < s->n; r++) {
        if (r == s->rank) continue;
        for (tr_scatter_walk w = walk_of(c, r); next(&w, &p);)
            send(&x, r, sent_of(c, w.leader, &p), p.count);
        for (tr_scatter_walk w = walk_of(c, s->rank); next(&w, &p);)
            receive(&x, r, landing_of(c, r, used, &p), p.count);
    }
    return end_exchange(&x);
}

/* Adds what this rank gets: its own summands become a row, too, and the sum the first row. */
static tr_status add_pieces(const scatter *c, int64_t used) {
    tr_nccl_sums *s = c->sums;
    const wire *w = &c->wire;
    tr_stream *stream = s->comm->stream;
    tr_scatter_walk_piece p;
    for (tr_scatter_walk k = walk_of(c, s->rank); next(&k, &p);)
        TR_TRY(tr_stream_copy(stream, landing_of(c, s->rank, used, &p), sent_of(c, k.leader, &p),
                              (size_t)p.count * w->sent_bytes));
    TR_TRY(add_rows(s, w->sent, used, s->land));
    for (tr_scatter_walk k = walk_of(c, s->rank); next(&k, &p);) {
        unsigned char *sum = landing_of(c, 0, used, &p), *to = held_of(c, &p);
        if (w->packs) TR_TRY(cast(s, w->sent, w->held, p.count, sum, to));
        else TR_TRY(tr_stream_copy(stream, to, sum, (size_t)p.count * w->held_bytes));
    }
    return TR_OK;
}

/* Continues after the round; returns false when it was the last one. */
static bool advance(const scatter *c) {
    bool more = false;
    for (int leader = 0; leader < c->sums->n; leader += c->run)
        more |= tr_scatter_walk_end_round(walk_of(c, leader), TR_ROUND_PIECES,
                                          &c->sums->cursor[leader]);
    return more;
}

tr_status tr_nccl_sums_ranges(tr_nccl_sums *s, const tr_scatter_range *range, int count,
                              tr_dtype dtype, tr_reduce op) {
    const scatter c = {.sums = s,
                       .wire = wire_of(s, dtype, op),
                       .range = range,
                       .ranges = count,
                       .run = range[0].ranks};
    memset(s->cursor, 0, (size_t)s->n * sizeof *s->cursor);
    do {
        tr_scatter_walk_piece p;
        tr_scatter_walk mine = walk_of(&c, s->rank);
        while (next(&mine, &p)) continue;
        if (c.wire.packs) TR_TRY(pack(&c));
        TR_TRY(exchange_pieces(&c, mine.used));
        if (mine.used > 0) TR_TRY(add_pieces(&c, mine.used));
    } while (advance(&c));
    return TR_OK;
}

/* --- gathers of sums that travel in BF16 ------------------------------------------------------ */

/* A walk over pieces of ranges that fit the landing buffer, as BF16: the next range and its next
 * element, and the elements of the buffer that are in use. */
typedef struct gather_walk {
    tr_nccl_sums *sums;
    const tr_gather_range *range; /* [ranges] */
    int ranges, at;
    int64_t element, used;
} gather_walk;

typedef struct gather_piece {
    void *held, *sent; /* FP32, and where it travels */
    int64_t count;
    int rank;
} gather_piece;

/* Returns the next piece, or false after the last one that fits. */
static bool next_gathered(gather_walk *w, gather_piece *out) {
    const int64_t room = (int64_t)(w->sums->bytes / sizeof(uint16_t)) - w->used;
    while (w->at < w->ranges && w->element == (int64_t)(w->range[w->at].bytes / sizeof(float))) {
        w->at++;
        w->element = 0;
    }
    if (w->at == w->ranges || room <= 0) return false;
    const tr_gather_range *r = &w->range[w->at];
    const int64_t left = (int64_t)(r->bytes / sizeof(float)) - w->element;
    *out = (gather_piece){.held = (float *)r->data + w->element,
                          .sent = (uint16_t *)(void *)w->sums->land + w->used,
                          .count = tr_min_i64(left, room),
                          .rank = r->rank};
    w->element += out->count;
    w->used += (out->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
    return true;
}

/* Casts the round's pieces of this member to BF16, or those of the other members back. */
static tr_status cast_gathered(gather_walk w, bool own) {
    gather_piece p;
    while (next_gathered(&w, &p)) {
        if ((p.rank == w.sums->rank) != own) continue;
        if (own) TR_TRY(cast(w.sums, TR_F32, TR_BF16, p.count, p.held, p.sent));
        else TR_TRY(cast(w.sums, TR_BF16, TR_F32, p.count, p.sent, p.held));
    }
    return TR_OK;
}

/* Makes one call of NCCL for all pieces of a round. */
static tr_status broadcast_gathered(gather_walk *w) {
    tr_nccl_comm *comm = w->sums->comm;
    gather_piece p;
    tr_nccl_begin(comm, "all_gather");
    ncclResult_t result = ncclGroupStart();
    while (next_gathered(w, &p))
        if (result == ncclSuccess)
            result = ncclBroadcast(p.sent, p.sent, (size_t)p.count * sizeof(uint16_t), ncclInt8,
                                   p.rank, comm->handle, tr_stream_native(comm->stream));
    const ncclResult_t ended = ncclGroupEnd();
    return tr_nccl_end(comm, (int)(result == ncclSuccess ? ended : result));
}

tr_status tr_nccl_sums_gather(tr_nccl_sums *s, const tr_gather_range *range, int count) {
    gather_walk w = {.sums = s, .range = range, .ranges = count};
    while (w.at < w.ranges) {
        const gather_walk round = w;
        TR_TRY(cast_gathered(round, true));
        TR_TRY(broadcast_gathered(&w));
        TR_TRY(cast_gathered(round, false));
        w.used = 0;
    }
    return TR_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Sends a byte from every member to every other one, so that NCCL connects them now: the first
 * message of two ranks waits for both. */
static tr_status connect(tr_nccl_sums *s) {
    int64_t number;
    TR_TRY(tr_nccl_enter(s->comm, "connection", NULL));
    tr_nccl_begin(s->comm, "connection");
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < s->n; r++) {
        if (r == s->rank || result != ncclSuccess) continue;
        result = ncclSend(s->land + r, 1, ncclInt8, r, s->comm->handle,
                          tr_stream_native(s->comm->stream));
        if (result == ncclSuccess)
            result = ncclRecv(s->land + s->n + r, 1, ncclInt8, r, s->comm->handle,
                              tr_stream_native(s->comm->stream));
    }
    const ncclResult_t ended = ncclGroupEnd();
    TR_TRY(tr_nccl_end(s->comm, (int)(result == ncclSuccess ? ended : result)));
    TR_TRY(tr_nccl_leave(s->comm, &number));
    TR_TRY(tr_nccl_sync(s->comm->world, s->comm->stream, s->comm));
    s->comm->begun = s->comm->over = 0; /* so that the group's first collective is number 0 */
    return TR_OK;
}

tr_status tr_nccl_sums_open(tr_nccl_comm *comm, tr_device *device, int n, int rank, size_t bytes,
                            tr_nccl_sums **out) {
    tr_nccl_sums *s;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    *s = (tr_nccl_sums){.comm = comm, .device = device, .n = n, .rank = rank, .bytes = bytes};
    *out = s;
    TR_TRY(tr_calloc((size_t)n, sizeof *s->cursor, &s->cursor));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_TRANSFERS, bytes, (void **)&s->land));
    return connect(s);
}

void tr_nccl_sums_close(tr_nccl_sums *s) {
    if (!s) return;
    for (size_t i = 0; i < s->ops; i++) tr_op_release(s->op[i]);
    tr_device_free(s->device, s->land);
    free(s->cursor);
    free(s->op);
    free(s);
}
