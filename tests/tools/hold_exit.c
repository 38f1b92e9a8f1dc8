/* Holds a process at its end, as a file system that does not answer does: it is killed, but its
 * locks and files stay until this program ends. Prints "ready" when it is ready to hold the
 * process, or why it cannot.
 * usage: hold_exit PID */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int status;
    if (argc != 2) return 64;
    const pid_t pid = (pid_t)atol(argv[1]);
    if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT) != 0) {
        printf("%s\n", strerror(errno));
        return 1;
    }
    printf("ready\n");
    (void)fflush(stdout);
    while (waitpid(pid, &status, __WALL) == pid) {
        if (!WIFSTOPPED(status)) return 0;
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8))
            for (;;) (void)pause();
        const int event = status >> 16;
        (void)ptrace(event == PTRACE_EVENT_STOP ? PTRACE_LISTEN : PTRACE_CONT, pid, NULL,
                     event ? 0 : WSTOPSIG(status));
    }
    return 1;
}
