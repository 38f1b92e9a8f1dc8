/* Communicators of NCCL: opening, calls and their supervision, failures, closing. */
#include "base/clock.h"
#include "base/memory.h"
#include "comm/nccl_impl.h"
#include "comm/nccl_library.h"
#include "comm/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 16 };
static const double ABORT_LIMIT_S = 10;  /* an aborted call must return within this time */
static const double SHOWN_AFTER_S = 0.1; /* a call that takes longer waits for another rank */

int tr_nccl_version(void) {
    int version = 0;
    if (tr_nccl_open_library() != TR_OK) {
        tr_error_clear(); /* without NCCL this machine stages its messages on the host */
        return 0;
    }
    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

/* --- failures --------------------------------------------------------------------------------- */

/* Takes the communicator's handle. Of two threads only one gets it. */
static ncclComm_t take_handle(tr_nccl_comm *comm) {
    pthread_mutex_lock(&comm->world->lock);
    ncclComm_t handle = comm->handle;
    comm->handle = NULL;
    pthread_mutex_unlock(&comm->world->lock);
    return handle;
}

void tr_nccl_abort(tr_nccl_comm *comm) {
    ncclComm_t handle = take_handle(comm);
    if (handle) (void)ncclCommAbort(handle);
}

/* Takes the handle of any open communicator, or returns NULL. Finds and takes it under one lock,
 * since the other thread may close the communicator as soon as the lock is free. */
static ncclComm_t take_any_handle(tr_world *world) {
    pthread_mutex_lock(&world->lock);
    tr_nccl_comm *c = world->nccl;
    while (c && !c->handle) c = c->next;
    ncclComm_t handle = c ? c->handle : NULL;
    if (c) c->handle = NULL;
    pthread_mutex_unlock(&world->lock);
    return handle;
}

/* Aborts all communicators: after a failure of one the rest cannot complete either, because the
 * other ranks give up too. */
static void abort_all(tr_world *world) {
    for (ncclComm_t h = take_any_handle(world); h; h = take_any_handle(world))
        (void)ncclCommAbort(h);
}

static tr_status fail_nccl(tr_nccl_comm *comm, int result, const char *call) {
    const char *detail = comm->handle ? ncclGetLastError(comm->handle) : ncclGetLastError(NULL);
    char where[48];
    if (comm->peer >= 0)
        (void)snprintf(where, sizeof where, "the channel with rank %d", comm->peer);
    else (void)snprintf(where, sizeof where, "group %d", comm->group);
    return TR_FAIL(TR_ERR_RANK, "NCCL: %s of %s failed: %s%s%s (NCCL_DEBUG=INFO prints more)", call,
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

/* Doubles the slots when all hold operations, which keep their events. In a steady state none is
 * added. */
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
        return TR_FAIL(TR_ERR_INTERNAL, "a communicator of NCCL was used after its end");
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

tr_status tr_nccl_follow(tr_nccl_comm *comm, const tr_nccl_comm *before, int64_t number) {
    TR_TRY(tr_world_check(comm->world));
    return number < before->over ? TR_OK
                                 : tr_stream_wait(comm->stream, op_of(before, number)->done);
}

/* --- calls ------------------------------------------------------------------------------------ */

void tr_nccl_begin(tr_nccl_comm *comm, const char *name) {
    comm->call = (tr_nccl_call){.comm = comm,
                                .wait = {.what = name,
                                         .number = -1,
                                         .peer = comm->peer,
                                         .missing = comm->other,
                                         .group = comm->group},
                                .lasting = tr_lasting_begin()};
    pthread_mutex_lock(&comm->world->lock);
    comm->world->call = &comm->call;
    pthread_mutex_unlock(&comm->world->lock);
}

tr_status tr_nccl_end(tr_nccl_comm *comm, int result) {
    tr_world *world = comm->world;
    tr_nccl_call *call = &comm->call;
    pthread_mutex_lock(&world->lock);
    world->call = NULL;
    if (call->shown) world->hook.wait(world->hook.context, false, call->wait.what, call->wait.peer);
    pthread_mutex_unlock(&world->lock);
    tr_status status = call->aborted > 0 ? tr_world_check(world) : TR_OK;
    if (status == TR_OK && result != ncclSuccess) {
        status = fail_nccl(comm, result, call->wait.what);
        tr_world_give_up(world, status);
    }
    if (status != TR_OK) abort_all(world);
    TR_TRY(status);
    return TR_OK;
}

/* Shows on the board which rank the calling thread waits for inside NCCL. Under the lock. */
static void show_call(tr_world *world, tr_nccl_call *call) {
    char text[128];
    if (call->shown || !call->comm->meets || !world->hook.wait) return;
    if (tr_lasting_seconds(&call->lasting) < SHOWN_AFTER_S) return;
    tr_wait_describe(&call->wait, text, sizeof text);
    world->hook.wait(world->hook.context, true, text, call->wait.peer);
    call->shown = true;
}

/* Fails the world because of a call that is stuck. The call does not wait for another rank, so this
 * rank is the late one: the hook gets a wait for this rank itself, and its end, and the board does
 * not show a wait. Under the lock. */
static void fail_stuck(tr_world *world, const tr_nccl_call *call, double waited) {
    char text[128];
    tr_wait_describe(&call->wait, text, sizeof text);
    tr_status status = TR_FAIL(TR_ERR_RANK,
                               "rank %d: a call of NCCL (%s) has not returned for %.1f s: a "
                               "connection or the GPU is stuck "
                               "(NCCL_DEBUG=INFO prints more)",
                               world->rank, text, waited);
    (void)tr_world_fail(world, status, tr_error_message());
    if (!world->hook.wait) return;
    world->hook.wait(world->hook.context, true, text, world->rank);
    world->hook.wait(world->hook.context, false, text, world->rank);
}

/* Judges a call by the deadline. Sets *abort when it has just exceeded it; returns true when it did
 * not return after an abort. Under the lock. */
static bool judge_call(tr_world *world, tr_nccl_call *call, bool *abort, char *sentence,
                       size_t size) {
    const double waited = tr_lasting_seconds(&call->lasting), now = call->lasting.asked;
    const double limit = world->hook.deadline_s;
    if (limit <= 0 || waited <= limit) return false;
    if (call->aborted <= 0) {
        if (call->comm->meets) (void)tr_wait_fail(world, &call->wait, waited);
        else fail_stuck(world, call, waited);
        call->aborted = now;
        *abort = call->comm->handle != NULL; /* cannot be aborted while it is set up */
        if (*abort) return false;
    } else if (now - call->aborted < ABORT_LIMIT_S) return false;
    (void)snprintf(sentence, size, "%s", world->failure_message);
    return true;
}

bool tr_nccl_look(tr_world *world, char *sentence, size_t size) {
    bool abort = false, end = false;
    /* A thread that holds the lock must not delay the watchdog; the next look comes soon. */
    if (pthread_mutex_trylock(&world->lock) != 0) return false;
    if (world->call) {
        show_call(world, world->call);
        end = judge_call(world, world->call, &abort, sentence, size);
    }
    pthread_mutex_unlock(&world->lock);
    if (abort) abort_all(world);
    return end;
}

/* --- waiting ---------------------------------------------------------------------------------- */

typedef struct syncing {
    tr_world *world;
    tr_event *event;
    const tr_nccl_comm *own;
    const tr_nccl_comm *on; /* the communicator that the stream waits for at the moment, or NULL */
    int64_t number;         /* the number of its operation */
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

/* Returns a communicator when the device only waits for its oldest operation. */
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
        if (own && tr_world_get_hook(world).deadline_s <= 0)
            wait.limit_s = tr_world_close_limit(world);
        status = tr_poller_wait(world, &wait);
    }
    if (status == TR_OK && s.bad) {
        status = fail_nccl(s.bad, s.result, "an operation");
        tr_world_give_up(world, status);
    }
    if (status != TR_OK) abort_all(world);
    tr_event_destroy(s.event);
    TR_TRY(status);
    TR_TRY(tr_stream_sync(stream)); /* the stream is done; returns failures of its work */
    TR_TRY(tr_world_check(world));
    return TR_OK;
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* Sends the first rank's id to all ranks, over the host transport. The ranks leave together, so
 * that none waits long for another inside NCCL, where the deadline could only end the process. */
static tr_status agree_on_id(const tr_nccl_desc *d, ncclUniqueId *id) {
    tr_rounds *r;
    memset(id, 0, sizeof *id);
    ncclResult_t result = d->rank == 0 ? ncclGetUniqueId(id) : ncclSuccess;
    if (result != ncclSuccess)
        return TR_FAIL(TR_ERR_DEVICE, "NCCL cannot make a unique id: %s: %s",
                       ncclGetErrorString(result), ncclGetLastError(NULL));
    TR_TRY(tr_rounds_open(d->world, d->ranks, d->n, d->id, d->tag, &r));
    tr_status status = tr_rounds_broadcast(r, 0, id, sizeof *id);
    if (status == TR_OK) status = tr_rounds_barrier(r);
    tr_rounds_close(r);
    TR_TRY(status);
    return TR_OK;
}

static tr_status init(const tr_nccl_desc *d, tr_nccl_comm *comm) {
    ncclUniqueId id;
    TR_TRY(agree_on_id(d, &id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1; /* otherwise NCCL starts a thread for every call */
    if (d->max_ctas > 0) {
        config.minCTAs = 1;
        config.maxCTAs = d->max_ctas;
    }
    ncclComm_t handle = NULL;
    tr_nccl_begin(comm, "set-up by NCCL");
    ncclResult_t result = ncclCommInitRankConfig(&handle, d->n, id, d->rank, &config);
    pthread_mutex_lock(&d->world->lock);
    comm->handle = handle;
    pthread_mutex_unlock(&d->world->lock);
    return tr_nccl_end(comm, (int)result);
}

tr_status tr_nccl_open(const tr_nccl_desc *d, tr_nccl_comm *comm) {
    size_t before = 0, after = 0, total;
    *comm = (tr_nccl_comm){.world = d->world,
                           .meets = true,
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
    if (after < before) tr_device_count_memory(d->device, TR_MEMORY_NCCL, before - after);
    return TR_OK;
}

/* Waits until the communicator's ranks end it too. */
static tr_status finalize(tr_nccl_comm *comm) {
    comm->meets = true;
    tr_nccl_begin(comm, "the end of NCCL");
    TR_TRY(tr_nccl_end(comm, (int)ncclCommFinalize(comm->handle)));
    (void)ncclCommDestroy(take_handle(comm));
    return TR_OK;
}

void tr_nccl_close(tr_nccl_comm *comm) {
    tr_world *world = comm->world;
    bool done =
        comm->handle && tr_nccl_sync(world, comm->stream, comm) == TR_OK && finalize(comm) == TR_OK;
    if (!done) tr_nccl_abort(comm);
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
