#include "cli/cli.h"

#include <sched.h>
#include <unistd.h>

int cli_usable_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int64_t cli_rank_threads(int64_t asked, int host_ranks) {
    int cores = cli_usable_cores();
    if (asked > 0) return asked;
    return cores > host_ranks ? cores / host_ranks : 1;
}
