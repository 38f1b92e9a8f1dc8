#include "job/mpirun.h"

#include "base/memory.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "job/process.h"
#include "job/signals.h"
#include "job/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What Open MPI 4.1 was measured to need of open files (28, and 5 a rank while it starts the
 * ranks), and of a file's size (4 MiB and a page for a rank's shared memory, 4 MiB for its own). */
enum { LEAST_FILES = 28, LEAST_FILES_A_RANK = 5, LEAST_FILE = 5 << 20 };

static const int held_signals[] = {SIGTERM, SIGINT, SIGHUP};

/* Sets the environment for mpirun; variables that the user has set stay. Open MPI 4 and 5 each
 * ignore the other's. */
static void set_environment(const char *board, const char *first, bool quiet) {
    if (first) (void)setenv(TR_RESTART_VARIABLE, first, 1);
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    (void)setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    (void)setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
    if (quiet) (void)setenv("OMPI_MCA_orte_execute_quiet", "1", 0);
    (void)setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    (void)setenv(TR_BOARD_VARIABLE, board, 1);
    char text[32];
    (void)snprintf(text, sizeof text, "%d", tr_terminal_columns(stdout));
    (void)setenv(TR_TERMINAL_VARIABLE, text, 1);
    (void)snprintf(text, sizeof text, "%.3f", tr_process_age_s(getpid()));
    (void)setenv(TR_ELAPSED_VARIABLE, text, 1);
}

tr_status tr_mpirun_check_limits(const tr_launch *launch) {
    const rlim_t files = LEAST_FILES + LEAST_FILES_A_RANK * (rlim_t)launch->ranks;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < LEAST_FILE)
        return TR_FAIL(TR_ERR_DEVICE,
                       "mpirun and its ranks need files of %d MiB, and the limit on a file's size "
                       "is %.1f MiB: raise it (ulimit -f)",
                       LEAST_FILE >> 20, (double)limit.rlim_cur / (1 << 20));
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= 2 * files) return TR_OK;
    limit.rlim_cur = limit.rlim_max < 2 * files ? limit.rlim_max : 2 * files;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= files || tr_launch_spans_hosts(launch)) return TR_OK;
    return TR_FAIL(TR_ERR_DEVICE,
                   "mpirun needs %llu open files for %d ranks, and the limit is %llu: raise it "
                   "(ulimit -n)",
                   (unsigned long long)files, launch->ranks, (unsigned long long)limit.rlim_cur);
}

/* Sets *out to mpirun's arguments; the caller frees the list, not the words. */
static tr_status make_arguments(const tr_launch *launch, const char *exe, char *count,
                                size_t count_size, char ***out) {
    size_t n = 20, used = 0;
    for (char **o = launch->mpirun_options; *o; o++) n++;
    for (char **c = launch->command; *c; c++) n++;
    char **argv;
    TR_TRY(tr_calloc(n, sizeof *argv, &argv));
    (void)snprintf(count, count_size, "%d", launch->ranks);
    char *const fixed[] = {"mpirun", "--bind-to", "none", "-n", count};
    char *const variables[] = {TR_BOARD_VARIABLE, TR_TERMINAL_VARIABLE, TR_ELAPSED_VARIABLE,
                               TR_RESTART_VARIABLE};
    const size_t passed = launch->first ? 4 : 3; /* without the last on the first start */
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) argv[used++] = fixed[i];
    /* Version 5 holds output back until its line ends, which a refreshed progress line does not. */
    if (tr_world_mpi_version() >= 5 && tr_signal_refreshes()) {
        argv[used++] = "--output";
        argv[used++] = ":raw";
    }
    for (size_t i = 0; i < passed; i++) {
        argv[used++] = "-x";
        argv[used++] = variables[i];
    }
    if (launch->hostfile) {
        argv[used++] = "--hostfile";
        argv[used++] = (char *)launch->hostfile;
    }
    for (char **o = launch->mpirun_options; *o; o++) argv[used++] = *o;
    argv[used++] = (char *)exe;
    for (char **c = launch->command; *c; c++) argv[used++] = *c;
    *out = argv;
    return TR_OK;
}

/* A blocked signal stays blocked in mpirun; its handlers would end the ranks within 2 s. mpirun
 * unblocks all signals in its ranks. */
static void set_signals(void) {
    sigset_t held;
    (void)sigemptyset(&held);
    for (size_t i = 0; i < sizeof held_signals / sizeof *held_signals; i++)
        (void)sigaddset(&held, held_signals[i]);
    (void)sigprocmask(SIG_SETMASK, &held, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
}

/* The child's side of the fork: never returns. In its own process group it does not get the
 * terminal's Ctrl-C. When the launcher dies, mpirun gets SIGUSR1 and passes it to the ranks, which
 * then stop and save. */
static void become_mpirun(char **argv, pid_t parent, int input, const int output[2],
                          int error_pipe) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGUSR1);
    if (getppid() != parent) _exit(TR_ERR_RANK); /* the launcher died before the line above */
    if (input < 0) input = open("/dev/null", O_RDONLY);
    if (input >= 0) (void)dup2(input, STDIN_FILENO);
    (void)dup2(output[0], STDOUT_FILENO);
    (void)dup2(output[1], STDERR_FILENO);
    set_signals();
    (void)execvp(argv[0], argv);
    int error = errno;
    (void)!write(error_pipe, &error, sizeof error);
    _exit(TR_ERR_DEVICE);
}

/* Copies this process's stdin to the pipe, until stdin ends or the process exits. */
static void *copy_input(void *pipe) {
    const int to = *(int *)pipe;
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char bytes[4096];
    ssize_t count;
    while ((count = read(STDIN_FILENO, bytes, sizeof bytes)) != 0) {
        if (count < 0 && errno == EAGAIN) (void)poll(&in, 1, -1); /* another process made it so */
        else if (count < 0 && errno != EINTR) break;
        for (ssize_t at = 0, wrote; at < count; at += wrote) {
            wrote = write(to, bytes + at, (size_t)(count - at));
            if (wrote > 0) continue;
            wrote = 0;
            if (errno != EINTR) break;
        }
    }
    (void)close(to);
    free(pipe);
    return NULL;
}

/* Starts a thread that copies stdin; *input is the pipe's other end, for mpirun, which gives it to
 * rank 0. mpirun cannot read the terminal itself, because it is in its own process group. */
static tr_status open_input(int *input) {
    int ends[2], *to;
    pthread_t thread;
    TR_TRY(tr_calloc(1, sizeof *to, &to));
    if (pipe2(ends, O_CLOEXEC) != 0) {
        free(to);
        return TR_FAIL(TR_ERR_DEVICE, "a pipe cannot be created: %s", strerror(errno));
    }
    *input = ends[0];
    *to = ends[1];
    const tr_status status = tr_thread_start(&thread, copy_input, to, "the ranks' input");
    if (status == TR_OK) {
        (void)pthread_detach(thread);
    } else {
        (void)close(ends[1]);
        free(to);
    }
    return status;
}

/* Returns 0, or the errno for which mpirun did not start. */
static int spawn(char **argv, int input, const int output[2], pid_t *pid) {
    int error_pipe[2], error = 0;
    if (pipe2(error_pipe, O_CLOEXEC) != 0) return errno;
    pid_t parent = getpid();
    *pid = fork();
    if (*pid == 0) become_mpirun(argv, parent, input, output, error_pipe[1]);
    if (*pid < 0) error = errno;
    (void)close(error_pipe[1]);
    /* Reads nothing once mpirun runs, because the pipe closes on exec. */
    if (!error) (void)!read(error_pipe[0], &error, sizeof error);
    (void)close(error_pipe[0]);
    if (error && *pid > 0) (void)waitpid(*pid, NULL, 0);
    return error;
}

tr_status tr_mpirun_start(const tr_launch *launch, const char *exe, const char *board, pid_t *pid,
                          tr_relay *relay[2]) {
    char count[16], **argv = NULL;
    int input = -1, output[2] = {-1, -1}, error = 0;
    /* On several hosts the launcher reads what mpirun says (job/mpirun_log.h). */
    set_environment(board, launch->first, !tr_launch_spans_hosts(launch));
    tr_status status = tr_relay_open(STDOUT_FILENO, NULL, &output[0], &relay[0]);
    const tr_relay *line_of = tr_signal_refreshes() ? relay[0] : NULL;
    if (status == TR_OK) status = tr_relay_open(STDERR_FILENO, line_of, &output[1], &relay[1]);
    if (status == TR_OK && launch->reads) status = open_input(&input);
    if (status == TR_OK) status = make_arguments(launch, exe, count, sizeof count, &argv);
    if (status == TR_OK) error = spawn(argv, input, output, pid);
    free(argv);
    for (int i = 0; i < 2; i++)
        if (output[i] >= 0) (void)close(output[i]);
    if (input >= 0) (void)close(input);
    TR_TRY(status);
    if (!error) return TR_OK;
    return TR_FAIL(TR_ERR_DEVICE,
                   "mpirun cannot be started: %s; install it with: apt-get install openmpi-bin",
                   strerror(error));
}

int tr_mpirun_held_signal(pid_t pid) {
    uint64_t pending = tr_process_pending(pid);
    for (size_t i = 0; i < sizeof held_signals / sizeof *held_signals; i++)
        if (pending >> (held_signals[i] - 1) & 1 && !tr_signal_is_ignored(held_signals[i]))
            return held_signals[i];
    return 0;
}
