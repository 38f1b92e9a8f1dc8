/* Names of directories and files, and the text of COMMIT. */
#include "ckpt/ckpt_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

tr_status tr_path_join(const char *dir, const char *name, tr_path *out) {
    int n = snprintf(out->text, sizeof out->text, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof out->text)
        return TR_FAIL(TR_ERR_IO, "the path %.200s.../%.100s is too long: choose a shorter log.dir",
                       dir, name);
    return TR_OK;
}

void tr_ckpt_step_name(int64_t step, char name[NAME_MAX + 1]) {
    (void)snprintf(name, NAME_MAX + 1, "step-%08" PRId64, step);
}

bool tr_ckpt_step_parse(const char *name, int64_t *step) {
    if (strncmp(name, "step-", 5) != 0) return false;
    errno = 0;
    char *end, canonical[NAME_MAX + 1];
    long long value = strtoll(name + 5, &end, 10);
    if (errno || *end || value < 0) return false;
    tr_ckpt_step_name(value, canonical);
    *step = value;
    return strcmp(name, canonical) == 0;
}

void tr_shard_name(int64_t file, int64_t files, char name[NAME_MAX + 1]) {
    (void)snprintf(name, NAME_MAX + 1, "shard-%05" PRId64 "-of-%05" PRId64 ".h5", file, files);
}

void tr_part_name(int64_t tensor, int64_t number, char name[NAME_MAX + 1]) {
    (void)snprintf(name, NAME_MAX + 1, "t%05" PRId64 ".p%02" PRId64, tensor, number);
}

tr_status tr_uuid_make(char uuid[TR_UUID_SIZE]) {
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return TR_FAIL(TR_ERR_IO, "getrandom failed: %s; the kernel must allow it",
                       strerror(errno));
    for (size_t i = 0; i < sizeof random; i++) (void)snprintf(uuid + 2 * i, 3, "%02x", random[i]);
    return TR_OK;
}

int tr_commit_format(const tr_commit *commit, char text[TR_COMMIT_SIZE]) {
    int n =
        snprintf(text, TR_COMMIT_SIZE,
                 "trireme checkpoint\nformat=%d\nstep=%" PRId64 "\nuuid=%s\nshards=%" PRId64
                 "\ntotal_bytes=%" PRId64 "\nindex_bytes=%" PRId64 "\nindex_xxh3=%016" PRIx64 "\n",
                 TR_CKPT_FORMAT, commit->step, commit->uuid, commit->shards, commit->total_bytes,
                 commit->index_bytes, commit->index_hash);
    uint64_t hash = XXH3_64bits(text, (size_t)n);
    return n + snprintf(text + n, (size_t)(TR_COMMIT_SIZE - n), "xxh3=%016" PRIx64 "\n", hash);
}

tr_status tr_commit_parse(const char *text, size_t bytes, const char *path, tr_commit *out) {
    tr_commit commit = {0};
    if (bytes < TR_COMMIT_SIZE &&
        sscanf(text, "trireme checkpoint\nformat=%9d", &commit.format) == 1 &&
        commit.format > TR_CKPT_FORMAT) {
        *out = commit;
        return TR_FAIL(TR_ERR_DATA,
                       "%s was written by format %d, this build reads up to %d: use a newer build",
                       path, commit.format, TR_CKPT_FORMAT);
    }
    char again[TR_COMMIT_SIZE];
    int fields = bytes < TR_COMMIT_SIZE
                     ? sscanf(text,
                              "trireme checkpoint\nformat=%*d\nstep=%18" SCNd64
                              "\nuuid=%32[0-9a-f]\nshards=%9" SCNd64 "\ntotal_bytes=%18" SCNd64
                              "\nindex_bytes=%18" SCNd64 "\nindex_xxh3=%16" SCNx64,
                              &commit.step, commit.uuid, &commit.shards, &commit.total_bytes,
                              &commit.index_bytes, &commit.index_hash)
                     : 0;
    /* The text must be exactly what these values format to, with its checksum. */
    if (fields != 6 || (size_t)tr_commit_format(&commit, again) != bytes ||
        memcmp(again, text, bytes) != 0)
        return TR_FAIL(TR_ERR_DATA, "%s is corrupt", path);
    *out = commit;
    return TR_OK;
}
