/* Shared by the channels over a host transport: those of host memory (channel_host.c) and those
 * that stage device memory (channel_staged.c). Private to comm/. */
#pragma once

#include "comm/landing.h"
#include "comm/world_impl.h"

/* A message that is being sent. */
typedef struct tr_outgoing {
    struct tr_outgoing *next;
    const void *buffer;
    size_t bytes;
    double delay;    /* seconds by which it is delayed */
    double visible;  /* when it may be sent, once its data is computed */
    tr_event *event; /* the stream has computed the data */
    bool ready, posted;
    tr_message request;
} tr_outgoing;

typedef struct tr_outgoing_chunk tr_outgoing_chunk;

typedef struct tr_channel_host {
    tr_channel base;
    /* Sending: messages in order; [0, sent) are complete, `first` is number `sent`. */
    tr_outgoing *first, **end, *free;
    tr_outgoing_chunk *chunks;
    int64_t queued, sent;
    /* Receiving, by the rules of comm/landing.h; taken <= arrived <= posted. */
    void *landing[TR_CHANNEL_LANDINGS];
    size_t size[TR_CHANNEL_LANDINGS];
    tr_message request; /* the request of message posted - 1 */
    int64_t posted, arrived, taken;
    int64_t claimed; /* number of takes that were enqueued; only the caller's thread uses it */
} tr_channel_host;

/* Allocates slots for messages, or landing buffers, for a zeroed channel of this description. */
tr_status tr_channel_host_init(tr_channel_host *channel, const tr_channel_desc *desc);
/* Frees what tr_channel_host_init allocated, but not the channel. */
void tr_channel_host_clear(tr_channel_host *channel);

/* Entries of tr_channel_ops. */
tr_status tr_channel_host_send(tr_channel *channel, tr_stream *stream, const void *buffer,
                               size_t bytes, int64_t *ticket);
tr_status tr_channel_host_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket);

/* Runs a take of the next message in stream order: `run` with the channel, `to`, `bytes`, and the
 * message's number as the task's count. */
tr_status tr_channel_host_take(tr_channel_host *channel, tr_stream *stream,
                               tr_status (*run)(const tr_task *task), void *to, size_t bytes);
/* Frees the landing buffer of a message that was taken. Takes the lock. */
tr_status tr_channel_host_taken(tr_channel_host *channel);

/* Returns true when a message's data is computed and its delay is over. Under the lock. */
bool tr_outgoing_due(tr_outgoing *message, tr_poll *poll);
/* Marks the first message as complete. Under the lock. */
void tr_channel_host_sent(tr_channel_host *channel, tr_poll *poll);
/* Waits until every message is complete, at most until the deadline, or for 10 s without a
 * deadline. */
void tr_channel_host_drain(tr_channel_host *channel);
