/* Long files pass through the page cache: what the disk has leaves it, and nothing is lost. */
#include "ckpt/drain.h"
#include "support/scratch.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PIECES = 4 * TR_DRAIN_PIECES };

/* The cache is the only home of a tmpfs file, and other file systems may keep pages, too. */
static bool is_on_disk(int fd) {
    struct statfs info;
    assert_int_equal(fstatfs(fd, &info), 0);
    return info.f_type == EXT4_SUPER_MAGIC || info.f_type == XFS_SUPER_MAGIC;
}

/* Returns how many of the file's bytes are in the page cache. */
static int64_t resident(int fd, int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page;
    unsigned char *map = malloc((size_t)pages);
    void *at = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mincore(at, (size_t)bytes, map), 0);
    int64_t count = 0;
    for (int64_t i = 0; i < pages; i++) count += map[i] & 1;
    assert_int_equal(munmap(at, (size_t)bytes), 0);
    free(map);
    return count * page;
}

static void check(const char *data, int64_t piece) {
    for (int64_t i = 0; i < PIECE; i++)
        if (data[i] != (char)(piece * 31 + i)) fail_msg("piece %d, byte %d", (int)piece, (int)i);
}

static void files_leave_the_page_cache(void **state) {
    (void)state;
    char *data = malloc(PIECE);
    const char *path = path_of("long");
    const int64_t shift = 100, bytes = shift + (int64_t)PIECE * PIECES; /* no piece is aligned */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
    assert_true(fd >= 0);
    tr_drain drain = {.fd = fd, .path = path};
    for (int64_t p = 0; p < PIECES; p++) {
        for (int64_t i = 0; i < PIECE; i++) data[i] = (char)(p * 31 + i);
        assert_int_equal(pwrite(fd, data, PIECE, shift + p * PIECE), PIECE);
        must(tr_drain_add(&drain, shift + p * PIECE, PIECE));
    }
    /* half of what a file without a drain keeps */
    if (is_on_disk(fd)) assert_true(resident(fd, bytes) < bytes / 2);
    assert_int_equal(fsync(fd), 0);
    for (int64_t p = 0; p < PIECES; p++) {
        assert_int_equal(pread(fd, data, PIECE, shift + p * PIECE), PIECE);
        check(data, p);
        tr_drain_drop(fd, shift + p * PIECE, PIECE);
    }
    if (is_on_disk(fd)) assert_true(resident(fd, bytes) < bytes / 2);
    assert_int_equal(close(fd), 0);
    free(data);
}

/* The wait for an old piece takes the disk's error, so that it must report it. */
static void a_piece_that_cannot_be_written_is_reported(void **state) {
    (void)state;
    tr_drain drain = {.fd = 1000, .path = "broken"}; /* not open */
    for (int p = 0; p < TR_DRAIN_PIECES; p++) must(tr_drain_add(&drain, p * PIECE, PIECE));
    refused(tr_drain_add(&drain, 0, PIECE), TR_ERR_IO, "cannot write broken");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_leave_the_page_cache),
        cmocka_unit_test(a_piece_that_cannot_be_written_is_reported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
