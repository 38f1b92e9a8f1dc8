/* Preloaded into a program: with STUCK_READ=RANK:CALL, that call of pread never returns on that
 * rank, like a read from a file server that no longer answers. The rank's other threads
 * continue. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

ssize_t pread(int file, void *to, size_t bytes, off_t at) {
    static atomic_long calls;
    ssize_t (*next)(int, void *, size_t, off_t);
    const char *told = getenv("STUCK_READ"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char *call;
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    if (told && rank && strtol(told, &call, 10) == strtol(rank, NULL, 10) && *call == ':' &&
        ++calls >= strtol(call + 1, NULL, 10))
        for (;;) (void)sleep(3600);
    return next(file, to, bytes, at);
}
