/* Channels: one FIFO per directed pair of ranks, moved by the progress engine. */
#include "base/memory.h"
#include "comm/world_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 16 };
static const double CLOSE_LIMIT_S =
    10; /* what close waits for unfinished sends without a deadline */

/* A message on its way out. */
typedef struct outgoing {
    struct outgoing *next;
    const void *buffer;
    size_t bytes;
    double delay;    /* seconds that it is held back */
    double visible;  /* when it may go, once its data is there */
    tr_event *event; /* the stream has computed the data */
    bool ready, posted;
    tr_request request;
} outgoing;

typedef struct outgoing_chunk {
    struct outgoing_chunk *next;
    outgoing slot[CHUNK];
} outgoing_chunk;

struct tr_channel {
    tr_channel *next;
    tr_world *world;
    tr_device *device;
    int peer;
    bool sending;
    size_t max_bytes;
    /* Sending: messages in order; [0, sent) are complete, `first` is number `sent`. */
    outgoing *first, **end, *free;
    outgoing_chunk *chunks;
    int64_t queued, sent;
    /* Receiving: message k lands in landing[k % 2]. taken <= arrived <= posted <= taken + 2. */
    void *landing[TR_CHANNEL_LANDINGS];
    size_t size[TR_CHANNEL_LANDINGS];
    tr_request request; /* of message posted - 1 */
    int64_t posted, arrived, taken;
    int64_t claimed; /* messages that takes were enqueued for */
};

tr_channel *tr_channel_next(tr_channel *channel) {
    return channel->next;
}

static tr_status poll_sending(tr_channel *c, tr_poll *poll) {
    tr_transport *t = c->world->transport;
    while (c->first && c->first->posted) {
        outgoing *o = c->first;
        bool done;
        TR_TRY(t->ops->test(t, &o->request, &done));
        if (!done) break;
        c->first = o->next;
        if (!c->first) c->end = &c->first;
        o->next = c->free;
        c->free = o;
        c->sent++;
        poll->moved = true;
    }
    if (c->first) poll->outstanding = true;
    for (outgoing *o = c->first; o; o = o->next) {
        if (o->posted) continue;
        if (!o->ready) {
            if (!tr_event_reached(o->event)) return TR_OK;
            o->ready = true;
            o->visible = o->delay > 0 ? tr_now() + o->delay : 0;
        }
        if (o->visible > 0 && o->visible > tr_now()) {
            if (o->visible < poll->next) poll->next = o->visible;
            return TR_OK;
        }
        TR_TRY(t->ops->post_send(t, c->peer, TR_TAG_CHANNEL, o->buffer, o->bytes, &o->request));
        o->posted = poll->moved = true;
    }
    return TR_OK;
}

static tr_status poll_receiving(tr_channel *c, tr_poll *poll) {
    tr_transport *t = c->world->transport;
    if (c->posted > c->arrived) {
        bool done;
        TR_TRY(t->ops->test(t, &c->request, &done));
        if (done) {
            if (c->request.truncated)
                return TR_FAIL(
                    TR_ERR_INTERNAL,
                    "message %lld from rank %d is larger than the %zu bytes of its channel",
                    (long long)c->arrived, c->peer, c->max_bytes);
            c->size[c->arrived++ % TR_CHANNEL_LANDINGS] = c->request.bytes;
            poll->moved = true;
        }
    }
    /* The next receive waits for nothing but the one before it and a free buffer: what compute does
     * cannot hold up the sender. */
    if (c->posted == c->arrived && c->posted < c->taken + TR_CHANNEL_LANDINGS) {
        TR_TRY(t->ops->post_recv(t, c->peer, TR_TAG_CHANNEL,
                                 c->landing[c->posted % TR_CHANNEL_LANDINGS], c->max_bytes,
                                 &c->request));
        c->posted++;
    }
    if (c->posted > c->arrived) poll->outstanding = true;
    return TR_OK;
}

tr_status tr_channel_poll(tr_channel *channel, tr_poll *poll) {
    return channel->sending ? poll_sending(channel, poll) : poll_receiving(channel, poll);
}

/* Polls one channel after a caller's change and wakes the engine for what is left. Under the lock.
 */
static tr_status poke(tr_channel *c) {
    tr_poll poll;
    tr_status status;
    do { /* a small send is complete as soon as it is posted: the second round finds that */
        poll = (tr_poll){.next = INFINITY};
        status = tr_channel_poll(c, &poll);
    } while (status == TR_OK && poll.moved);
    if (status != TR_OK) (void)tr_world_fail(c->world, status, tr_error_message());
    else if (poll.outstanding) tr_engine_wake(c->world, c->sending);
    return status;
}

static void free_channel(tr_channel *c) {
    for (outgoing_chunk *k = c->chunks; k;) {
        outgoing_chunk *next = k->next;
        for (int i = 0; i < CHUNK; i++)
            if (k->slot[i].event) tr_event_destroy(k->slot[i].event);
        free(k);
        k = next;
    }
    for (int i = 0; i < TR_CHANNEL_LANDINGS; i++)
        if (c->landing[i]) tr_device_free(c->device, c->landing[i]);
    free(c);
}

/* More slots for outgoing messages: in a steady state none is made. */
static tr_status add_outgoing(tr_channel *c) {
    outgoing_chunk *chunk;
    TR_TRY(tr_calloc(1, sizeof *chunk, &chunk));
    tr_status status = TR_OK;
    for (int i = 0; i < CHUNK; i++) TR_TRY_OUT(tr_event_create(c->device, &chunk->slot[i].event));
    pthread_mutex_lock(&c->world->lock);
    chunk->next = c->chunks;
    c->chunks = chunk;
    for (int i = 0; i < CHUNK; i++) {
        chunk->slot[i].next = c->free;
        c->free = &chunk->slot[i];
    }
    pthread_mutex_unlock(&c->world->lock);
    return TR_OK;
out:
    for (int i = 0; i < CHUNK; i++)
        if (chunk->slot[i].event) tr_event_destroy(chunk->slot[i].event);
    free(chunk);
    return status;
}

tr_status tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                          size_t max_bytes, tr_channel **out) {
    if (peer < 0 || peer >= world->size || peer == world->rank)
        return TR_FAIL(TR_ERR_INTERNAL, "rank %d of %d opens a channel with rank %d", world->rank,
                       world->size, peer);
    tr_channel *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    c->world = world;
    c->device = device;
    c->peer = peer;
    c->sending = sending;
    c->max_bytes = max_bytes;
    c->end = &c->first;
    tr_status status = TR_OK;
    if (sending) TR_TRY_OUT(add_outgoing(c));
    else
        for (int i = 0; i < TR_CHANNEL_LANDINGS; i++)
            TR_TRY_OUT(tr_device_alloc(device, max_bytes > 0 ? max_bytes : 1, &c->landing[i]));
    pthread_mutex_lock(&world->lock);
    c->next = world->channels;
    world->channels = c;
    status = poke(c);
    pthread_mutex_unlock(&world->lock);
    if (status == TR_OK) {
        *out = c;
        return TR_OK;
    }
    tr_channel_close(c);
    return tr_trace_at(__FILE__, __LINE__, status);
out:
    free_channel(c);
    return status;
}

/* --- sending ---------------------------------------------------------------------------------- */

tr_status tr_channel_send(tr_channel *channel, tr_stream *stream, const void *buffer, size_t bytes,
                          int64_t *ticket) {
    tr_channel *c = channel;
    tr_world *world = c->world;
    if (!c->sending || bytes > c->max_bytes)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "a send of %zu bytes on a channel to rank %d for %s%zu bytes", bytes,
                       c->peer, c->sending ? "" : "receiving ", c->max_bytes);
    double delay = world->delay ? world->delay(world->delay_context, bytes) : 0;
    pthread_mutex_lock(&world->lock);
    outgoing *o = c->free;
    if (o) c->free = o->next;
    pthread_mutex_unlock(&world->lock);
    if (!o) {
        TR_TRY(add_outgoing(c));
        return tr_channel_send(channel, stream, buffer, bytes, ticket);
    }
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
        status = poke(c);
    }
    pthread_mutex_unlock(&world->lock);
    TR_TRY(status);
    return TR_OK;
}

static bool ready_sent(tr_wait *wait) {
    const tr_channel *c = wait->object;
    return c->sent > wait->number;
}

static tr_status run_wait_sent(const tr_job *job) {
    tr_channel *c = job->object;
    tr_wait wait = {.ready = ready_sent,
                    .object = c,
                    .number = job->count,
                    .what = "the end of send",
                    .peer = c->peer};
    return tr_engine_wait(c->world, &wait);
}

tr_status tr_channel_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket) {
    tr_job job = {.run = run_wait_sent, .object = channel, .count = ticket};
    TR_TRY(tr_world_enqueue(channel->world, stream, &job));
    return TR_OK;
}

/* --- receiving -------------------------------------------------------------------------------- */

static bool ready_taken(tr_wait *wait) {
    const tr_channel *c = wait->object;
    return c->taken == wait->number && c->arrived > wait->number;
}

static tr_status run_take(const tr_job *job) {
    tr_channel *c = job->object;
    int64_t k = job->count;
    tr_wait wait = {
        .ready = ready_taken, .object = c, .number = k, .what = "message", .peer = c->peer};
    TR_TRY(tr_engine_wait(c->world, &wait));
    /* Message k's buffer and size are this job's until `taken` moves on. */
    size_t size = c->size[k % TR_CHANNEL_LANDINGS];
    tr_status status = TR_OK;
    if (size != job->bytes)
        status =
            TR_FAIL(TR_ERR_INTERNAL, "message %lld from rank %d has %zu bytes, %zu were expected",
                    (long long)k, c->peer, size, job->bytes);
    else if (size > 0) memcpy(job->out, c->landing[k % TR_CHANNEL_LANDINGS], size);
    pthread_mutex_lock(&c->world->lock);
    c->taken++;
    tr_status posted = poke(c);
    pthread_mutex_unlock(&c->world->lock);
    return status != TR_OK ? status : posted;
}

tr_status tr_channel_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes) {
    if (channel->sending)
        return TR_FAIL(TR_ERR_INTERNAL, "a take on the sending channel to rank %d", channel->peer);
    pthread_mutex_lock(&channel->world->lock);
    int64_t k = channel->claimed++;
    pthread_mutex_unlock(&channel->world->lock);
    tr_job job = {.run = run_take, .object = channel, .out = to, .bytes = bytes, .count = k};
    TR_TRY(tr_world_enqueue(channel->world, stream, &job));
    return TR_OK;
}

/* --- closing ---------------------------------------------------------------------------------- */

static bool ready_drained(tr_wait *wait) {
    const tr_channel *c = wait->object;
    return c->first == NULL;
}

void tr_channel_close(tr_channel *channel) {
    if (!channel) return;
    tr_channel *c = channel;
    tr_world *world = c->world;
    tr_transport *t = world->transport;
    if (c->sending) {
        pthread_mutex_lock(&world->lock);
        double deadline = world->hook.deadline_s;
        pthread_mutex_unlock(&world->lock);
        tr_wait wait = {.ready = ready_drained,
                        .object = c,
                        .number = c->queued - 1,
                        .what = "the end of send",
                        .peer = c->peer,
                        .limit_s = deadline > 0 ? deadline : CLOSE_LIMIT_S};
        /* A receiver may be behind; the buffers of unfinished sends are about to go. */
        (void)tr_engine_wait(world, &wait);
    }
    bool released = true;
    pthread_mutex_lock(&world->lock);
    for (tr_channel **at = &world->channels; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    for (outgoing *o = c->first; o; o = o->next)
        if (o->posted) released &= t->ops->cancel(t, &o->request);
    if (c->posted > c->arrived) released &= t->ops->cancel(t, &c->request);
    pthread_mutex_unlock(&world->lock);
    /* Memory that the transport may still write stays: the world has failed and the process ends.
     */
    if (released) free_channel(c);
}
