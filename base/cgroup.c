#include "base/cgroup.h"

#include "base/minmax.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The files of a version of control groups. */
typedef struct version {
    const char *folder; /* below the root */
    const char *limit, *used;
    const char *dropped; /* a line of memory.stat: bytes that the system can drop */
} version;

static const version version_1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};
static const version version_2 = {"", "memory.max", "memory.current", "inactive_file"};

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

static void apply(const version *v, const char *folder, size_t *available, size_t *total) {
    size_t limit, used;
    if (!read_number(folder, v->limit, &limit)) return;
    if (!read_number(folder, v->used, &used)) used = 0;
    const size_t dropped = read_statistic(folder, v->dropped);
    used -= tr_min_size(used, dropped);
    *total = tr_min_size(*total, limit);
    *available = tr_min_size(*available, limit - tr_min_size(limit, used));
}

/* Applies the limits of the group at `path` and of those that it is in. A container may not see the
 * upper folders, but then its own group is at the root. */
static void apply_all(const version *v, const char *root, char *path, size_t *available,
                      size_t *total) {
    char folder[PATH_MAX], *end;
    do {
        if (snprintf(folder, sizeof folder, "%s%s%s", root, v->folder, path) < (int)sizeof folder)
            apply(v, folder, available, total);
        end = strrchr(path, '/');
        if (end) *end = '\0';
    } while (end);
}

/* Returns true when "cpu,memory" has the word "memory". */
static bool has_memory(char *controllers) {
    char *rest = NULL;
    for (char *word = strtok_r(controllers, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        if (strcmp(word, "memory") == 0) return true;
    return false;
}

void tr_cgroup_memory(const char *list, const char *root, size_t *available, size_t *total) {
    FILE *file = fopen(list, "re");
    char line[PATH_MAX + 64]; /* "4:cpu,memory:/path", of version 2 "0::/path" */
    while (file && fgets(line, sizeof line, file)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!controllers[1]) apply_all(&version_2, root, path, available, total);
        else if (has_memory(controllers + 1)) apply_all(&version_1, root, path, available, total);
    }
    if (file) (void)fclose(file);
}
