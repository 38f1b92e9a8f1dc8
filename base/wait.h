/* Waits for a condition variable that end at a given time of the steady clock (tr_now_ns), which is
 * never set. */
#pragma once

#include "base/clock.h"

#include <pthread.h>
#include <stdbool.h>

static inline struct timespec tr_timespec(int64_t ns) {
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* Makes a condition variable for tr_cond_wait_until. */
static inline void tr_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t steady;
    (void)pthread_condattr_init(&steady);
    (void)pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &steady);
    (void)pthread_condattr_destroy(&steady);
}

/* Waits for a signal, or until this moment. Returns false when the moment has come. */
static inline bool tr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns) {
    const struct timespec until = tr_timespec(ns);
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

/* Takes the lock and returns true, or gives up after ns and returns false. Uses the clock of the
 * day, because ThreadSanitizer does not see a lock that is taken with another clock. That clock may
 * be set during the wait, so ns should be short. */
static inline bool tr_lock_within(pthread_mutex_t *lock, int64_t ns) {
    const struct timespec until = tr_timespec(tr_clock_ns(CLOCK_REALTIME) + ns);
    return pthread_mutex_timedlock(lock, &until) == 0;
}
