/* Work that a thread does, in the order in which it was queued. The ring that holds it grows when
 * it is full, so a push allocates only while it still grows. Private to device/. */
#pragma once

#include "device/device_impl.h"

/* A piece of work: `run` and what it needs of the rest. */
typedef struct tr_work {
    tr_status (*run)(const struct tr_work *work);
    tr_stream *stream;
    uint64_t number; /* of the queue, from 1 */
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } memory;
        struct {
            void (*function)(void *);
            void *argument;
        } call;
        struct {
            tr_queue *queue; /* one reference */
            uint64_t ticket;
        } point;
        struct {
            tr_op *op;
            tr_op_args args;
        } op;
        tr_event *event;
        char name[64];
    };
} tr_work;

/* skips: after a failure what follows is not done, until tr_queue_sync has told of it. */
tr_status tr_queue_open(bool skips, tr_queue **out);
/* Ends the thread once everything is done; gives up the opener's reference. */
void tr_queue_close(tr_queue *queue);
/* Whoever refers to a point of a queue may outlive it. NULL is allowed. */
tr_queue *tr_queue_retain(tr_queue *queue);
void tr_queue_release(tr_queue *queue);

/* *ticket, unless NULL: the work's number. */
tr_status tr_queue_push(tr_queue *queue, const tr_work *work, uint64_t *ticket);
/* The number of what was pushed last; 0: nothing. */
uint64_t tr_queue_last(tr_queue *queue);
/* Whether the work of this number, and all before it, is done; waits until it is. */
bool tr_queue_passed(tr_queue *queue, uint64_t ticket);
void tr_queue_wait(tr_queue *queue, uint64_t ticket);
/* Waits for all that was pushed; the first failure since the last call. */
tr_status tr_queue_sync(tr_queue *queue);
/* Whether the caller is the queue's own thread. */
bool tr_queue_is_caller(const tr_queue *queue);
