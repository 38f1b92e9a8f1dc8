#include "partition/rate_cache.h"

#include "base/input.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* A file with the latest rates, one on each line: hash of the key, time of its storing, FLOP/s. */
enum { MOST_ENTRIES = 64, PATH = 4096 };

typedef struct entry {
    uint64_t key;
    int64_t stored;
    double rate;
} entry;

/* Finds the cache's folder, and makes it, because what is not read there is written next. Returns
 * false when the user has no home. */
static bool find_folder(char *path, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') (void)snprintf(path, size, "%s", cache);
    else if (home && *home == '/') (void)snprintf(path, size, "%s/.cache", home);
    else return false;
    size_t used = strlen(path);
    if (used + sizeof "/trireme/rates.12345678901" > size) return false;
    (void)mkdir(path, 0700);
    (void)snprintf(path + used, size - used, "/trireme");
    (void)mkdir(path, 0700);
    return true;
}

static int read_entries(const char *path, entry *entries) {
    int count = 0;
    FILE *file;
    if (tr_input_stream(path, &file) != TR_OK) tr_error_clear(); /* counts as no file */
    while (file && count < MOST_ENTRIES) {
        entry *e = &entries[count];
        if (fscanf(file, "%" SCNx64 " %" SCNd64 " %lf", &e->key, &e->stored, &e->rate) != 3) break;
        count++;
    }
    if (file) (void)fclose(file);
    return count;
}

bool tr_rate_cache_read(const char *key, int64_t lasts_s, double *rate) {
    char path[PATH];
    entry entries[MOST_ENTRIES];
    if (!find_folder(path, sizeof path)) return false;
    strcat(path, "/rates");
    int count = read_entries(path, entries);
    uint64_t wanted = XXH3_64bits(key, strlen(key));
    int64_t now = (int64_t)time(NULL);
    for (int i = 0; i < count; i++) {
        const entry *e = &entries[i];
        if (e->key != wanted || e->stored > now || e->stored < now - lasts_s) continue;
        if (!isfinite(e->rate) || e->rate <= 0) continue;
        *rate = e->rate;
        return true;
    }
    return false;
}

void tr_rate_cache_write(const char *key, double rate) {
    char path[PATH], fresh[PATH + 32];
    entry old[MOST_ENTRIES];
    if (!find_folder(path, sizeof path)) return;
    strcat(path, "/rates");
    int count = read_entries(path, old);
    /* Renamed, so that a command that reads at the same time sees the old file or the new one. */
    (void)snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(fresh, "w");
    if (!file) return;
    uint64_t mine = XXH3_64bits(key, strlen(key));
    (void)fprintf(file, "%" PRIx64 " %" PRId64 " %.17g\n", mine, (int64_t)time(NULL), rate);
    for (int i = 0, kept = 1; i < count && kept < MOST_ENTRIES; i++) {
        if (old[i].key == mine) continue;
        (void)fprintf(file, "%" PRIx64 " %" PRId64 " %.17g\n", old[i].key, old[i].stored,
                      old[i].rate);
        kept++;
    }
    bool written = !ferror(file);
    if (fclose(file) != 0 || !written || rename(fresh, path) != 0) (void)unlink(fresh);
}
