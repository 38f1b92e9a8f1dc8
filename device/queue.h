/* A queue of work for a worker thread, which runs it in order. The ring grows when it is full, so
 * later pushes do not allocate. Private to device/. */
#pragma once

#include "device/device_impl.h"

/* A work item: `run` and its arguments. */
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

/* Opens a queue. skips: after a failure, later work is skipped until tr_queue_sync has returned the
 * failure. */
tr_status tr_queue_open(bool skips, tr_queue **out);
/* Ends the thread once all work is done, and releases the opener's reference. */
void tr_queue_close(tr_queue *queue);
/* Take and release references, for objects that refer to a point of a queue and may outlive it.
 * NULL is allowed. */
tr_queue *tr_queue_retain(tr_queue *queue);
void tr_queue_release(tr_queue *queue);

/* Pushes work. Sets *ticket, unless NULL, to its number. */
tr_status tr_queue_push(tr_queue *queue, const tr_work *work, uint64_t *ticket);
/* Returns the number of the last pushed work; 0: none. */
uint64_t tr_queue_last(tr_queue *queue);
/* Return true when the work of this number, and all earlier work, is done; wait until it is. */
bool tr_queue_passed(tr_queue *queue, uint64_t ticket);
void tr_queue_wait(tr_queue *queue, uint64_t ticket);
/* Waits for all pushed work. Returns the first failure since the last call. */
tr_status tr_queue_sync(tr_queue *queue);
/* Returns true when the caller is the queue's worker thread. */
bool tr_queue_is_caller(const tr_queue *queue);
