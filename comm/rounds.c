#include "comm/rounds.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- one round -------------------------------------------------------------------------------- */

void tr_rounds_begin(tr_rounds *r) {
    r->posted = r->finished = 0;
}

static void post(tr_rounds *r, bool send, int rank, void *buffer, size_t bytes) {
    tr_world *w = r->world;
    const tr_transport_ops *ops = w->transport->ops;
    if (w->failure != TR_OK) return;
    tr_message *request = &r->request[r->posted];
    tr_status status =
        send ? ops->post_send(w->transport, r->ranks[rank], r->tag, buffer, bytes, request)
             : ops->post_recv(w->transport, r->ranks[rank], r->tag, buffer, bytes, request);
    if (status != TR_OK) (void)tr_world_fail(w, status, tr_error_message());
    else r->expected[r->posted++] = bytes;
}

void tr_rounds_receive(tr_rounds *r, int rank, void *buffer, size_t bytes) {
    post(r, false, rank, buffer, bytes);
}

void tr_rounds_send(tr_rounds *r, int rank, const void *buffer, size_t bytes) {
    post(r, true, rank, (void *)(uintptr_t)buffer, bytes);
}

/* Fails when a message does not have the size that this rank posted, because the two ranks make
 * different calls. */
static tr_status check_size(const tr_rounds *r, const tr_message *message, size_t expected) {
    char where[32] = "";
    if (!message->truncated && message->bytes == expected) return TR_OK;
    if (r->id >= 0) (void)snprintf(where, sizeof where, " in group %d", r->id);
    return TR_FAIL(TR_ERR_INTERNAL, "ranks %d and %d run different collectives%s", r->world->rank,
                   message->peer, where);
}

bool tr_rounds_done(tr_rounds *r, int *missing) {
    tr_world *w = r->world;
    if (w->failure != TR_OK) return false;
    for (; r->finished < r->posted; r->finished++) {
        tr_message *request = &r->request[r->finished];
        bool done;
        tr_status status = w->transport->ops->test(w->transport, request, &done);
        if (status == TR_OK && done) status = check_size(r, request, r->expected[r->finished]);
        if (status != TR_OK) (void)tr_world_fail(w, status, tr_error_message());
        if (status != TR_OK || !done) {
            *missing = request->peer;
            return false;
        }
    }
    return true;
}

void tr_rounds_cancel(tr_rounds *r) {
    for (int i = 0; i < r->posted; i++) tr_world_withdraw(r->world, &r->request[i]);
    r->posted = r->finished = 0;
}

int tr_rounds_other(const tr_rounds *r, int k) {
    return (r->rank + 1 + k) % r->n;
}

/* --- collectives, blocking -------------------------------------------------------------------- */

static void begin(tr_rounds *r) {
    pthread_mutex_lock(&r->world->lock);
    tr_rounds_begin(r);
}

static bool ready(tr_wait *wait) {
    return tr_rounds_done(wait->object, &wait->missing);
}

/* Ends the round that `begin` began: releases the lock and waits for all its messages. After a
 * failure withdraws them. */
static tr_status end(tr_rounds *r, const char *what) {
    tr_world *w = r->world;
    pthread_mutex_unlock(&w->lock);
    tr_wait wait = {.ready = ready, .object = r, .what = what, .peer = -1, .group = r->id};
    tr_status status = tr_poller_wait(w, &wait);
    if (status == TR_OK) return TR_OK;
    pthread_mutex_lock(&w->lock);
    tr_rounds_cancel(r);
    pthread_mutex_unlock(&w->lock);
    return tr_trace_at(__FILE__, __LINE__, status);
}

tr_status tr_rounds_gather(tr_rounds *r, void *all, const size_t *sizes) {
    unsigned char *at = all, *own = at;
    begin(r);
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) own = at;
        else tr_rounds_receive(r, i, at, sizes[i]);
        at += sizes[i];
    }
    for (int k = 0; k < r->n - 1; k++)
        tr_rounds_send(r, tr_rounds_other(r, k), own, sizes[r->rank]);
    TR_TRY(end(r, "gather"));
    return TR_OK;
}

/* Runs along a binomial tree: a rank at distance d of the root receives from d without its lowest
 * bit, then sends to d + 1, d + 2, d + 4, ... below that bit, the farthest first. */
static tr_status pass_on(tr_rounds *r, int root, void *buffer, size_t bytes) {
    int distance = (r->rank - root + r->n) % r->n;
    int bit = 1;
    while (bit < r->n && !(distance & bit)) bit <<= 1;
    if (distance > 0) {
        begin(r);
        tr_rounds_receive(r, (root + distance - bit) % r->n, buffer, bytes);
        TR_TRY(end(r, "broadcast"));
    }
    begin(r);
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (distance + bit < r->n) tr_rounds_send(r, (root + distance + bit) % r->n, buffer, bytes);
    TR_TRY(end(r, "broadcast"));
    return TR_OK;
}

/* The messages do not use the caller's memory, which may be on its stack. */
tr_status tr_rounds_broadcast(tr_rounds *r, int root, void *buffer, size_t bytes) {
    void *memory;
    if (r->n == 1) return TR_OK;
    tr_status status = tr_calloc(1, bytes, &memory);
    if (status != TR_OK) tr_world_give_up(r->world, status); /* so that the others do not wait */
    TR_TRY(status);
    if (r->rank == root && bytes > 0) memcpy(memory, buffer, bytes);
    status = pass_on(r, root, memory, bytes);
    if (status == TR_OK && bytes > 0) memcpy(buffer, memory, bytes);
    if (!tr_world_keeps_memory(r->world)) free(memory);
    TR_TRY(status);
    return TR_OK;
}

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): in round k a rank notifies rank + 2^k. */
tr_status tr_rounds_barrier(tr_rounds *r) {
    for (int step = 1; step < r->n; step <<= 1) {
        begin(r);
        tr_rounds_receive(r, (r->rank - step + r->n) % r->n, &r->signal[0], 1);
        tr_rounds_send(r, (r->rank + step) % r->n, &r->signal[1], 1);
        TR_TRY(end(r, "barrier"));
    }
    return TR_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

tr_status tr_rounds_open(tr_world *world, const int *ranks, int n, int id, int tag,
                         tr_rounds **out) {
    tr_rounds *r;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    *r = (tr_rounds){.world = world, .n = n, .id = id, .tag = tag};
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)n, sizeof *r->ranks, &r->ranks));
    TR_TRY_OUT(tr_calloc(2 * (size_t)n * TR_ROUND_PIECES, sizeof *r->request, &r->request));
    TR_TRY_OUT(tr_calloc(2 * (size_t)n * TR_ROUND_PIECES, sizeof *r->expected, &r->expected));
    for (int i = 0; i < n; i++) {
        r->ranks[i] = ranks ? ranks[i] : i;
        if (r->ranks[i] == world->rank) r->rank = i;
    }
    *out = r;
    return TR_OK;
out:
    tr_rounds_close(r);
    return status;
}

void tr_rounds_close(tr_rounds *r) {
    if (!r || tr_world_keeps_memory(r->world)) return;
    free(r->request);
    free(r->expected);
    free(r->ranks);
    free(r);
}
