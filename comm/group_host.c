/* Groups of host memory: rounds of messages, and blocking collectives made of rounds.
 *
 * All-reduce is a reduce-scatter and an all-gather by direct exchange: group rank j receives chunk
 * j of every rank, adds the n values of an element in group-rank order, and sends the result to
 * all. A small piece takes one exchange instead of two: every rank receives all and adds all, in
 * the same order. An element's bits depend only on its n values, not on count, place, piece or
 * method. */
#include "base/memory.h"
#include "comm/world_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    EXCHANGE_BYTES =
        4096,   /* up to this size latency costs more than sending all data to all ranks */
    BLOCK = 512 /* elements added at a time, so that accumulators stay in the first-level cache */
};

struct tr_group_host {
    tr_world *world;
    int id, rank, n, tag;
    int *ranks;
    size_t piece_bytes;     /* of a whole buffer in one round */
    size_t slot_bytes;      /* of one rank's place in scratch */
    unsigned char *scratch; /* [n][slot_bytes] */
    const void **source;    /* [n]: where each rank's part of the current chunk is */
    tr_request *request;    /* [2 (n - 1)] at most in one round */
    int posted, finished;
    const char *what;
    bool lost; /* the transport may still write to this memory, so it is not freed */
};

/* --- rounds of messages ---------------------------------------------------------------------- */

/* Posts a send or receive under the lock. A failure of the transport becomes the world's. */
static void post(tr_group_host *g, bool send, int rank, void *buffer, size_t bytes) {
    tr_world *w = g->world;
    const tr_transport_ops *ops = w->transport->ops;
    if (w->failure != TR_OK) return;
    tr_request *request = &g->request[g->posted];
    tr_status status =
        send ? ops->post_send(w->transport, g->ranks[rank], g->tag, buffer, bytes, request)
             : ops->post_recv(w->transport, g->ranks[rank], g->tag, buffer, bytes, request);
    if (status != TR_OK) (void)tr_world_fail(w, status, tr_error_message());
    else g->posted++;
}

static void post_recv(tr_group_host *g, int rank, void *buffer, size_t bytes) {
    post(g, false, rank, buffer, bytes);
}

static void post_send(tr_group_host *g, int rank, const void *buffer, size_t bytes) {
    post(g, true, rank, (void *)(uintptr_t)buffer, bytes);
}

static void round_begin(tr_group_host *g) {
    pthread_mutex_lock(&g->world->lock);
    g->posted = g->finished = 0;
}

static bool ready_round(tr_wait *wait) {
    tr_group_host *g = wait->object;
    tr_world *w = g->world;
    if (w->failure != TR_OK) return false;
    for (; g->finished < g->posted; g->finished++) {
        tr_request *request = &g->request[g->finished];
        bool done;
        tr_status status = w->transport->ops->test(w->transport, request, &done);
        if (status == TR_OK && done && request->truncated)
            status =
                TR_FAIL(TR_ERR_INTERNAL, "ranks %d and %d run different collectives in group %d",
                        w->rank, request->peer, g->id);
        if (status != TR_OK) (void)tr_world_fail(w, status, tr_error_message());
        if (status != TR_OK || !done) {
            wait->missing = request->peer;
            return false;
        }
    }
    return true;
}

/* Ends the round that round_begin began: releases the lock and waits for all its messages. */
static tr_status round_end(tr_group_host *g) {
    tr_world *w = g->world;
    pthread_mutex_unlock(&w->lock);
    tr_wait wait = {.ready = ready_round, .object = g, .what = g->what, .peer = -1, .group = g->id};
    tr_status status = tr_poller_wait(w, &wait);
    if (status == TR_OK) return TR_OK;
    /* The world has failed; buffers must not be written after this returns. */
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < g->posted; i++)
        if (!w->transport->ops->cancel(w->transport, &g->request[i])) g->lost = true;
    pthread_mutex_unlock(&w->lock);
    return tr_trace_at(__FILE__, __LINE__, status);
}

/* --- arithmetic ------------------------------------------------------------------------------ */

static inline float max_f32(float a, float b) {
    return b > a || b != b ? b : a;
}

static inline double max_f64(double a, double b) {
    return b > a || b != b ? b : a;
}

static void reduce_f32(float *to, const void *const *source, int n, int64_t count, tr_reduce op) {
    float sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, (const float *)source[0] + at, (size_t)m * sizeof *sum);
        for (int r = 1; r < n; r++) {
            const float *x = (const float *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += x[i];
            else
                for (int64_t i = 0; i < m; i++) sum[i] = max_f32(sum[i], x[i]);
        }
        memcpy(to + at, sum, (size_t)m * sizeof *sum);
    }
}

static void reduce_f64(double *to, const void *const *source, int n, int64_t count, tr_reduce op) {
    double sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, (const double *)source[0] + at, (size_t)m * sizeof *sum);
        for (int r = 1; r < n; r++) {
            const double *x = (const double *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += x[i];
            else
                for (int64_t i = 0; i < m; i++) sum[i] = max_f64(sum[i], x[i]);
        }
        memcpy(to + at, sum, (size_t)m * sizeof *sum);
    }
}

static void reduce_bf16(uint16_t *to, const void *const *source, int n, int64_t count,
                        tr_reduce op) {
    float sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        const uint16_t *first = (const uint16_t *)source[0] + at;
        for (int64_t i = 0; i < m; i++) sum[i] = tr_bf16_to_f32(first[i]);
        for (int r = 1; r < n; r++) {
            const uint16_t *x = (const uint16_t *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += tr_bf16_to_f32(x[i]);
            else
                for (int64_t i = 0; i < m; i++) sum[i] = max_f32(sum[i], tr_bf16_to_f32(x[i]));
        }
        for (int64_t i = 0; i < m; i++) to[at + i] = tr_f32_to_bf16(sum[i]);
    }
}

/* Reduces the group's g->source to to[count], in rank order; `to` may be this rank's own source. */
static void reduce(tr_group_host *g, void *to, int64_t count, tr_dtype dtype, tr_reduce op) {
    if (dtype == TR_F32) reduce_f32(to, g->source, g->n, count, op);
    else if (dtype == TR_F64) reduce_f64(to, g->source, g->n, count, op);
    else reduce_bf16(to, g->source, g->n, count, op);
}

/* --- collectives, blocking ------------------------------------------------------------------- */

static unsigned char *slot(const tr_group_host *g, int rank) {
    return g->scratch + (size_t)rank * g->slot_bytes;
}

/* Receives `bytes` of every other rank into its slot. Sets source[] to the slots, and this rank's
 * to `own`. */
static void collect(tr_group_host *g, const void *own, size_t bytes) {
    for (int r = 0; r < g->n; r++) {
        g->source[r] = r == g->rank ? own : slot(g, r);
        if (r != g->rank) post_recv(g, r, slot(g, r), bytes);
    }
}

/* Returns the k-th other rank in this rank's order of sending. It starts with the neighbour, so
 * that not all ranks send to rank 0 first. */
static int other(const tr_group_host *g, int k) {
    return (g->rank + 1 + k) % g->n;
}

/* Returns the first element of chunk j when `count` elements are cut into n chunks. */
static int64_t chunk_begin(const tr_group_host *g, int j, int64_t count) {
    int64_t base = count / g->n, rest = count % g->n;
    return j * base + (j < rest ? j : rest);
}

static tr_status all_reduce_piece(tr_group_host *g, unsigned char *buffer, int64_t count,
                                  tr_dtype dtype, tr_reduce op) {
    size_t element = tr_dtype_size(dtype), bytes = (size_t)count * element;
    if (bytes <= EXCHANGE_BYTES) {
        round_begin(g);
        collect(g, buffer, bytes);
        for (int k = 0; k < g->n - 1; k++) post_send(g, other(g, k), buffer, bytes);
        TR_TRY(round_end(g));
        reduce(g, buffer, count, dtype, op);
        return TR_OK;
    }
    int64_t begin = chunk_begin(g, g->rank, count);
    int64_t mine = chunk_begin(g, g->rank + 1, count) - begin;
    unsigned char *own = buffer + (size_t)begin * element;
    round_begin(g);
    collect(g, own, (size_t)mine * element);
    for (int k = 0; k < g->n - 1; k++) {
        int64_t at = chunk_begin(g, other(g, k), count);
        int64_t size = chunk_begin(g, other(g, k) + 1, count) - at;
        post_send(g, other(g, k), buffer + (size_t)at * element, (size_t)size * element);
    }
    /* The sends must be complete, too: their chunks are overwritten by the second round. */
    TR_TRY(round_end(g));
    reduce(g, own, mine, dtype, op);
    round_begin(g);
    for (int r = 0; r < g->n; r++) {
        int64_t at = chunk_begin(g, r, count), size = chunk_begin(g, r + 1, count) - at;
        if (r != g->rank) post_recv(g, r, buffer + (size_t)at * element, (size_t)size * element);
    }
    for (int k = 0; k < g->n - 1; k++) post_send(g, other(g, k), own, (size_t)mine * element);
    TR_TRY(round_end(g));
    return TR_OK;
}

tr_status tr_group_run_all_reduce(tr_group_host *group, void *buffer, int64_t count, tr_dtype dtype,
                                  tr_reduce op) {
    tr_group_host *g = group;
    size_t element = tr_dtype_size(dtype);
    int64_t piece = (int64_t)(g->piece_bytes / element);
    g->what = "all_reduce";
    for (int64_t at = 0; at < count; at += piece)
        TR_TRY(all_reduce_piece(g, (unsigned char *)buffer + (size_t)at * element,
                                count - at < piece ? count - at : piece, dtype, op));
    return TR_OK;
}

tr_status tr_group_run_gather(tr_group_host *group, void *all, const size_t *offsets,
                              const size_t *sizes, const char *what) {
    tr_group_host *g = group;
    unsigned char *to = all;
    g->what = what;
    round_begin(g);
    for (int r = 0; r < g->n; r++)
        if (r != g->rank) post_recv(g, r, to + offsets[r], sizes[r]);
    for (int k = 0; k < g->n - 1; k++)
        post_send(g, other(g, k), to + offsets[g->rank], sizes[g->rank]);
    TR_TRY(round_end(g));
    return TR_OK;
}

/* Runs along a binomial tree: a rank at distance d of the root receives from d without its lowest
 * bit, then sends to d + 1, d + 2, d + 4, ... below that bit, the farthest first. */
tr_status tr_group_run_broadcast(tr_group_host *group, int root, void *buffer, size_t bytes) {
    tr_group_host *g = group;
    int distance = (g->rank - root + g->n) % g->n;
    int bit = 1;
    while (bit < g->n && !(distance & bit)) bit <<= 1;
    g->what = "broadcast";
    if (distance > 0) {
        round_begin(g);
        post_recv(g, (root + distance - bit) % g->n, buffer, bytes);
        TR_TRY(round_end(g));
    }
    round_begin(g);
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (distance + bit < g->n) post_send(g, (root + distance + bit) % g->n, buffer, bytes);
    TR_TRY(round_end(g));
    return TR_OK;
}

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): in round k a rank notifies rank + 2^k. */
tr_status tr_group_run_barrier(tr_group_host *group) {
    tr_group_host *g = group;
    g->what = "barrier";
    unsigned char in, out = 0;
    for (int step = 1; step < g->n; step <<= 1) {
        round_begin(g);
        post_recv(g, (g->rank - step + g->n) % g->n, &in, 1);
        post_send(g, (g->rank + step) % g->n, &out, 1);
        TR_TRY(round_end(g));
    }
    return TR_OK;
}

/* --- opening --------------------------------------------------------------------------------- */

tr_status tr_group_host_open(tr_world *world, const int *ranks, int n, int id, int tag,
                             size_t max_bytes, tr_group_host **out) {
    tr_group_host *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    *g = (tr_group_host){.world = world, .n = n, .id = id, .tag = tag};
    tr_status status = TR_OK;
    g->piece_bytes = max_bytes > EXCHANGE_BYTES ? max_bytes / 8 * 8 : EXCHANGE_BYTES;
    /* A chunk is at most one element larger than an even share. */
    size_t share = g->piece_bytes / (size_t)n + sizeof(double);
    g->slot_bytes = tr_align_up(share > EXCHANGE_BYTES ? share : EXCHANGE_BYTES);
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *g->ranks, &g->ranks));
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *g->source, &g->source));
    TR_TRY_OUT(tr_calloc(2 * (size_t)n, sizeof *g->request, &g->request));
    if (n > 1) TR_TRY_OUT(tr_calloc((size_t)n, g->slot_bytes, &g->scratch));
    for (int i = 0; i < n; i++) {
        g->ranks[i] = ranks ? ranks[i] : i;
        if (g->ranks[i] == world->rank) g->rank = i;
    }
    *out = g;
    return TR_OK;
out:
    tr_group_host_close(g);
    return status;
}

void tr_group_host_close(tr_group_host *group) {
    if (!group || group->lost) return;
    free(group->scratch);
    free(group->request);
    free(group->source);
    free(group->ranks);
    free(group);
}

/* --- the group of host memory ----------------------------------------------------------------- */

typedef struct host_group {
    tr_group base;
    tr_group_host *rounds;
} host_group;

static tr_group_host *rounds_of(tr_group *group) {
    return ((host_group *)group)->rounds;
}

static tr_status run_all_reduce(const tr_job *job) {
    return tr_group_run_all_reduce(job->object, job->out, job->count, job->dtype, job->op);
}

static tr_status host_all_reduce(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                                 tr_dtype dtype, tr_reduce op) {
    tr_job job = {.run = run_all_reduce,
                  .object = rounds_of(group),
                  .out = buffer,
                  .count = count,
                  .dtype = dtype,
                  .op = op};
    return tr_world_enqueue(group->world, stream, &job);
}

static void host_close(tr_group *group) {
    tr_group_host_close(rounds_of(group));
    free(group);
}

static const tr_group_ops host_ops = {.all_reduce = host_all_reduce, .close = host_close};

tr_status tr_group_make_host(const tr_group_desc *desc, tr_group **out) {
    host_group *g;
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    tr_status status = tr_group_host_open(desc->world, desc->ranks, desc->n, desc->id,
                                          TR_TAG_GROUP + desc->id, desc->max_bytes, &g->rounds);
    if (status != TR_OK) {
        free(g);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    g->base.ops = &host_ops;
    *out = &g->base;
    return TR_OK;
}
