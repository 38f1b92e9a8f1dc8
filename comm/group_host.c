/* Groups over a host transport: of host memory and, staged, of device memory, from which each piece
 * is copied to a pinned buffer and back.
 *
 * The collectives of a group run one after the other, in the order in which they were started.
 * Polls drive them: those of the progress thread while the caller computes, and those of a caller
 * that waits. An all-reduce is a reduce-scatter and an all-gather by direct exchange: group rank j
 * receives chunk j of every rank, adds the n values of an element in group-rank order, and sends
 * the result to all. A small piece takes one exchange instead of two: every rank receives all and
 * adds all, in the same order. An element's bits depend only on its n values, not on count, place,
 * piece or method. A sum that travels in BF16 is such a reduction of BF16 elements: each piece is
 * rounded in its own memory before its messages, and widened after them. */
#include "comm/group_host.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/minmax.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXCHANGE_BYTES = 4096, /* up to this size latency costs more than sending all data to all */
    STAGE_BYTES = 1 << 16  /* the smallest pinned buffer */
};

static tr_group_host *self_of(tr_group *group) {
    return (tr_group_host *)group;
}

/* --- one piece, under the lock ---------------------------------------------------------------- */

/* The current piece of the first reduction. */
typedef struct piece {
    unsigned char *buffer, *data; /* where the caller has it; where messages have it */
    int64_t count;
    size_t held, element; /* bytes of an element: the caller's, and of messages */
    bool small;
} piece;

static piece piece_of(const tr_group_host *g) {
    const tr_collective *r = g->first;
    const size_t held = tr_dtype_size(r->held), element = tr_dtype_size(r->dtype);
    const int64_t room = (int64_t)(g->piece_bytes / (g->stage ? held : element));
    piece p = {.buffer = r->buffer + (size_t)g->at * held,
               .count = tr_min_i64(r->count - g->at, room),
               .held = held,
               .element = element};
    p.data = g->stage ? g->stage : p.buffer;
    p.small = (size_t)p.count * element <= EXCHANGE_BYTES;
    return p;
}

/* Returns the first element of chunk j when `count` elements are cut into n chunks. */
static int64_t chunk_begin(const tr_group_host *g, int j, int64_t count) {
    int64_t base = count / g->base.n, rest = count % g->base.n;
    return j * base + (j < rest ? j : rest);
}

/* Returns chunk j of the piece and its bytes. */
static unsigned char *chunk_of(const tr_group_host *g, const piece *p, int j, size_t *bytes) {
    int64_t begin = chunk_begin(g, j, p->count);
    *bytes = (size_t)(chunk_begin(g, j + 1, p->count) - begin) * p->element;
    return p->data + (size_t)begin * p->element;
}

/* Returns the elements that this rank adds, and their bytes: all of a small piece, else its
 * chunk. */
static unsigned char *own_of(const tr_group_host *g, const piece *p, size_t *bytes) {
    if (!p->small) return chunk_of(g, p, g->base.rank, bytes);
    *bytes = (size_t)p->count * p->element;
    return p->data;
}

/* Posts the messages of the elements that this rank adds, and of those that the other ranks do. */
static void post_exchange(tr_group_host *g) {
    const piece p = piece_of(g);
    size_t bytes;
    unsigned char *own = own_of(g, &p, &bytes);
    tr_rounds_begin(g->rounds);
    for (int r = 0; r < g->base.n; r++) {
        unsigned char *slot = g->scratch + (size_t)r * g->slot_bytes;
        g->source[r] = r == g->base.rank ? own : slot;
        if (r != g->base.rank) tr_rounds_receive(g->rounds, r, slot, bytes);
    }
    for (int k = 0; k < g->base.n - 1; k++) {
        int to = tr_rounds_other(g->rounds, k);
        unsigned char *part = p.small ? own : chunk_of(g, &p, to, &bytes);
        tr_rounds_send(g->rounds, to, part, bytes);
    }
}

static void post_gather(tr_group_host *g) {
    const piece p = piece_of(g);
    size_t bytes;
    tr_rounds_begin(g->rounds);
    for (int r = 0; r < g->base.n; r++) {
        unsigned char *chunk = chunk_of(g, &p, r, &bytes);
        if (r != g->base.rank) tr_rounds_receive(g->rounds, r, chunk, bytes);
    }
    unsigned char *own = chunk_of(g, &p, g->base.rank, &bytes);
    for (int k = 0; k < g->base.n - 1; k++)
        tr_rounds_send(g->rounds, tr_rounds_other(g->rounds, k), own, bytes);
    g->phase = TR_COLLECTIVE_PHASE_GATHER;
}

/* Returns the elements of the current piece that this rank adds, where their sum goes, and their
 * number. */
static unsigned char *sum_of(const tr_group_host *g, int64_t *count) {
    if (g->first->kind == TR_COLLECTIVE_SCATTER) {
        *count = tr_collective_parts_count(g);
        return tr_collective_parts_sum(g);
    }
    const piece p = piece_of(g);
    size_t bytes;
    unsigned char *own = own_of(g, &p, &bytes);
    *count = (int64_t)(bytes / p.element);
    return own;
}

/* Adds this rank's elements. */
static void add(const tr_group_host *g) {
    const tr_collective *r = g->first;
    int64_t count;
    unsigned char *sum = sum_of(g, &count);
    tr_reduce_sources(sum, g->source, g->base.n, count, r->dtype, r->op);
}

/* --- arithmetic, without the lock ------------------------------------------------------------- */

/* Computes without the lock: it takes long, and other calls need the lock. */
static void compute(tr_group_host *g, void (*work)(const tr_group_host *g)) {
    pthread_mutex_t *lock = &g->base.world->lock;
    g->computing = true;
    pthread_mutex_unlock(lock);
    work(g);
    pthread_mutex_lock(lock);
    g->computing = false;
}

static void pack_piece(const tr_group_host *g) {
    const piece p = piece_of(g);
    tr_reduce_pack(p.data, p.count);
}

static void unpack_piece(const tr_group_host *g) {
    const piece p = piece_of(g);
    tr_reduce_unpack(p.data, p.count);
}

/* Returns the function that rounds what this rank sends first. */
static void (*pack_of(const tr_group_host *g))(const tr_group_host *g) {
    if (g->first->kind == TR_COLLECTIVE_SUMS) return tr_collective_sums_pack;
    return g->first->kind == TR_COLLECTIVE_RANGES ? tr_collective_ranges_pack : pack_piece;
}

/* Returns true when messages have a type other than the caller's. */
static bool is_packed(const tr_group_host *g) {
    return g->first->held != g->first->dtype;
}

/* --- a collective's turn, under the lock ------------------------------------------------------ */

static bool has_parts(const tr_group_host *g) {
    return g->first->kind == TR_COLLECTIVE_SCATTER || g->first->kind == TR_COLLECTIVE_PARTS;
}

static tr_status copy_piece(tr_group_host *g, bool in) {
    if (g->first->kind == TR_COLLECTIVE_RANGES) return tr_collective_ranges_copy(g, in);
    if (has_parts(g)) return tr_collective_parts_copy(g, in);
    if (g->first->kind == TR_COLLECTIVE_SUMS) return tr_collective_sums_copy(g, in);
    const piece p = piece_of(g);
    return tr_stream_copy(g->stream, in ? p.data : p.buffer, in ? p.buffer : p.data,
                          (size_t)p.count * p.held);
}

static void copy(tr_group_host *g, bool in) {
    tr_status status = copy_piece(g, in);
    if (status == TR_OK) status = tr_event_record(g->copied, g->stream);
    if (status != TR_OK) (void)tr_world_fail(g->base.world, status, tr_error_message());
    g->phase = in ? TR_COLLECTIVE_PHASE_COPY_IN : TR_COLLECTIVE_PHASE_COPY_OUT;
}

static void post(tr_group_host *g) {
    const bool sums = g->first->kind == TR_COLLECTIVE_SUMS;
    if (is_packed(g)) compute(g, pack_of(g));
    if (g->first->kind == TR_COLLECTIVE_RANGES) {
        tr_collective_ranges_post(g);
        g->phase = TR_COLLECTIVE_PHASE_RANGES;
    } else if (sums) {
        tr_collective_sums_post(g);
        g->phase = TR_COLLECTIVE_PHASE_SUMS;
    } else if (has_parts(g)) {
        tr_collective_parts_post(g);
        g->phase = g->first->kind == TR_COLLECTIVE_SCATTER ? TR_COLLECTIVE_PHASE_EXCHANGE
                                                           : TR_COLLECTIVE_PHASE_RANGES;
    } else {
        post_exchange(g);
        g->phase = TR_COLLECTIVE_PHASE_EXCHANGE;
    }
}

static void begin_piece(tr_group_host *g) {
    if (g->stage) copy(g, true);
    else post(g);
}

/* Returns true when the first collective has another piece. */
static bool next_piece(tr_group_host *g) {
    if (g->first->kind == TR_COLLECTIVE_RANGES) return tr_collective_ranges_next(g);
    if (g->first->kind == TR_COLLECTIVE_SUMS) return tr_collective_sums_next(g);
    g->at += has_parts(g) ? tr_collective_parts_count(g) : piece_of(g).count;
    return g->at < g->first->count;
}

/* Continues with the next piece, or the next collective. */
static void end_piece(tr_group_host *g) {
    tr_collective *r = g->first;
    if (next_piece(g)) {
        begin_piece(g);
        return;
    }
    g->first = r->next;
    if (!g->first) g->end = &g->first;
    r->next = g->free;
    g->free = r;
    g->over++;
    g->at = 0;
    g->range = 0;
    g->byte = 0;
    memset(g->cursor, 0, (size_t)g->base.n * sizeof *g->cursor);
    g->due = 0;
    g->phase = TR_COLLECTIVE_PHASE_DATA;
}

/* Ends the part of a piece that exchanges messages. */
static void end_messages(tr_group_host *g) {
    const tr_collective_kind kind = g->first->kind;
    if (is_packed(g) && kind != TR_COLLECTIVE_SUMS)
        compute(g, kind == TR_COLLECTIVE_RANGES ? tr_collective_ranges_unpack : unpack_piece);
    if (g->stage) copy(g, false);
    else end_piece(g);
}

static bool is_due(tr_group_host *g, tr_poll *poll) {
    const tr_collective *r = g->first;
    if (g->due <= 0) {
        if (!tr_event_reached(r->event) || (r->before && r->before->over <= r->ticket))
            return false;
        g->due = tr_now_s() + r->delay;
    }
    if (r->delay <= 0 || tr_now_s() >= g->due) return true;
    poll->next = tr_min_f64(poll->next, g->due);
    return false;
}

/* Takes the first collective one phase further; returns false when it must wait. */
static bool advance(tr_group_host *g, tr_poll *poll) {
    int missing;
    switch (g->phase) {
    case TR_COLLECTIVE_PHASE_DATA:
        if (!is_due(g, poll)) return false;
        begin_piece(g);
        return true;
    case TR_COLLECTIVE_PHASE_COPY_IN:
        if (!tr_event_reached(g->copied)) return false;
        post(g);
        return true;
    case TR_COLLECTIVE_PHASE_EXCHANGE:
        /* The sends must be complete, too: their chunks are overwritten afterwards. */
        if (!tr_rounds_done(g->rounds, &missing)) return false;
        compute(g, add);
        if (has_parts(g) || piece_of(g).small) end_messages(g);
        else post_gather(g);
        return true;
    case TR_COLLECTIVE_PHASE_SUMS:
        if (!tr_rounds_done(g->rounds, &missing)) return false;
        compute(g, tr_collective_sums_add);
        end_messages(g);
        return true;
    case TR_COLLECTIVE_PHASE_GATHER:
    case TR_COLLECTIVE_PHASE_RANGES:
        if (!tr_rounds_done(g->rounds, &missing)) return false;
        end_messages(g);
        return true;
    case TR_COLLECTIVE_PHASE_COPY_OUT:
        if (!tr_event_reached(g->copied)) return false;
        end_piece(g);
        return true;
    }
    return false;
}

static void host_poll(tr_group *group, tr_poll *poll) {
    tr_group_host *g = self_of(group);
    /* What this poll has found before may be old when `compute` has released the lock. */
    while (g->first && !g->computing && group->world->failure == TR_OK && advance(g, poll))
        poll->moved = poll->outstanding = true;
    if (g->first) poll->outstanding = true;
}

/* --- start and wait --------------------------------------------------------------------------- */

static tr_status take_free(tr_group_host *g, tr_stream *stream, tr_collective **out) {
    tr_world *world = g->base.world;
    pthread_mutex_lock(&world->lock);
    tr_collective *r = g->free;
    if (r) g->free = r->next;
    pthread_mutex_unlock(&world->lock);
    if (!r) { /* none in a steady state */
        TR_TRY(tr_calloc(1, sizeof *r, &r));
        tr_status status = tr_event_create(tr_stream_device(stream), &r->event);
        if (status != TR_OK) {
            free(r);
            return tr_trace_at(__FILE__, __LINE__, status);
        }
    }
    *out = r;
    return TR_OK;
}

/* Adds the collective to the group's queue. */
static tr_status enqueue(tr_group_host *g, tr_stream *stream, const tr_collective *what,
                         size_t bytes, bool drives, int64_t *ticket) {
    tr_world *world = g->base.world;
    tr_collective *r = NULL;
    tr_poll poll = {.next = INFINITY};
    double delay = world->delay ? world->delay(world->delay_context, g->base.id, bytes) : 0;
    TR_TRY(tr_world_check_stream(stream));
    TR_TRY(take_free(g, stream, &r));
    tr_status status = tr_event_record(r->event, stream);
    pthread_mutex_lock(&world->lock);
    if (status == TR_OK && world->failure != TR_OK) status = tr_world_failed(world);
    if (status != TR_OK) {
        r->next = g->free;
        g->free = r;
    } else {
        tr_event *event = r->event;
        *r = *what;
        r->event = event;
        r->delay = delay;
        r->before = g->before;
        r->ticket = g->ticket;
        g->before = NULL;
        *g->end = r;
        g->end = &r->next;
        *ticket = g->started++;
        if (g->first == r) (void)advance(g, &poll); /* posts its first messages */
        if (!drives) tr_poller_wake(world, true);
    }
    pthread_mutex_unlock(&world->lock);
    TR_TRY(status);
    return TR_OK;
}

static tr_status host_follow(tr_group *group, tr_group *before, int64_t ticket) {
    tr_group_host *g = self_of(group);
    g->before = self_of(before);
    g->ticket = ticket;
    return TR_OK;
}

static tr_status host_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                            tr_dtype dtype, tr_reduce op, bool drives, int64_t *ticket) {
    const tr_collective what = {.buffer = buffer,
                                .count = count,
                                .held = dtype,
                                .dtype = tr_reduce_wire(op, dtype),
                                .op = op == TR_REDUCE_MAX ? TR_REDUCE_MAX : TR_REDUCE_SUM};
    return enqueue(self_of(group), stream, &what, (size_t)count * tr_dtype_size(what.dtype), drives,
                   ticket);
}

static tr_status host_scatter_ranges(tr_group *group, tr_stream *stream,
                                     const tr_scatter_range *range, int count, tr_dtype dtype,
                                     tr_reduce op, int64_t *ticket) {
    const tr_collective what = {.kind = TR_COLLECTIVE_SUMS,
                                .sum = range,
                                .ranges = count,
                                .held = dtype,
                                .dtype = tr_reduce_wire(op, dtype)};
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += (size_t)range[i].count * tr_dtype_size(what.dtype);
    return enqueue(self_of(group), stream, &what, bytes, false, ticket);
}

static tr_status host_gather(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                             int count, tr_dtype held, tr_dtype sent, int64_t *ticket) {
    const tr_collective what = {
        .kind = TR_COLLECTIVE_RANGES, .range = range, .ranges = count, .held = held, .dtype = sent};
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += tr_collective_ranges_sent(&what, range[i].bytes);
    return enqueue(self_of(group), stream, &what, bytes, false, ticket);
}

static tr_status host_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                              int64_t count, tr_dtype dtype, int64_t *ticket) {
    const tr_collective what = {.kind = TR_COLLECTIVE_SCATTER,
                                .buffer = whole,
                                .part = part,
                                .count = count,
                                .held = dtype,
                                .dtype = dtype,
                                .op = TR_REDUCE_SUM};
    return enqueue(self_of(group), stream, &what, (size_t)(count * group->n) * tr_dtype_size(dtype),
                   false, ticket);
}

static tr_status host_gather_parts(tr_group *group, tr_stream *stream, void *whole, int64_t count,
                                   tr_dtype dtype, int64_t *ticket) {
    const tr_collective what = {.kind = TR_COLLECTIVE_PARTS,
                                .buffer = whole,
                                .count = count,
                                .held = dtype,
                                .dtype = dtype};
    return enqueue(self_of(group), stream, &what, (size_t)(count * group->n) * tr_dtype_size(dtype),
                   false, ticket);
}

/* Takes the memory of started collectives away from transport and device, after a failure. */
static void abandon(tr_group_host *g) {
    pthread_mutex_t *lock = &g->base.world->lock;
    pthread_mutex_lock(lock);
    while (g->computing) {
        pthread_mutex_unlock(lock);
        (void)sched_yield();
        pthread_mutex_lock(lock);
    }
    tr_rounds_cancel(g->rounds);
    pthread_mutex_unlock(lock);
    if (g->stream) (void)tr_stream_sync(g->stream);
}

static bool ready_over(tr_wait *wait) {
    const tr_group_host *g = wait->object;
    const tr_rounds *rounds = g->rounds;
    if (g->over > wait->number) return true;
    bool in_round = g->phase != TR_COLLECTIVE_PHASE_DATA &&
                    g->phase != TR_COLLECTIVE_PHASE_COPY_IN &&
                    g->phase != TR_COLLECTIVE_PHASE_COPY_OUT;
    static const char *const names[] = {[TR_COLLECTIVE_REDUCE] = "all_reduce",
                                        [TR_COLLECTIVE_RANGES] = "all_gather",
                                        [TR_COLLECTIVE_SUMS] = "reduce_scatter",
                                        [TR_COLLECTIVE_SCATTER] = "reduce_scatter",
                                        [TR_COLLECTIVE_PARTS] = "all_gather"};
    if (g->first) wait->what = names[g->first->kind];
    wait->missing =
        in_round && rounds->finished < rounds->posted ? rounds->request[rounds->finished].peer : -1;
    return false;
}

static tr_status wait_over(tr_group_host *g, int64_t number, double limit_s) {
    tr_wait wait = {.ready = ready_over,
                    .object = g,
                    .number = number,
                    .what = "all_reduce",
                    .peer = -1,
                    .missing = -1,
                    .group = g->base.id,
                    .limit_s = limit_s};
    return tr_poller_wait(g->base.world, &wait);
}

static tr_status run_wait(const tr_task *task) {
    tr_group_host *g = task->object;
    const double begin = tr_now_s();
    tr_status status = wait_over(g, task->count, 0);
    g->base.waited += tr_now_s() - begin;
    if (status == TR_OK) return TR_OK;
    abandon(g); /* buffers must not be written after this returns */
    return tr_trace_at(__FILE__, __LINE__, status);
}

static tr_status host_wait(tr_group *group, tr_stream *stream, int64_t ticket) {
    tr_group_host *g = self_of(group);
    tr_task task = {.run = run_wait, .object = g, .count = ticket};
    tr_status status = tr_world_enqueue(group->world, stream, &task);
    if (status == TR_OK) return TR_OK;
    abandon(g);
    return tr_trace_at(__FILE__, __LINE__, status);
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void release(tr_group_host *g, tr_device *device) {
    while (g->first) { /* after a failure */
        tr_collective *r = g->first;
        g->first = r->next;
        r->next = g->free;
        g->free = r;
    }
    while (g->free) {
        tr_collective *r = g->free;
        g->free = r->next;
        tr_event_destroy(r->event);
        free(r);
    }
    tr_event_destroy(g->copied);
    if (g->stage) tr_device_staging_free(device, g->stage);
    tr_stream_destroy(g->stream);
    tr_rounds_close(g->rounds);
    free(g->scratch);
    free(g->source);
    free(g->pieces);
    free(g->cursor);
    free(g);
}

/* Lets no collective of another group wait for this one, which closes. After a failure those that
 * followed collectives which have not ended never begin. */
static void leave_followers(const tr_group_host *g) {
    pthread_mutex_t *lock = &g->base.world->lock;
    pthread_mutex_lock(lock);
    for (tr_group *other = g->base.world->groups; other; other = other->next) {
        tr_group_host *o = self_of(other); /* only groups of this kind are polled */
        if (o->before == g) o->before = NULL;
        for (tr_collective *r = o->first; r; r = r->next) {
            if (r->before != g) continue;
            r->before = g->over > r->ticket ? NULL : o;
            r->ticket = INT64_MAX;
        }
    }
    pthread_mutex_unlock(lock);
}

static void host_close(tr_group *group) {
    tr_group_host *g = self_of(group);
    tr_device *device = g->stream ? tr_stream_device(g->stream) : NULL;
    if (g->started > 0) (void)wait_over(g, g->started - 1, tr_world_close_limit(group->world));
    /* After a failure waits may still be queued. */
    if (device) (void)tr_stream_sync(tr_device_compute(device));
    leave_followers(g);
    tr_group_unlist(group);
    abandon(g);
    if (!tr_world_keeps_memory(group->world)) release(g, device);
}

static const tr_group_ops host_ops = {.start = host_start,
                                      .scatter_ranges = host_scatter_ranges,
                                      .gather = host_gather,
                                      .scatter = host_scatter,
                                      .gather_parts = host_gather_parts,
                                      .wait = host_wait,
                                      .follow = host_follow,
                                      .poll = host_poll,
                                      .close = host_close};

static tr_status open_stage(tr_group_host *g, tr_device *device) {
    TR_TRY(tr_device_start_queue(device));
    TR_TRY(tr_stream_create(device, &g->stream));
    TR_TRY(tr_event_create(device, &g->copied));
    return tr_device_staging_alloc(device, g->piece_bytes, (void **)&g->stage);
}

tr_status tr_group_make_host(const tr_group_desc *desc, bool staged, tr_group **out) {
    tr_status status = TR_OK;
    tr_group_host *g;
    size_t n = (size_t)desc->n, least = staged ? STAGE_BYTES + n * TR_ALIGN : EXCHANGE_BYTES;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->base.ops = &host_ops;
    g->end = &g->first;
    g->piece_bytes = tr_align_up(desc->max_bytes > least ? desc->max_bytes : least);
    /* A chunk is at most one element larger than an even share. */
    size_t share = g->piece_bytes / n + sizeof(double);
    g->slot_bytes = tr_align_up(share > EXCHANGE_BYTES ? share : EXCHANGE_BYTES);
    TR_TRY_OUT(tr_rounds_open(desc->world, desc->ranks, desc->n, desc->id, TR_TAG_GROUP + desc->id,
                              &g->rounds));
    TR_TRY_OUT(tr_calloc(n, sizeof *g->source, &g->source));
    TR_TRY_OUT(tr_calloc(n, sizeof *g->pieces, &g->pieces));
    TR_TRY_OUT(tr_calloc(n, sizeof *g->cursor, &g->cursor));
    if (n > 1) TR_TRY_OUT(tr_calloc(n, g->slot_bytes, &g->scratch));
    if (staged) TR_TRY_OUT(open_stage(g, desc->device));
    *out = &g->base;
    return TR_OK;
out:
    release(g, desc->device);
    return status;
}
