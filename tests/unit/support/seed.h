/* The seed of random tests: TRIREME_SEED, or one that never changes. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* TRIREME_SEED when it is set, else `usual`; printed, so that a failure can be repeated. The suite
 * sets it from the commit, tests/long.sh counts it up. */
static inline uint64_t tr_test_seed(uint64_t usual) {
    const char *given = getenv("TRIREME_SEED");
    uint64_t seed = given && *given ? strtoull(given, NULL, 10) : usual;
    printf("TRIREME_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
