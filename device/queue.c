#include "device/queue.h"

#include "base/memory.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tr_queue {
    pthread_mutex_t lock; /* guards all fields below except the references */
    pthread_cond_t filled, moved;
    pthread_t thread;
    tr_work *ring; /* work number i is at ring[(i - 1) % capacity] */
    size_t capacity;
    uint64_t issued, taken, done;
    int waiters;
    bool closing, skips;
    tr_status status; /* first failure since the last sync, and its sentence */
    char message[1024];
    atomic_int references;
};

tr_queue *tr_queue_retain(tr_queue *queue) {
    if (queue) atomic_fetch_add(&queue->references, 1);
    return queue;
}

void tr_queue_release(tr_queue *queue) {
    if (!queue || atomic_fetch_sub(&queue->references, 1) != 1) return;
    pthread_cond_destroy(&queue->filled);
    pthread_cond_destroy(&queue->moved);
    pthread_mutex_destroy(&queue->lock);
    free(queue->ring);
    free(queue);
}

/* Under the lock. */
static void note_failure(tr_queue *queue, tr_status status) {
    if (status == TR_OK || queue->status != TR_OK) return;
    queue->status = status;
    (void)snprintf(queue->message, sizeof queue->message, "%s", tr_error_message());
}

static void *work_off(void *argument) {
    tr_queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        /* Sleeps until work is pushed or the queue closes. */
        while (queue->taken == queue->issued && !queue->closing)
            pthread_cond_wait(&queue->filled, &queue->lock);
        if (queue->taken == queue->issued) break;
        tr_work work = queue->ring[queue->taken++ % queue->capacity];
        if (!queue->skips || queue->status == TR_OK) {
            pthread_mutex_unlock(&queue->lock);
            tr_status status = work.run(&work);
            pthread_mutex_lock(&queue->lock);
            note_failure(queue, status);
        }
        queue->done++;
        if (queue->waiters) pthread_cond_broadcast(&queue->moved);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* Doubles the ring; work keeps its numbers. Under the lock. */
static tr_status grow_ring(tr_queue *queue) {
    size_t capacity = queue->capacity ? 2 * queue->capacity : 64;
    tr_work *ring;
    TR_TRY(tr_calloc(capacity, sizeof *ring, &ring));
    for (uint64_t i = queue->taken; i < queue->issued; i++)
        ring[i % capacity] = queue->ring[i % queue->capacity];
    free(queue->ring);
    queue->ring = ring;
    queue->capacity = capacity;
    return TR_OK;
}

tr_status tr_queue_open(bool skips, tr_queue **out) {
    tr_queue *queue;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *queue, &queue));
    queue->skips = skips;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->filled, NULL);
    pthread_cond_init(&queue->moved, NULL);
    atomic_init(&queue->references, 1);
    tr_status status = grow_ring(queue);
    if (status == TR_OK) status = tr_thread_start(&queue->thread, work_off, queue, "a stream");
    if (status == TR_OK) *out = queue;
    else tr_queue_release(queue);
    return status;
}

void tr_queue_close(tr_queue *queue) {
    if (!queue) return;
    pthread_mutex_lock(&queue->lock);
    queue->closing = true;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    tr_queue_release(queue);
}

tr_status tr_queue_push(tr_queue *queue, const tr_work *work, uint64_t *ticket) {
    tr_status status = TR_OK;
    pthread_mutex_lock(&queue->lock);
    if (queue->issued - queue->taken == queue->capacity) status = grow_ring(queue);
    if (status == TR_OK) {
        tr_work *own = &queue->ring[queue->issued++ % queue->capacity];
        *own = *work;
        own->number = queue->issued;
        if (ticket) *ticket = own->number;
        pthread_cond_signal(&queue->filled);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

uint64_t tr_queue_last(tr_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    uint64_t ticket = queue->issued;
    pthread_mutex_unlock(&queue->lock);
    return ticket;
}

bool tr_queue_passed(tr_queue *queue, uint64_t ticket) {
    pthread_mutex_lock(&queue->lock);
    bool passed = queue->done >= ticket;
    pthread_mutex_unlock(&queue->lock);
    return passed;
}

/* Under the lock. */
static void wait_for(tr_queue *queue, uint64_t ticket) {
    queue->waiters++;
    while (queue->done < ticket) pthread_cond_wait(&queue->moved, &queue->lock);
    queue->waiters--;
}

void tr_queue_wait(tr_queue *queue, uint64_t ticket) {
    pthread_mutex_lock(&queue->lock);
    wait_for(queue, ticket);
    pthread_mutex_unlock(&queue->lock);
}

tr_status tr_queue_sync(tr_queue *queue) {
    char message[sizeof queue->message];
    pthread_mutex_lock(&queue->lock);
    wait_for(queue, queue->issued);
    tr_status status = queue->status;
    memcpy(message, queue->message, sizeof message);
    queue->status = TR_OK;
    pthread_mutex_unlock(&queue->lock);
    return status == TR_OK ? TR_OK : TR_FAIL(status, "%s", message);
}

bool tr_queue_is_caller(const tr_queue *queue) {
    return pthread_equal(queue->thread, pthread_self());
}
