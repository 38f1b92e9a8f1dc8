/* The steady clock: never set back, stopped while the machine is suspended. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Returns nanoseconds since a fixed moment of this boot. */
static inline int64_t tr_now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns seconds since the same moment. */
static inline double tr_now_s(void) {
    return 1e-9 * (double)tr_now_ns();
}
