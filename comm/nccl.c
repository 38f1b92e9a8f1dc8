/* Communicators of NCCL: opening, waiting for non-blocking calls, failures, closing. */
#include "base/memory.h"
#include "comm/nccl_impl.h"
#include "comm/nccl_library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 16 };
static const double CLOSE_LIMIT_S = 10; /* what close waits without a deadline */

int tr_nccl_version(void) {
    int version = 0;
    if (tr_nccl_open_library() != TR_OK) {
        tr_error_clear(); /* a machine without NCCL stages its messages on the host */
        return 0;
    }
    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

/* --- failures --------------------------------------------------------------------------------- */

void tr_nccl_abort(tr_nccl_comm *comm) {
    if (comm->handle) (void)ncclCommAbort(comm->handle);
    comm->handle = NULL;
}

/* After a failure on one communicator no other will complete either: other ranks give up too. */
static void abort_all(tr_world *world) {
    for (tr_nccl_comm *c = world->nccl; c; c = c->next) tr_nccl_abort(c);
}

static tr_status fail_nccl(tr_nccl_comm *comm, int result, const char *call) {
    const char *detail = comm->handle ? ncclGetLastError(comm->handle) : ncclGetLastError(NULL);
    char where[48];
    if (comm->peer >= 0)
        (void)snprintf(where, sizeof where, "the channel with rank %d", comm->peer);
    else (void)snprintf(where, sizeof where, "group %d", comm->group);
    return TR_FAIL(TR_ERR_RANK, "NCCL: %s of %s failed: %s%s%s (NCCL_DEBUG=INFO tells more)", call,
                   where, ncclGetErrorString((ncclResult_t)result), detail && *detail ? ": " : "",
                   detail ? detail : "");
}

/* --- operations ------------------------------------------------------------------------------- */

static tr_nccl_op *op_of(const tr_nccl_comm *comm, int64_t number) {
    return &comm->op[number % comm->slots];
}

static void see_what_is_over(tr_nccl_comm *comm) {
    while (comm->over < comm->begun && tr_event_reached(op_of(comm, comm->over)->done))
        comm->over++;
}

/* Twice the slots, when all hold operations: those keep their events. In a steady state none is
 * made. */
static tr_status grow(tr_nccl_comm *comm) {
    tr_device *device = tr_stream_device(comm->stream);
    int64_t slots = comm->slots ? 2 * comm->slots : SLOTS;
    tr_nccl_op *op;
    TR_TRY(tr_calloc((size_t)slots, sizeof *op, &op));
    for (int64_t k = comm->over; k < comm->begun; k++) op[k % slots] = *op_of(comm, k);
    free(comm->op);
    comm->op = op;
    comm->slots = slots;
    for (int64_t i = 0; i < slots; i++) {
        if (op[i].done) continue;
        TR_TRY(tr_event_create(device, &op[i].done));
        TR_TRY(tr_event_create(device, &op[i].needed));
    }
    return TR_OK;
}

tr_status tr_nccl_enter(tr_nccl_comm *comm, const char *what, tr_stream *after) {
    TR_TRY(tr_world_check(comm->world));
    if (!comm->handle)
        return TR_FAIL(TR_ERR_INTERNAL, "a communicator of NCCL is used after its end");
    see_what_is_over(comm);
    if (comm->begun - comm->over == comm->slots) TR_TRY(grow(comm));
    tr_nccl_op *op = op_of(comm, comm->begun);
    op->what = what;
    op->waited = false;
    if (!after) return TR_OK;
    TR_TRY(tr_event_record(op->needed, after));
    TR_TRY(tr_stream_wait(comm->stream, op->needed));
    return TR_OK;
}

tr_status tr_nccl_leave(tr_nccl_comm *comm, int64_t *number) {
    TR_TRY(tr_event_record(op_of(comm, comm->begun)->done, comm->stream));
    *number = comm->begun++;
    return TR_OK;
}

tr_status tr_nccl_need(tr_nccl_comm *comm, int64_t number, tr_stream *stream) {
    TR_TRY(tr_world_check(comm->world));
    if (number < comm->over) return TR_OK;
    tr_nccl_op *op = op_of(comm, number);
    TR_TRY(tr_event_record(op->needed, stream));
    op->waited = true;
    TR_TRY(tr_stream_wait(stream, op->done));
    return TR_OK;
}

/* --- waiting ---------------------------------------------------------------------------------- */

typedef struct settling {
    tr_nccl_comm *comm;
    int result;
} settling;

/* Under the world's lock. */
static bool ready_settled(tr_wait *wait) {
    settling *s = wait->object;
    ncclResult_t now = ncclSuccess;
    ncclResult_t asked = ncclCommGetAsyncError(s->comm->handle, &now);
    s->result = asked == ncclSuccess ? (int)now : (int)asked;
    return s->result != ncclInProgress;
}

tr_status tr_nccl_settle(tr_nccl_comm *comm, int result, const char *call) {
    if (result == ncclSuccess) return TR_OK;
    settling s = {.comm = comm, .result = result};
    tr_status status = TR_OK;
    if (result == ncclInProgress && comm->handle) {
        tr_wait wait = {.ready = ready_settled,
                        .object = &s,
                        .what = call,
                        .number = -1,
                        .peer = comm->peer,
                        .missing = -1,
                        .group = comm->group};
        status = tr_engine_wait(comm->world, &wait);
    }
    if (status == TR_OK && s.result != ncclSuccess) {
        status = fail_nccl(comm, s.result, call);
        tr_world_give_up(comm->world, status);
    }
    if (status != TR_OK) abort_all(comm->world);
    TR_TRY(status);
    return TR_OK;
}

typedef struct syncing {
    tr_world *world;
    tr_event *event;
    const tr_nccl_comm *own;
    const tr_nccl_comm *on; /* what the stream waits for at the moment, or NULL */
    int64_t number;         /* of its operation */
    tr_nccl_comm *bad;      /* a communicator that has failed, and its result */
    int result;
} syncing;

static bool find_failure(syncing *s) {
    for (tr_nccl_comm *c = s->world->nccl; c; c = c->next) {
        ncclResult_t now = ncclSuccess;
        if (!c->handle) continue;
        ncclResult_t asked = ncclCommGetAsyncError(c->handle, &now);
        if (asked != ncclSuccess) now = asked;
        if (now == ncclSuccess || now == ncclInProgress) continue;
        s->bad = c;
        s->result = (int)now;
        return true;
    }
    return false;
}

/* The communicator whose oldest operation the device waits for and does nothing else. */
static const tr_nccl_comm *find_awaited(const syncing *s) {
    for (tr_nccl_comm *c = s->world->nccl; c; c = c->next) {
        see_what_is_over(c);
        if (c->over == c->begun) continue;
        const tr_nccl_op *op = op_of(c, c->over);
        if (c == s->own || (op->waited && tr_event_reached(op->needed))) return c;
    }
    return NULL;
}

/* Under the world's lock. */
static bool ready_synced(tr_wait *wait) {
    syncing *s = wait->object;
    if (tr_event_reached(s->event) || find_failure(s)) return true;
    const tr_nccl_comm *on = find_awaited(s);
    int64_t number = on ? on->over : 0;
    if (on == s->on && number == s->number) return false;
    s->on = on;
    s->number = number;
    wait->turn++;
    wait->alone = !on;
    if (!on) return false;
    wait->what = op_of(on, number)->what;
    wait->number = number;
    wait->peer = on->peer;
    wait->missing = on->other;
    wait->group = on->group;
    return false;
}

tr_status tr_nccl_sync(tr_world *world, tr_stream *stream, const tr_nccl_comm *own) {
    syncing s = {.world = world, .own = own};
    TR_TRY(tr_event_create(tr_stream_device(stream), &s.event));
    tr_status status = tr_event_record(s.event, stream);
    if (status == TR_OK) {
        tr_wait wait = {.ready = ready_synced,
                        .object = &s,
                        .what = "the device",
                        .peer = -1,
                        .missing = -1,
                        .group = -1,
                        .alone = true};
        if (own && world->hook.deadline_s <= 0) wait.limit_s = CLOSE_LIMIT_S;
        status = tr_engine_wait(world, &wait);
    }
    if (status == TR_OK && s.bad) {
        status = fail_nccl(s.bad, s.result, "an operation");
        tr_world_give_up(world, status);
    }
    if (status != TR_OK) abort_all(world);
    tr_event_destroy(s.event);
    TR_TRY(status);
    TR_TRY(tr_stream_sync(stream)); /* it is done: the failures of what was queued */
    TR_TRY(tr_world_check(world));
    return TR_OK;
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* The first rank's id for all ranks, over the host transport. */
static tr_status agree_on_id(const tr_nccl_desc *d, ncclUniqueId *id) {
    tr_host_group *g;
    memset(id, 0, sizeof *id);
    ncclResult_t result = d->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    if (result != ncclSuccess)
        return TR_FAIL(TR_ERR_DEVICE, "NCCL: no unique id: %s: %s", ncclGetErrorString(result),
                       ncclGetLastError(NULL));
    TR_TRY(tr_host_group_open(d->world, d->ranks, d->n, d->id, d->tag, sizeof *id, &g));
    tr_status status = tr_group_run_broadcast(g, 0, id, sizeof *id);
    tr_host_group_close(g);
    TR_TRY(status);
    return TR_OK;
}

static tr_status init(const tr_nccl_desc *d, tr_nccl_comm *comm) {
    ncclUniqueId id;
    TR_TRY(agree_on_id(d, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0; /* every call returns, and can be given up at the deadline */
    if (d->max_ctas > 0) {
        config.minCTAs = 1;
        config.maxCTAs = d->max_ctas;
    }
    ncclComm_t handle = NULL;
    ncclResult_t result = ncclCommInitRankConfig(&handle, d->n, id, d->rank, &config);
    comm->handle = handle;
    return tr_nccl_settle(comm, (int)result, "set-up by NCCL");
}

tr_status tr_nccl_open(const tr_nccl_desc *d, tr_nccl_comm *comm) {
    size_t before = 0, after = 0, total;
    *comm = (tr_nccl_comm){.world = d->world,
                           .peer = d->peer,
                           .group = d->id,
                           .other = d->n == 2 ? d->ranks[1 - d->rank] : -1};
    TR_TRY(tr_nccl_open_library());
    TR_TRY(tr_stream_create(d->device, &comm->stream));
    TR_TRY(tr_device_memory(d->device, &before, &total));
    pthread_mutex_lock(&d->world->lock);
    comm->next = d->world->nccl;
    d->world->nccl = comm;
    pthread_mutex_unlock(&d->world->lock);
    TR_TRY(grow(comm));
    TR_TRY(init(d, comm));
    TR_TRY(tr_device_memory(d->device, &after, &total));
    if (after < before) tr_device_took(d->device, TR_MEMORY_NCCL, before - after);
    return TR_OK;
}

void tr_nccl_close(tr_nccl_comm *comm) {
    tr_world *world = comm->world;
    if (comm->handle && tr_nccl_sync(world, comm->stream, comm) == TR_OK &&
        tr_nccl_settle(comm, (int)ncclCommFinalize(comm->handle), "the end of NCCL") == TR_OK) {
        (void)ncclCommDestroy(comm->handle);
        comm->handle = NULL;
    }
    tr_nccl_abort(comm);
    if (comm->stream) tr_stream_destroy(comm->stream);
    for (int64_t i = 0; i < comm->slots; i++) {
        tr_event_destroy(comm->op[i].done);
        tr_event_destroy(comm->op[i].needed);
    }
    free(comm->op);
    pthread_mutex_lock(&world->lock);
    for (tr_nccl_comm **at = &world->nccl; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&world->lock);
}
