/* Preloaded into a program: with NO_THREAD=RANK:CALL, that call of pthread_create fails on that
 * rank, as at the limit of processes. Only calls of the program itself count, not those of
 * libraries. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/auxv.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
    static atomic_long calls;
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    const char *told = getenv("NO_THREAD"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char *call;
    const void *entry = (void *)getauxval(AT_ENTRY); /* where the program itself begins */
    Dl_info caller, program;
    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    if (told && rank && strtol(told, &call, 10) == strtol(rank, NULL, 10) && *call == ':' &&
        dladdr(__builtin_return_address(0), &caller) && dladdr(entry, &program) &&
        caller.dli_fbase == program.dli_fbase && ++calls == strtol(call + 1, NULL, 10))
        return EAGAIN;
    return next(thread, attributes, run, argument);
}
