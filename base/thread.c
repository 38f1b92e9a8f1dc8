#include "base/thread.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

tr_status tr_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                          const char *purpose) {
    const int error = pthread_create(thread, NULL, run, argument);
    if (!error) return TR_OK;
    /* Filters of system calls that are older than clone3 refuse it with this error, and then the C
     * library does not try clone. */
    return TR_FAIL(TR_ERR_DEVICE, "cannot start a thread for %s: %s: %s", purpose, strerror(error),
                   error == EPERM ? "let the container call clone3: use a newer container engine, "
                                    "or docker run --security-opt seccomp=unconfined"
                                  : "raise the limit of processes (ulimit -u)");
}

/* Returns when the caller has started all threads. */
static void *wait_for_all(void *lock) {
    (void)pthread_mutex_lock(lock);
    (void)pthread_mutex_unlock(lock);
    return NULL;
}

tr_status tr_thread_check(int count, const char *purpose) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *thread;
    tr_status status = TR_OK;
    int started = 0;
    if (count < 1) return TR_OK;
    TR_TRY(tr_calloc((size_t)count, sizeof *thread, &thread));
    (void)pthread_mutex_lock(&lock);
    while (status == TR_OK && started < count) {
        status = tr_thread_start(&thread[started], wait_for_all, &lock, purpose);
        started += status == TR_OK;
    }
    (void)pthread_mutex_unlock(&lock);
    while (started > 0) (void)pthread_join(thread[--started], NULL);
    free(thread);
    return status;
}
