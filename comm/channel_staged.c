/* Channels of device memory over a host transport: messages travel in chunks through two pinned
 * buffers at each end, so that the copy of one chunk overlaps the transport of another.
 *
 * The progress thread enqueues the copies on the channel's own stream and watches their events. The
 * device does not wait for a message, since that would block every thread that calls it. The worker
 * thread of the compute stream's queue waits instead (device.h). */
#include "base/memory.h"
#include "base/minmax.h"
#include "comm/channel_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 1 << 20,
    BUFFERS = 2,
    HEADER_BYTES = TR_ALIGN /* before each chunk: the size of its whole message */
};

typedef struct chunk {
    unsigned char *memory; /* pinned: header and payload */
    tr_event *event;       /* its copy is done */
    tr_message request;
    bool last; /* of its message */
} chunk;

/* Chunk i uses buffer i % 2. Sending: complete <= posted <= copied <= complete + 2. Receiving:
 * complete <= copied <= posted <= complete + 2, and complete: its copy to the landing buffer is. */
typedef struct staged_channel {
    tr_channel_host host; /* `request` and `posted` are not used */
    tr_stream *stream;
    size_t chunk_bytes; /* of payload */
    chunk chunk[BUFFERS];
    int64_t copied, posted, complete;
    int64_t landing; /* receiving: the message of the chunks that arrive now */
    size_t offset;   /* of the next chunk in its message */
} staged_channel;

static staged_channel *self_of(tr_channel *channel) {
    return (staged_channel *)channel;
}

static tr_status copy_chunk(staged_channel *c, chunk *k, void *to, const void *from, size_t bytes) {
    if (bytes > 0) TR_TRY(tr_stream_copy(c->stream, to, from, bytes));
    TR_TRY(tr_event_record(k->event, c->stream));
    return TR_OK;
}

/* --- sending, under the lock ------------------------------------------------------------------ */

/* Cuts the next chunk from the first message that is not yet `posted`, which it is after its last
 * chunk. */
static tr_status cut_chunk(staged_channel *c, tr_poll *poll, bool *cut) {
    tr_outgoing *o = c->host.first;
    while (o && o->posted) o = o->next;
    *cut = o && tr_outgoing_due(o, poll);
    if (!*cut) return TR_OK;
    chunk *k = &c->chunk[c->copied % BUFFERS];
    size_t bytes = tr_min_size(c->chunk_bytes, o->bytes - c->offset);
    uint64_t whole = o->bytes;
    memcpy(k->memory, &whole, sizeof whole);
    TR_TRY(copy_chunk(c, k, k->memory + HEADER_BYTES, (const char *)o->buffer + c->offset, bytes));
    k->request.bytes = HEADER_BYTES + bytes;
    c->offset += bytes;
    k->last = o->posted = c->offset == o->bytes;
    if (k->last) c->offset = 0;
    c->copied++;
    poll->moved = true;
    return TR_OK;
}

static tr_status poll_sending(staged_channel *c, tr_poll *poll) {
    tr_transport *t = c->host.base.world->transport;
    for (; c->complete < c->posted; c->complete++) {
        chunk *k = &c->chunk[c->complete % BUFFERS];
        bool done;
        TR_TRY(t->ops->test(t, &k->request, &done));
        if (!done) break;
        if (k->last) tr_channel_host_sent(&c->host, poll);
        poll->moved = true;
    }
    for (; c->posted < c->copied; c->posted++) {
        chunk *k = &c->chunk[c->posted % BUFFERS];
        if (!tr_event_reached(k->event)) break;
        TR_TRY(t->ops->post_send(t, c->host.base.peer, TR_TAG_CHANNEL, k->memory, k->request.bytes,
                                 &k->request));
        poll->moved = true;
    }
    for (bool cut = true; cut && c->copied < c->complete + BUFFERS;)
        TR_TRY(cut_chunk(c, poll, &cut));
    if (c->host.first) poll->outstanding = true;
    return TR_OK;
}

/* --- receiving, under the lock ---------------------------------------------------------------- */

/* Copies a chunk that has arrived to its place in the landing buffer. */
static tr_status land_chunk(staged_channel *c, chunk *k) {
    tr_channel_host *h = &c->host;
    uint64_t whole = 0;
    if (!k->request.truncated && k->request.bytes >= HEADER_BYTES)
        memcpy(&whole, k->memory, sizeof whole);
    if (k->request.truncated || k->request.bytes < HEADER_BYTES || whole > h->base.max_bytes)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "message %lld from rank %d is larger than the %zu bytes of its channel",
                       (long long)c->landing, h->base.peer, h->base.max_bytes);
    size_t bytes = k->request.bytes - HEADER_BYTES;
    if (bytes != tr_min_size(c->chunk_bytes, whole - c->offset))
        return TR_FAIL(TR_ERR_INTERNAL,
                       "a part of message %lld from rank %d has %zu bytes: the ends of the channel "
                       "were opened with different sizes",
                       (long long)c->landing, h->base.peer, bytes);
    int slot = tr_landing_of(c->landing);
    TR_TRY(copy_chunk(c, k, (char *)h->landing[slot] + c->offset, k->memory + HEADER_BYTES, bytes));
    c->offset += bytes;
    k->last = c->offset == whole;
    if (k->last) {
        h->size[slot] = whole;
        c->offset = 0;
        c->landing++;
    }
    return TR_OK;
}

static tr_status poll_receiving(staged_channel *c, tr_poll *poll) {
    tr_transport *t = c->host.base.world->transport;
    /* A chunk stays in its pinned buffer until its message has a landing buffer. */
    for (; c->copied < c->posted && tr_landing_is_free(c->landing, c->host.taken); c->copied++) {
        chunk *k = &c->chunk[c->copied % BUFFERS];
        bool done;
        TR_TRY(t->ops->test(t, &k->request, &done));
        if (!done) break;
        TR_TRY(land_chunk(c, k));
        poll->moved = true;
    }
    for (; c->complete < c->copied; c->complete++) {
        chunk *k = &c->chunk[c->complete % BUFFERS];
        if (!tr_event_reached(k->event)) break;
        if (k->last) c->host.arrived++;
        poll->moved = true;
    }
    for (; c->posted < c->complete + BUFFERS; c->posted++) {
        chunk *k = &c->chunk[c->posted % BUFFERS];
        TR_TRY(t->ops->post_recv(t, c->host.base.peer, TR_TAG_CHANNEL, k->memory,
                                 HEADER_BYTES + c->chunk_bytes, &k->request));
    }
    poll->outstanding = true;
    return TR_OK;
}

static tr_status staged_poll(tr_channel *channel, tr_poll *poll) {
    return channel->sending ? poll_sending(self_of(channel), poll)
                            : poll_receiving(self_of(channel), poll);
}

/* --- taking ----------------------------------------------------------------------------------- */

static bool ready_arrived(tr_wait *wait) {
    const staged_channel *c = wait->object;
    return c->host.arrived > wait->number;
}

/* Runs in the worker thread of the compute stream's queue. */
static tr_status run_take(const tr_task *task) {
    staged_channel *c = task->object;
    tr_channel *channel = &c->host.base;
    int64_t k = task->count;
    int slot = tr_landing_of(k);
    tr_wait wait = {
        .ready = ready_arrived, .object = c, .number = k, .what = "message", .peer = channel->peer};
    TR_TRY(tr_poller_wait(channel->world, &wait));
    TR_TRY(tr_channel_check_size(channel, k, c->host.size[slot], task->bytes));
    tr_stream *compute = tr_device_compute(channel->device);
    if (task->bytes > 0)
        TR_TRY(tr_stream_copy(compute, task->out, c->host.landing[slot], task->bytes));
    TR_TRY(tr_stream_sync(compute));
    return tr_channel_host_taken(&c->host);
}

static tr_status staged_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes) {
    return tr_channel_host_take(&self_of(channel)->host, stream, run_take, to, bytes);
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void release(staged_channel *c) {
    tr_device *device = c->host.base.device;
    tr_stream_destroy(c->stream); /* waits for its copies */
    for (int i = 0; i < BUFFERS; i++) {
        tr_event_destroy(c->chunk[i].event);
        tr_device_staging_free(device, c->chunk[i].memory);
    }
    tr_channel_host_clear(&c->host);
    free(c);
}

static void staged_close(tr_channel *channel) {
    staged_channel *c = self_of(channel);
    tr_world *world = channel->world;
    if (channel->sending) tr_channel_host_drain(&c->host);
    /* Its takes have ended: they waited for the same messages, or the world has failed. */
    (void)tr_stream_sync(tr_device_compute(channel->device));
    pthread_mutex_lock(&world->lock);
    tr_channel_unlist(channel);
    int64_t from = channel->sending ? c->complete : c->copied;
    for (; from < c->posted; from++) tr_world_withdraw(world, &c->chunk[from % BUFFERS].request);
    pthread_mutex_unlock(&world->lock);
    if (!tr_world_keeps_memory(world)) release(c);
}

static const tr_channel_ops staged_ops = {.send = tr_channel_host_send,
                                          .wait_sent = tr_channel_host_wait_sent,
                                          .take = staged_take,
                                          .poll = staged_poll,
                                          .close = staged_close};

tr_status tr_channel_make_staged(const tr_channel_desc *desc, tr_channel **out) {
    tr_status status = TR_OK;
    staged_channel *c;
    TR_TRY(tr_device_start_queue(desc->device));
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    c->host.base.ops = &staged_ops;
    c->chunk_bytes = tr_min_size(CHUNK_BYTES, desc->max_bytes);
    TR_TRY_OUT(tr_channel_host_init(&c->host, desc));
    TR_TRY_OUT(tr_stream_create(desc->device, &c->stream));
    for (int i = 0; i < BUFFERS; i++) {
        TR_TRY_OUT(tr_device_staging_alloc(desc->device, HEADER_BYTES + c->chunk_bytes,
                                           (void **)&c->chunk[i].memory));
        TR_TRY_OUT(tr_event_create(desc->device, &c->chunk[i].event));
    }
    *out = &c->host.base;
    return TR_OK;
out:
    release(c);
    return status;
}
