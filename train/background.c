#include "train/background.h"

#include "base/memory.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct tr_background {
    tr_background_fn work;
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, busy; /* busy: work was asked for and is not finished */
    bool ready;      /* the result of `number` was not taken yet */
    int64_t number;
    tr_status status;
    tr_error error;
};

static void *run(void *argument) {
    tr_background *b = argument;
    (void)pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        if (!b->busy) { /* nothing to do until tr_background_start */
            (void)pthread_cond_wait(&b->changed, &b->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&b->lock);
        tr_status status = b->work(b->context, b->number);
        (void)pthread_mutex_lock(&b->lock);
        b->status = status;
        if (status != TR_OK) tr_error_save(&b->error);
        b->busy = false;
        b->ready = true;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

tr_status tr_background_open(tr_background_fn work, void *context, const char *purpose,
                             tr_background **out) {
    tr_background *b;
    TR_TRY(tr_calloc(1, sizeof *b, &b));
    b->work = work;
    b->context = context;
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    const tr_status status = tr_thread_start(&b->thread, run, b, purpose);
    if (status == TR_OK) {
        *out = b;
    } else {
        (void)pthread_cond_destroy(&b->changed);
        (void)pthread_mutex_destroy(&b->lock);
        free(b);
    }
    return status;
}

void tr_background_close(tr_background *b) {
    if (!b) return;
    (void)pthread_mutex_lock(&b->lock);
    b->stop = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    (void)pthread_join(b->thread, NULL);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

void tr_background_start(tr_background *b, int64_t number) {
    (void)pthread_mutex_lock(&b->lock);
    b->number = number;
    b->ready = false;
    b->busy = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

bool tr_background_busy(tr_background *b) {
    (void)pthread_mutex_lock(&b->lock);
    const bool busy = b->busy;
    (void)pthread_mutex_unlock(&b->lock);
    return busy;
}

void tr_background_wait(tr_background *b) {
    (void)pthread_mutex_lock(&b->lock);
    while (b->busy) (void)pthread_cond_wait(&b->changed, &b->lock);
    (void)pthread_mutex_unlock(&b->lock);
}

bool tr_background_take(tr_background *b, int64_t number, tr_status *status) {
    tr_background_wait(b);
    if (!b->ready || b->number != number) return false;
    b->ready = false;
    *status = b->status;
    if (b->status != TR_OK) tr_error_restore(&b->error);
    return true;
}
