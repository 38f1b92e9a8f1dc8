#include "base/launched.h"

#include <stdlib.h>

int tr_launched_rank(void) {
    static const char *const name[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        const char *rank = getenv(name[i]);
        if (rank) return atoi(rank);
    }
    return -1;
}

bool tr_is_launched(void) {
    return tr_launched_rank() >= 0 || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") ||
           getenv("PMI_FD");
}
