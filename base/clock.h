/* Clocks, in nanoseconds or seconds. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Returns the nanoseconds of a clock. */
static inline int64_t tr_clock_ns(clockid_t clock) {
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns the seconds of a clock. */
static inline double tr_clock_s(clockid_t clock) {
    return 1e-9 * (double)tr_clock_ns(clock);
}

/* Returns nanoseconds of the steady clock since a fixed moment of this boot. It is never set back,
 * and stops while the machine is suspended. */
static inline int64_t tr_now_ns(void) {
    return tr_clock_ns(CLOCK_MONOTONIC);
}

/* Returns seconds since the moment of tr_now_ns. */
static inline double tr_now_s(void) {
    return tr_clock_s(CLOCK_MONOTONIC);
}

/* Returns the seconds from a moment of tr_now_ns to now. */
static inline double tr_since_s(int64_t ns) {
    return 1e-9 * (double)(tr_now_ns() - ns);
}
