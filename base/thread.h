/* Threads, and what a process is told that may not start one. */
#pragma once

#include "base/status.h"

#include <pthread.h>

/* Starts a thread. purpose: what it is for, a few words after "a thread for". Fails with
 * TR_ERR_DEVICE, and the remedy, when the system refuses. */
tr_status tr_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                          const char *purpose);

/* Fails like tr_thread_start unless this process may have `count` threads more, all at once. They
 * have ended when it returns. Call it before OpenMP starts threads, since it ends the process when
 * it cannot. */
tr_status tr_thread_check(int count, const char *purpose);
