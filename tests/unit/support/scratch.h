/* A scratch folder of a test's process, and its files. */
#pragma once

#include "support/must.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char scratch[] = "/tmp/trireme-test-XXXXXX";

static inline char *path_of(const char *name) {
    static char path[8][256];
    static int next;
    char *out = path[next++ % 8];
    (void)snprintf(out, sizeof path[0], "%s/%s", scratch, name);
    return out;
}

static inline char *golden(const char *name) {
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];
    const char *folder = getenv("TRIREME_GOLDEN_HF"); /* NULL: the files of the repository */
    (void)snprintf(out, sizeof path[0], "%s/%s", folder ? folder : TRIREME_TEST_GOLDEN "/hf", name);
    return out;
}

static inline void remove_all(const char *path) {
    char command[400];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static inline void write_file(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static inline char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *data = calloc(*bytes + 1, 1);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    (void)fclose(f);
    return data;
}

static inline void refused(tr_status status, tr_status want, const char *part) {
    if (status != want || !strstr(tr_error_message(), part))
        fail_msg("status %d, '%s': expected '%s'", (int)status, tr_error_message(), part);
}

static inline int set_up(void **state) {
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static inline int tear_down(void **state) {
    (void)state;
    remove_all(scratch);
    return 0;
}
