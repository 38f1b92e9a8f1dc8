/* write_sizes COMMAND [ARGUMENT...]
 *
 * Runs a command with a pipe as its stdout, and prints the bytes of each of its writes there, one
 * number a line. The pipe keeps writes apart (O_DIRECT), so the numbers do not depend on when they
 * are read. Exit code: 0 when the command's is 0, otherwise 1. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static char packet[PIPE_BUF];
    int ends[2], status;
    if (argc < 2 || pipe2(ends, O_DIRECT | O_CLOEXEC) != 0) return 64;
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)execvp(argv[1], argv + 1);
        _exit(127);
    }
    (void)close(ends[1]);
    for (ssize_t n; (n = read(ends[0], packet, sizeof packet)) != 0;) {
        if (n > 0) (void)printf("%zd\n", n);
        else if (errno != EINTR) return 1;
    }
    return waitpid(child, &status, 0) != child || status != 0;
}
