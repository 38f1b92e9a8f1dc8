#include "base/cores.h"

#include "base/cgroup.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(CPU_SETSIZE <= TR_CORES_MAX, "a set of the C library fits");

/* Reads a number of the CPU's topology from sysfs, or returns `otherwise` where the system has
 * none. Of a list it reads the first number: the lowest sibling thread names the physical core. */
static int topology(int cpu, const char *what, int otherwise) {
    char path[128];
    int number = otherwise;
    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    FILE *file = fopen(path, "re");
    if (!file) return otherwise;
    if (fscanf(file, "%d", &number) != 1) number = otherwise;
    (void)fclose(file);
    return number;
}

static int64_t place_of(int cpu) {
    int64_t package = topology(cpu, "physical_package_id", 0);
    int64_t core = topology(cpu, "thread_siblings_list", cpu);
    return (package * TR_CORES_MAX + core) * TR_CORES_MAX + cpu;
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void tr_cores_usable(tr_cores *out) {
    cpu_set_t set;
    int64_t place[TR_CORES_MAX];
    *out = (tr_cores){0};
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set)) place[out->count++] = place_of(cpu);
    qsort(place, (size_t)out->count, sizeof *place, compare);
    for (int i = 0; i < out->count; i++) out->cpu[i] = (int)(place[i] % TR_CORES_MAX);
}

int tr_cores_count(void) {
    cpu_set_t set;
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    return count > 1 ? tr_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup", (int)count) : 1;
}

void tr_cores_share(const tr_cores *all, int index, int ranks, tr_cores *out) {
    int begin = (int)((int64_t)all->count * index / ranks);
    int end = (int)((int64_t)all->count * (index + 1) / ranks);
    tr_cores share = {.count = end - begin};
    memcpy(share.cpu, all->cpu + begin, (size_t)share.count * sizeof *share.cpu);
    *out = share;
}

void tr_cores_keep_to(const tr_cores *cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < cores->count; i++) CPU_SET((size_t)cores->cpu[i], &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}
