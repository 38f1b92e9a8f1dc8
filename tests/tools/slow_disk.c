/* Preloaded into a program, makes its disk slow: every pread and pwrite of SLOW_DISK_BYTES or more
 * takes a quarter of a second longer, so that a test sees the progress line on any machine. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_for_disk(size_t bytes) {
    const char *least = getenv("SLOW_DISK_BYTES");
    if (least && bytes >= strtoul(least, NULL, 10)) (void)usleep(250000);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    ssize_t (*next)(int, void *, size_t, off_t) =
        (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    wait_for_disk(bytes);
    return next(fd, to, bytes, offset);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t offset) {
    ssize_t (*next)(int, const void *, size_t, off_t) =
        (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    wait_for_disk(bytes);
    return next(fd, from, bytes, offset);
}
