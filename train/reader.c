#include "train/reader.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct tr_reader {
    tr_reader_fn read;
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, busy; /* busy: a read was asked for and is not finished */
    bool ready;      /* the result of `first` was not taken yet */
    int64_t first;
    tr_status status;
    tr_error error;
};

static void *run(void *argument) {
    tr_reader *r = argument;
    (void)pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!r->busy) { /* nothing to read until tr_reader_start */
            (void)pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&r->lock);
        tr_status status = r->read(r->context, r->first);
        (void)pthread_mutex_lock(&r->lock);
        r->status = status;
        if (status != TR_OK) tr_error_save(&r->error);
        r->busy = false;
        r->ready = true;
        (void)pthread_cond_broadcast(&r->changed);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

tr_status tr_reader_open(tr_reader_fn read, void *context, tr_reader **out) {
    tr_reader *r;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    r->read = read;
    r->context = context;
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->changed, NULL);
    int error = pthread_create(&r->thread, NULL, run, r);
    if (error != 0) {
        free(r);
        return TR_FAIL(TR_ERR_DEVICE,
                       "cannot start a thread for reading ahead: %s: raise the limit of processes "
                       "(ulimit -u)",
                       strerror(error));
    }
    *out = r;
    return TR_OK;
}

void tr_reader_close(tr_reader *r) {
    if (!r) return;
    (void)pthread_mutex_lock(&r->lock);
    r->stop = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

void tr_reader_start(tr_reader *r, int64_t first) {
    (void)pthread_mutex_lock(&r->lock);
    r->first = first;
    r->ready = false;
    r->busy = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->lock);
}

void tr_reader_wait(tr_reader *r) {
    (void)pthread_mutex_lock(&r->lock);
    while (r->busy) (void)pthread_cond_wait(&r->changed, &r->lock);
    (void)pthread_mutex_unlock(&r->lock);
}

bool tr_reader_take(tr_reader *r, int64_t first, tr_status *status) {
    tr_reader_wait(r);
    if (!r->ready || r->first != first) return false;
    r->ready = false;
    *status = r->status;
    if (r->status != TR_OK) tr_error_restore(&r->error);
    return true;
}
