/* Channels of NCCL: a communicator of two ranks and a stream for each directed pair. Sends and
 * receives run on that stream. Events order them with the compute stream, and no host thread waits.
 * Empty messages are not sent, because both ends know the sizes. */
#include "base/memory.h"
#include "comm/landing.h"
#include "comm/nccl_impl.h"
#include "comm/nccl_library.h"

#include <stdlib.h>

enum {
    SENDER = 0,
    RECEIVER = 1 /* ranks of the communicator */
};

/* Message k is the communicator's operation k. */
typedef struct nccl_channel {
    tr_channel base;
    tr_nccl_comm comm;
    /* Receiving, by the rules of comm/landing.h; taken <= posted. Sizes of messages taken ..
     * expected - 1 are known: size[k % sizes]. */
    void *landing[TR_CHANNEL_LANDINGS];
    tr_event *copied[TR_CHANNEL_LANDINGS];
    size_t *size;
    int64_t sizes, expected, posted, taken;
} nccl_channel;

static nccl_channel *self_of(tr_channel *channel) {
    return (nccl_channel *)channel;
}

/* --- sending ---------------------------------------------------------------------------------- */

static tr_status enqueue_send(nccl_channel *c, const void *buffer, size_t bytes) {
    tr_nccl_begin(&c->comm, "send");
    return tr_nccl_end(&c->comm, (int)ncclSend(buffer, bytes, ncclInt8, RECEIVER, c->comm.handle,
                                               tr_stream_native(c->comm.stream)));
}

static tr_status nccl_send(tr_channel *channel, tr_stream *stream, const void *buffer, size_t bytes,
                           int64_t *ticket) {
    nccl_channel *c = self_of(channel);
    TR_TRY(tr_nccl_enter(&c->comm, "message", stream));
    if (bytes > 0) TR_TRY(enqueue_send(c, buffer, bytes));
    return tr_nccl_leave(&c->comm, ticket);
}

static tr_status nccl_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket) {
    return tr_nccl_need(&self_of(channel)->comm, ticket, stream);
}

/* --- receiving -------------------------------------------------------------------------------- */

static tr_status enqueue_receive(nccl_channel *c, void *landing, size_t bytes) {
    tr_nccl_begin(&c->comm, "receive");
    return tr_nccl_end(&c->comm, (int)ncclRecv(landing, bytes, ncclInt8, SENDER, c->comm.handle,
                                               tr_stream_native(c->comm.stream)));
}

/* Enqueues the receive of the next message into its landing buffer, once that has been copied. */
static tr_status post_receive(nccl_channel *c) {
    int slot = tr_landing_of(c->posted);
    size_t bytes = c->size[c->posted % c->sizes];
    TR_TRY(tr_nccl_enter(&c->comm, "message", NULL));
    if (bytes > 0) {
        TR_TRY(tr_stream_wait(c->comm.stream, c->copied[slot]));
        TR_TRY(enqueue_receive(c, c->landing[slot], bytes));
    }
    TR_TRY(tr_nccl_leave(&c->comm, &c->posted));
    c->posted++;
    return TR_OK;
}

static tr_status post_ahead(nccl_channel *c) {
    while (c->posted < c->expected && tr_landing_is_free(c->posted, c->taken))
        TR_TRY(post_receive(c));
    return TR_OK;
}

static tr_status nccl_expect(tr_channel *channel, const size_t *sizes, int n) {
    nccl_channel *c = self_of(channel);
    int64_t need = c->expected - c->taken + n;
    if (need > c->sizes) {
        size_t *grown;
        TR_TRY(tr_calloc((size_t)(2 * need), sizeof *grown, &grown));
        for (int64_t k = c->taken; k < c->expected; k++)
            grown[k % (2 * need)] = c->size[k % c->sizes];
        free(c->size);
        c->size = grown;
        c->sizes = 2 * need;
    }
    for (int i = 0; i < n; i++) {
        if (sizes[i] > channel->max_bytes)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "a message of %zu bytes is expected on a channel for %zu bytes",
                           sizes[i], channel->max_bytes);
        c->size[c->expected++ % c->sizes] = sizes[i];
    }
    TR_TRY(post_ahead(c));
    return TR_OK;
}

static tr_status nccl_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes) {
    nccl_channel *c = self_of(channel);
    if (c->taken == c->expected) TR_TRY(nccl_expect(channel, &bytes, 1));
    TR_TRY(tr_channel_check_size(channel, c->taken, c->size[c->taken % c->sizes], bytes));
    int slot = tr_landing_of(c->taken);
    TR_TRY(tr_nccl_need(&c->comm, c->taken, stream));
    if (bytes > 0) TR_TRY(tr_stream_copy(stream, to, c->landing[slot], bytes));
    TR_TRY(tr_event_record(c->copied[slot], stream));
    c->taken++;
    TR_TRY(post_ahead(c));
    return TR_OK;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void nccl_close(tr_channel *channel) {
    nccl_channel *c = self_of(channel);
    /* The receive of a message that was not taken may never end. */
    if (c->posted > c->taken) tr_nccl_abort(&c->comm);
    if (c->comm.world) tr_nccl_close(&c->comm);
    for (int i = 0; i < TR_CHANNEL_LANDINGS; i++) tr_event_destroy(c->copied[i]);
    tr_landing_free(channel->device, c->landing);
    free(c->size);
    free(c);
}

static const tr_channel_ops nccl_ops = {.send = nccl_send,
                                        .wait_sent = nccl_wait_sent,
                                        .expect = nccl_expect,
                                        .take = nccl_take,
                                        .close = nccl_close};

static tr_status make_landings(nccl_channel *c) {
    tr_device *device = c->base.device;
    TR_TRY(tr_landing_alloc(device, c->base.max_bytes, c->landing));
    for (int i = 0; i < TR_CHANNEL_LANDINGS; i++) TR_TRY(tr_event_create(device, &c->copied[i]));
    return TR_OK;
}

/* Sends one byte, so that NCCL connects the two ranks now: enqueuing the first message waits for
 * both ends, and later the ends enqueue at different times. */
static tr_status connect(nccl_channel *c) {
    int64_t number;
    void *byte = c->landing[0];
    tr_device *device = c->base.device;
    if (c->base.sending) TR_TRY(tr_device_alloc(device, TR_MEMORY_NCCL, 1, &byte));
    tr_status status = tr_nccl_enter(&c->comm, "connection", NULL);
    if (status == TR_OK)
        status = c->base.sending ? enqueue_send(c, byte, 1) : enqueue_receive(c, byte, 1);
    if (status == TR_OK) status = tr_nccl_leave(&c->comm, &number);
    if (status == TR_OK) status = tr_nccl_sync(c->base.world, c->comm.stream, &c->comm);
    if (c->base.sending) tr_device_free(device, byte);
    c->comm.begun = c->comm.over = 0; /* so that the channel's first message is number 0 */
    c->comm.meets = false;
    return status;
}

tr_status tr_channel_make_nccl(const tr_channel_desc *d, tr_channel **out) {
    tr_status status = TR_OK;
    nccl_channel *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    c->base = (tr_channel){.ops = &nccl_ops,
                           .world = d->world,
                           .device = d->device,
                           .peer = d->peer,
                           .sending = d->sending,
                           .max_bytes = d->max_bytes};
    int ranks[2] = {d->sending ? d->world->rank : d->peer, d->sending ? d->peer : d->world->rank};
    const tr_nccl_desc comm = {.world = d->world,
                               .device = d->device,
                               .ranks = ranks,
                               .n = 2,
                               .rank = d->sending ? SENDER : RECEIVER,
                               .tag = TR_TAG_CHANNEL,
                               .id = -1,
                               .peer = d->peer,
                               .max_ctas = TR_NCCL_CHANNEL_UNITS};
    if (!d->sending) TR_TRY_OUT(make_landings(c));
    TR_TRY_OUT(tr_nccl_open(&comm, &c->comm));
    TR_TRY_OUT(connect(c));
    *out = &c->base;
    return TR_OK;
out:
    tr_world_give_up(d->world, status);
    nccl_close(&c->base);
    return status;
}
