#include "base/cgroup.h"

#include "base/minmax.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The files about memory of a version of control groups. */
typedef struct version {
    const char *limit, *used;
    const char *dropped; /* a line of memory.stat: bytes that the system can drop */
} version;

static const version version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};
static const version version_2 = {"memory.max", "memory.current", "inactive_file"};

static FILE *open_in(const char *folder, const char *name) {
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* Returns false when there is no file, or no number in it, as without a limit ("max"). */
static bool read_number(const char *folder, const char *name, size_t *out) {
    FILE *file = open_in(folder, name);
    if (!file) return false;
    const bool good = fscanf(file, "%zu", out) == 1;
    (void)fclose(file);
    return good;
}

/* Returns the number of a line of memory.stat; 0 when there is none. */
static size_t read_statistic(const char *folder, const char *name) {
    FILE *file = open_in(folder, "memory.stat");
    char word[64];
    size_t number, found = 0;
    if (!file) return 0;
    while (fscanf(file, "%63s %zu", word, &number) == 2)
        if (strcmp(word, name) == 0) found = number;
    (void)fclose(file);
    return found;
}

/* What is known of the process's limits so far. */
typedef struct limits {
    size_t available, total;
    int cpus;
} limits;

static void apply_memory(bool second, const char *folder, limits *out) {
    const version *v = second ? &version_2 : &version_1;
    size_t limit, used;
    if (!read_number(folder, v->limit, &limit)) return;
    if (!read_number(folder, v->used, &used)) used = 0;
    const size_t dropped = read_statistic(folder, v->dropped);
    used -= tr_min_size(used, dropped);
    out->total = tr_min_size(out->total, limit);
    out->available = tr_min_size(out->available, limit - tr_min_size(limit, used));
}

/* A group has a quota of processor time in every period. No quota is "max", or -1. */
static void apply_cpus(bool second, const char *folder, limits *out) {
    long long quota = 0, period = 0;
    FILE *file = open_in(folder, second ? "cpu.max" : "cpu.cfs_quota_us");
    if (!file) return;
    int read = fscanf(file, "%lld %lld", &quota, &period);
    (void)fclose(file);
    if (!second && (file = open_in(folder, "cpu.cfs_period_us")) != NULL) {
        read += fscanf(file, "%lld", &period);
        (void)fclose(file);
    }
    if (read < 2 || quota <= 0 || period <= 0) return;
    const long long cpus = quota < period ? 1 : quota / period;
    if (cpus < out->cpus) out->cpus = (int)cpus;
}

typedef void reader(bool second, const char *folder, limits *out);

/* Applies the limits of the group at `path` and of those that it is in. A container may not see the
 * upper folders, but then its own group is at the root. */
static void apply_all(reader *apply, bool second, const char *root, char *path, limits *out) {
    char folder[PATH_MAX], *end;
    do {
        if (snprintf(folder, sizeof folder, "%s%s", root, path) < (int)sizeof folder)
            apply(second, folder, out);
        end = strrchr(path, '/');
        if (end) *end = '\0';
    } while (end);
}

/* Returns true when "cpu,memory" has this word. */
static bool has_word(char *controllers, const char *wanted) {
    char *rest = NULL;
    for (char *word = strtok_r(controllers, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        if (strcmp(word, wanted) == 0) return true;
    return false;
}

/* Applies the limits that a controller sets in all groups of the list. */
static void apply_list(const char *list, const char *root, const char *controller, reader *apply,
                       limits *out) {
    FILE *file = fopen(list, "re");
    char line[PATH_MAX + 64]; /* "4:cpu,memory:/path", of version 2 "0::/path" */
    char first[PATH_MAX];     /* each controller of version 1 has a folder of its own */
    if (snprintf(first, sizeof first, "%s/%s", root, controller) >= (int)sizeof first) *first = 0;
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!controllers[1]) apply_all(apply, true, root, path, out);
        else if (has_word(controllers + 1, controller)) apply_all(apply, false, first, path, out);
    }
    if (file) (void)fclose(file);
}

void tr_cgroup_memory(const char *list, const char *root, size_t *available, size_t *total) {
    limits found = {.available = *available, .total = *total};
    apply_list(list, root, "memory", apply_memory, &found);
    *available = found.available;
    *total = found.total;
}

int tr_cgroup_cpus(const char *list, const char *root, int cpus) {
    limits found = {.cpus = cpus};
    apply_list(list, root, "cpu", apply_cpus, &found);
    return found.cpus;
}
