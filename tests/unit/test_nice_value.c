/* Tests that the threads which a world starts keep the nice value of the process. */
#include "comm/comm.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_THREADS = 64 };

/* Lists this process's threads, at most MOST_THREADS. */
static int list_threads(pid_t thread[MOST_THREADS]) {
    DIR *threads = opendir("/proc/self/task");
    int count = 0;
    for (const struct dirent *t; threads && (t = readdir(threads));)
        if (atoi(t->d_name) > 0 && count < MOST_THREADS) thread[count++] = atoi(t->d_name);
    if (threads) (void)closedir(threads);
    return count;
}

/* Returns the lowest nice value of the threads that are not in before[count]; 100: there are none.
 * A sanitizer has threads of its own. */
static int lowest_nice(const pid_t *before, int count) {
    pid_t now[MOST_THREADS];
    const int threads = list_threads(now);
    int lowest = 100;
    for (int i = 0; i < threads; i++) {
        int k = 0;
        while (k < count && before[k] != now[i]) k++;
        const int value = getpriority(PRIO_PROCESS, (id_t)now[i]);
        if (k == count && value < lowest) lowest = value;
    }
    return lowest;
}

/* A job that runs under `nice` does so with all its threads. */
static void the_nice_value_stays(void **state) {
    (void)state;
    int status = 0;
    const int own = getpriority(PRIO_PROCESS, 0), higher = own < 19 ? own + 1 : 19;
    const pid_t child = fork(); /* a process cannot always take its value back */
    if (child == 0) {
        tr_world *world[2];
        pid_t before[MOST_THREADS];
        const int threads = list_threads(before);
        const bool opened =
            setpriority(PRIO_PROCESS, 0, higher) == 0 && tr_world_open_local(2, world) == TR_OK;
        usleep(100000); /* the threads begin */
        _exit(opened ? lowest_nice(before, threads) & 0xff : 100);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), higher & 0xff);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_nice_value_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
