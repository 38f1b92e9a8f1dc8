/* Starting threads, with the cause and the remedy when the system refuses. */
#pragma once

#include "base/status.h"

#include <pthread.h>

/* Starts a thread. purpose: what it is for, a few words after "a thread for". Fails with
 * TR_ERR_DEVICE, and the remedy, when the system refuses. */
tr_status tr_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                          const char *purpose);

/* Starts `count` threads, all at once, and ends them. Fails like tr_thread_start when the system
 * refuses one. To be called before OpenMP starts its threads: OpenMP ends the process when it
 * cannot. */
tr_status tr_thread_check(int count, const char *purpose);
