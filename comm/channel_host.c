/* Channels of host memory: the progress thread moves whole messages. */
#include "base/clock.h"
#include "base/memory.h"
#include "comm/channel_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 16 };

struct tr_outgoing_chunk {
    tr_outgoing_chunk *next;
    tr_outgoing slot[CHUNK];
};

static tr_channel_host *self_of(tr_channel *channel) {
    return (tr_channel_host *)channel;
}

/* --- moving, under the lock ------------------------------------------------------------------- */

bool tr_outgoing_due(tr_outgoing *message, tr_poll *poll) {
    tr_outgoing *o = message;
    if (!o->ready) {
        if (!tr_event_reached(o->event)) return false;
        o->ready = true;
        o->visible = o->delay > 0 ? tr_now_s() + o->delay : 0;
    }
    if (o->visible > 0 && o->visible > tr_now_s()) {
        if (o->visible < poll->next) poll->next = o->visible;
        return false;
    }
    return true;
}

void tr_channel_host_sent(tr_channel_host *c, tr_poll *poll) {
    tr_outgoing *o = c->first;
    c->first = o->next;
    if (!c->first) c->end = &c->first;
    o->next = c->free;
    c->free = o;
    c->sent++;
    poll->moved = true;
}

static tr_status poll_sending(tr_channel_host *c, tr_poll *poll) {
    tr_transport *t = c->base.world->transport;
    while (c->first && c->first->posted) {
        tr_outgoing *o = c->first;
        bool done;
        TR_TRY(t->ops->test(t, &o->request, &done));
        if (!done) break;
        tr_channel_host_sent(c, poll);
    }
    if (c->first) poll->outstanding = true;
    for (tr_outgoing *o = c->first; o; o = o->next) {
        if (o->posted) continue;
        if (!tr_outgoing_due(o, poll)) return TR_OK;
        TR_TRY(
            t->ops->post_send(t, c->base.peer, TR_TAG_CHANNEL, o->buffer, o->bytes, &o->request));
        o->posted = poll->moved = true;
    }
    return TR_OK;
}

static tr_status poll_receiving(tr_channel_host *c, tr_poll *poll) {
    tr_transport *t = c->base.world->transport;
    if (c->posted > c->arrived) {
        bool done;
        TR_TRY(t->ops->test(t, &c->request, &done));
        if (done) {
            if (c->request.truncated)
                return TR_FAIL(
                    TR_ERR_INTERNAL,
                    "message %lld from rank %d is larger than the %zu bytes of its channel",
                    (long long)c->arrived, c->base.peer, c->base.max_bytes);
            c->size[tr_landing_of(c->arrived++)] = c->request.bytes;
            poll->moved = true;
        }
    }
    /* The next receive waits only for the previous one and a free buffer, so compute does not delay
     * the sender. */
    if (c->posted == c->arrived && tr_landing_is_free(c->posted, c->taken)) {
        TR_TRY(t->ops->post_recv(t, c->base.peer, TR_TAG_CHANNEL,
                                 c->landing[tr_landing_of(c->posted)], c->base.max_bytes,
                                 &c->request));
        c->posted++;
    }
    if (c->posted > c->arrived) poll->outstanding = true;
    return TR_OK;
}

static tr_status host_poll(tr_channel *channel, tr_poll *poll) {
    tr_channel_host *c = self_of(channel);
    return channel->sending ? poll_sending(c, poll) : poll_receiving(c, poll);
}

static void chunk_free(tr_outgoing_chunk *chunk) {
    for (int i = 0; i < CHUNK; i++) tr_event_destroy(chunk->slot[i].event);
    free(chunk);
}

void tr_channel_host_clear(tr_channel_host *c) {
    for (tr_outgoing_chunk *k = c->chunks; k;) {
        tr_outgoing_chunk *next = k->next;
        chunk_free(k);
        k = next;
    }
    tr_landing_free(c->base.device, c->landing);
}

/* Adds slots for outgoing messages. In a steady state none is added. */
static tr_status add_outgoing(tr_channel_host *c) {
    tr_outgoing_chunk *chunk;
    TR_TRY(tr_calloc(1, sizeof *chunk, &chunk));
    tr_status status = TR_OK;
    for (int i = 0; i < CHUNK; i++)
        TR_TRY_OUT(tr_event_create(c->base.device, &chunk->slot[i].event));
    pthread_mutex_lock(&c->base.world->lock);
    chunk->next = c->chunks;
    c->chunks = chunk;
    for (int i = 0; i < CHUNK; i++) {
        chunk->slot[i].next = c->free;
        c->free = &chunk->slot[i];
    }
    pthread_mutex_unlock(&c->base.world->lock);
    return TR_OK;
out:
    chunk_free(chunk);
    return status;
}

tr_status tr_channel_host_init(tr_channel_host *c, const tr_channel_desc *desc) {
    c->base.world = desc->world;
    c->base.device = desc->device;
    c->base.peer = desc->peer;
    c->base.sending = desc->sending;
    c->base.max_bytes = desc->max_bytes;
    c->end = &c->first;
    if (desc->sending) return add_outgoing(c);
    return tr_landing_alloc(desc->device, desc->max_bytes, c->landing);
}

/* --- sending ---------------------------------------------------------------------------------- */

tr_status tr_channel_host_send(tr_channel *channel, tr_stream *stream, const void *buffer,
                               size_t bytes, int64_t *ticket) {
    tr_channel_host *c = self_of(channel);
    tr_world *world = channel->world;
    pthread_mutex_lock(&world->lock);
    tr_outgoing *o = c->free;
    if (o) c->free = o->next;
    pthread_mutex_unlock(&world->lock);
    if (!o) {
        TR_TRY(add_outgoing(c));
        return tr_channel_host_send(channel, stream, buffer, bytes, ticket);
    }
    double delay = world->delay ? world->delay(world->delay_context, -1, bytes) : 0;
    tr_status status = tr_event_record(o->event, stream);
    pthread_mutex_lock(&world->lock);
    if (status == TR_OK && world->failure != TR_OK) status = tr_world_failed(world);
    if (status != TR_OK) {
        o->next = c->free;
        c->free = o;
    } else {
        o->next = NULL;
        o->buffer = buffer;
        o->bytes = bytes;
        o->delay = delay;
        o->ready = o->posted = false;
        *c->end = o;
        c->end = &o->next;
        *ticket = c->queued++;
        status = tr_channel_poke(channel);
    }
    pthread_mutex_unlock(&world->lock);
    TR_TRY(status);
    return TR_OK;
}

static bool ready_sent(tr_wait *wait) {
    const tr_channel_host *c = wait->object;
    return c->sent > wait->number;
}

static tr_status run_wait_sent(const tr_task *task) {
    tr_channel_host *c = task->object;
    tr_wait wait = {.ready = ready_sent,
                    .object = c,
                    .number = task->count,
                    .what = "the end of send",
                    .peer = c->base.peer};
    return tr_poller_wait(c->base.world, &wait);
}

tr_status tr_channel_host_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket) {
    tr_task task = {.run = run_wait_sent, .object = self_of(channel), .count = ticket};
    return tr_world_enqueue(channel->world, stream, &task);
}

static bool ready_drained(tr_wait *wait) {
    const tr_channel_host *c = wait->object;
    return c->first == NULL;
}

void tr_channel_host_drain(tr_channel_host *c) {
    tr_wait wait = {.ready = ready_drained,
                    .object = c,
                    .number = c->queued - 1,
                    .what = "the end of send",
                    .peer = c->base.peer,
                    .limit_s = tr_world_close_limit(c->base.world)};
    (void)tr_poller_wait(c->base.world, &wait);
}

/* --- receiving -------------------------------------------------------------------------------- */

tr_status tr_channel_host_take(tr_channel_host *c, tr_stream *stream,
                               tr_status (*run)(const tr_task *task), void *to, size_t bytes) {
    const tr_task task = {
        .run = run, .object = c, .out = to, .bytes = bytes, .count = c->claimed++};
    return tr_world_enqueue(c->base.world, stream, &task);
}

tr_status tr_channel_host_taken(tr_channel_host *c) {
    pthread_mutex_lock(&c->base.world->lock);
    c->taken++;
    tr_status status = tr_channel_poke(&c->base); /* a message may wait for the landing buffer */
    pthread_mutex_unlock(&c->base.world->lock);
    return status;
}

static bool ready_taken(tr_wait *wait) {
    const tr_channel_host *c = wait->object;
    return c->taken == wait->number && c->arrived > wait->number;
}

static tr_status run_take(const tr_task *task) {
    tr_channel_host *c = task->object;
    int64_t k = task->count;
    tr_wait wait = {
        .ready = ready_taken, .object = c, .number = k, .what = "message", .peer = c->base.peer};
    TR_TRY(tr_poller_wait(c->base.world, &wait));
    /* Message k's buffer and size belong to this task until `taken` is incremented. */
    const int slot = tr_landing_of(k);
    size_t size = c->size[slot];
    tr_status status = tr_channel_check_size(&c->base, k, size, task->bytes);
    if (status == TR_OK && size > 0) memcpy(task->out, c->landing[slot], size);
    tr_status posted = tr_channel_host_taken(c);
    return status != TR_OK ? status : posted;
}

static tr_status host_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes) {
    return tr_channel_host_take(self_of(channel), stream, run_take, to, bytes);
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void host_close(tr_channel *channel) {
    tr_channel_host *c = self_of(channel);
    tr_world *world = channel->world;
    /* A receiver may be late, and the buffers of unfinished sends are freed below. */
    if (channel->sending) tr_channel_host_drain(c);
    pthread_mutex_lock(&world->lock);
    tr_channel_unlist(channel);
    for (tr_outgoing *o = c->first; o; o = o->next)
        if (o->posted) tr_world_withdraw(world, &o->request);
    if (c->posted > c->arrived) tr_world_withdraw(world, &c->request);
    pthread_mutex_unlock(&world->lock);
    if (tr_world_keeps_memory(world)) return;
    tr_channel_host_clear(c);
    free(c);
}

static const tr_channel_ops host_ops = {.send = tr_channel_host_send,
                                        .wait_sent = tr_channel_host_wait_sent,
                                        .take = host_take,
                                        .poll = host_poll,
                                        .close = host_close};

tr_status tr_channel_make_host(const tr_channel_desc *desc, tr_channel **out) {
    tr_channel_host *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    tr_status status = tr_channel_host_init(c, desc);
    if (status != TR_OK) {
        tr_channel_host_clear(c);
        free(c);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    c->base.ops = &host_ops;
    *out = &c->base;
    return TR_OK;
}
