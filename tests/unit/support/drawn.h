/* Draws cases of a test by the commit. */
#pragma once

#include "base/philox.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Returns whether the case with this number is run: with TRIREME_DRAW (tests/run.sh: the commit)
 * about every second one is, and without it (tests/long.sh) all are. */
static inline bool tr_test_drawn(uint64_t number) {
    const char *draw = getenv("TRIREME_DRAW");
    return !draw || tr_mix64(tr_hash_name(draw) + number) % 2 == 0;
}
