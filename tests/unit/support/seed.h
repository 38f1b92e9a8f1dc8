/* The seed of random tests, and how much damage they try. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns TRIREME_SEED when it is set, otherwise `usual`, and prints it, so that a failure can be
 * repeated. The suite derives it from the commit; tests/long.sh counts it up. */
static inline uint64_t tr_test_seed(uint64_t usual) {
    const char *given = getenv("TRIREME_SEED");
    uint64_t seed = given && *given ? strtoull(given, NULL, 10) : usual;
    printf("TRIREME_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* With the address sanitizer each trial takes four times as long, and the first quarter of the
 * trials runs; the release build runs them all. */
#ifdef __SANITIZE_ADDRESS__
enum { TR_TEST_PART = 4 };
#else
enum { TR_TEST_PART = 1 };
#endif

/* Returns how many damaged inputs a test tries: TRIREME_ROUNDS when it is set, otherwise `usual`,
 * or a quarter of it with the address sanitizer. */
static inline int64_t tr_test_rounds(int64_t usual) {
    const char *given = getenv("TRIREME_ROUNDS");
    return given && *given ? atoll(given) : usual / TR_TEST_PART;
}

/* Returns how many trials a random test makes: `usual`, or a quarter of it with the address
 * sanitizer; 50 times as many with TRIREME_LONG=1. */
static inline int tr_test_trials(int usual) {
    return getenv("TRIREME_LONG") ? 50 * usual : usual / TR_TEST_PART;
}

/* Returns a random number in [1, n] and advances *random. */
static inline int64_t tr_up_to(uint64_t *random, int64_t n) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(*random >> 33) % n + 1;
}
