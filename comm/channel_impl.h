/* What the channels over a host transport share: those of host memory (channel_host.c) and those
 * that stage device memory (channel_staged.c). Private to comm/. */
#pragma once

#include "comm/world_impl.h"

/* A message on its way out. */
typedef struct tr_outgoing {
    struct tr_outgoing *next;
    const void *buffer;
    size_t bytes;
    double delay;    /* seconds that it is held back */
    double visible;  /* when it may go, once its data is there */
    tr_event *event; /* the stream has computed the data */
    bool ready, posted;
    tr_request request;
} tr_outgoing;

typedef struct tr_outgoing_chunk tr_outgoing_chunk;

typedef struct tr_channel_host {
    tr_channel base;
    /* Sending: messages in order; [0, sent) are complete, `first` is number `sent`. */
    tr_outgoing *first, **end, *free;
    tr_outgoing_chunk *chunks;
    int64_t queued, sent;
    /* Receiving: message k lands in landing[k % 2]. taken <= arrived <= posted <= taken + 2. */
    void *landing[TR_CHANNEL_LANDINGS];
    size_t size[TR_CHANNEL_LANDINGS];
    tr_request request; /* of message posted - 1 */
    int64_t posted, arrived, taken;
    int64_t claimed; /* messages that takes were enqueued for */
} tr_channel_host;

/* Slots for messages, or landing buffers, for a zeroed channel of this description. */
tr_status tr_channel_host_init(tr_channel_host *channel, const tr_channel_desc *desc);
/* Frees what init made, not the channel. */
void tr_channel_host_clear(tr_channel_host *channel);

/* Entries of tr_channel_ops. */
tr_status tr_channel_host_send(tr_channel *channel, tr_stream *stream, const void *buffer,
                               size_t bytes, int64_t *ticket);
tr_status tr_channel_host_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket);

/* Under the lock: whether a message's data is there and it need not be held back any longer. */
bool tr_outgoing_due(tr_outgoing *message, tr_poll *poll);
/* Under the lock: the first message is complete. */
void tr_channel_host_sent(tr_channel_host *channel, tr_poll *poll);
/* Waits until every message is complete; gives up at the deadline, after 10 s without one. */
void tr_channel_host_drain(tr_channel_host *channel);
