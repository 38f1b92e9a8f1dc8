#include "cli/launch.h"

#include "comm/process.h"
#include "comm/watchdog.h"
#include "train/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Between the end of a job and the ranks' own exits; then mpirun's turn; then nobody is asked. */
static const double grace_s = 0.75, mpirun_grace_s = 4, failed_grace_s = 8;
static const double second_signal_s = 0.5;

typedef struct job {
    const tr_launch *launch;
    tr_board *board;
    char name[64];
    bool named; /* the board still has its name */
    char exe[4096];
    pid_t mpirun;
    int wait_status;
    int64_t stop_ns;   /* first request to stop */
    int64_t ending_ns; /* since when the job has to be over */
    bool terminated;   /* mpirun has been told */
    tr_watch watch;
} job;

static double since_s(int64_t ns) {
    return (double)(tr_board_now_ns() - ns) * 1e-9;
}

/* One write: what ranks say at the same moment cannot come between. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)dprintf(STDERR_FILENO, "trireme: %s\n", text);
}

/* Speaks for the job unless somebody has. */
__attribute__((format(printf, 2, 3))) static void say_once(job *j, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (tr_board_claim_report(j->board)) say("%s", text);
}

/* --- starting --------------------------------------------------------------------------------- */

/* Containers often forbid reading another process's memory, which Open MPI finds out too late. */
static bool can_copy_between_processes(void) {
    char from = 'x', to = 0;
    struct iovec local = {.iov_base = &to, .iov_len = 1},
                 remote = {.iov_base = &from, .iov_len = 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

/* What the user has set stays. */
static void set_environment(const job *j) {
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    (void)setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    (void)setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (!can_copy_between_processes()) {
        (void)setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    }
    (void)setenv(TR_BOARD_VARIABLE, j->name, 1);
    char columns[16];
    (void)snprintf(columns, sizeof columns, "%d", tr_terminal_columns(stdout));
    (void)setenv(TR_TERMINAL_VARIABLE, columns, 1);
}

/* mpirun's arguments; the caller frees the list, not the words. NULL when out of memory. */
static char **mpirun_arguments(job *j, char *count, size_t count_size) {
    const tr_launch *launch = j->launch;
    size_t n = 16, used = 0;
    for (char **o = launch->mpirun_options; *o; o++) n++;
    for (char **c = launch->command; *c; c++) n++;
    char **argv = calloc(n, sizeof *argv);
    if (!argv) return NULL;
    (void)snprintf(count, count_size, "%d", launch->ranks);
    char *const fixed[] = {"mpirun", "-q", "--bind-to",       "none", "-n",
                           count,    "-x", TR_BOARD_VARIABLE, "-x",   TR_TERMINAL_VARIABLE};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) argv[used++] = fixed[i];
    if (launch->hostfile) {
        argv[used++] = "--hostfile";
        argv[used++] = (char *)launch->hostfile;
    }
    for (char **o = launch->mpirun_options; *o; o++) argv[used++] = *o;
    argv[used++] = j->exe;
    for (char **c = launch->command; *c; c++) argv[used++] = *c;
    return argv;
}

/* The child's side of the fork: never returns. A process group of its own keeps the terminal's
 * Ctrl-C from it, so that the ranks can finish their step. */
static void become_mpirun(char **argv, const sigset_t *mask, pid_t parent, int error_pipe) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(TR_ERR_RANK); /* the launcher died before the line above */
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) (void)dup2(null, STDIN_FILENO);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    (void)execvp(argv[0], argv);
    int error = errno;
    (void)!write(error_pipe, &error, sizeof error);
    _exit(TR_ERR_DEVICE);
}

static int start_mpirun(job *j, const sigset_t *mask) {
    char count[16];
    int error_pipe[2];
    char **argv = mpirun_arguments(j, count, sizeof count);
    if (!argv || pipe2(error_pipe, O_CLOEXEC) != 0) {
        say_once(j, "starting mpirun: %s", strerror(errno));
        free(argv);
        return TR_ERR_DEVICE;
    }
    pid_t parent = getpid();
    j->mpirun = fork();
    if (j->mpirun == 0) become_mpirun(argv, mask, parent, error_pipe[1]);
    int error = j->mpirun < 0 ? errno : 0;
    (void)close(error_pipe[1]);
    free(argv);
    /* Ends with nothing read as soon as mpirun runs: the pipe closes on exec. */
    if (!error) (void)!read(error_pipe[0], &error, sizeof error);
    (void)close(error_pipe[0]);
    j->watch.parent = j->mpirun;
    if (!error) return 0;
    if (j->mpirun > 0) (void)waitpid(j->mpirun, NULL, 0);
    say_once(j, "mpirun cannot be started: %s; install it with: apt-get install openmpi-bin",
             strerror(error));
    return TR_ERR_DEVICE;
}

/* --- watching --------------------------------------------------------------------------------- */

/* Whether there may be ranks on other hosts, which no board of this one shows. */
static bool elsewhere(const job *j) {
    return j->launch->hostfile || j->launch->mpirun_options[0];
}

static void begin_end(job *j, int code) {
    tr_board_end_all(j->board, code);
    if (!j->ending_ns) j->ending_ns = tr_board_now_ns();
}

static void on_stop_signal(job *j, int signal) {
    if (!j->stop_ns) {
        j->stop_ns = tr_board_now_ns();
        /* A rank may have asked before: then mpirun is ending the job. */
        j->watch.asked = !tr_board_stop_requested(j->board);
        tr_board_request_stop(j->board);
        /* Ranks on other hosts do not see this board; mpirun hands the signal on. */
        if (elsewhere(j)) (void)kill(j->mpirun, SIGUSR1);
        say("%s: the ranks finish their step, save and end%s", strsignal(signal),
            signal == SIGINT ? "; once more ends them at once" : "");
        return;
    }
    if ((signal == SIGINT || signal == SIGTERM) && since_s(j->stop_ns) > second_signal_s) {
        say_once(j, "ended by a second signal, without saving; the last checkpoint is intact");
        begin_end(j, TR_ERR_RANK);
    }
}

/* The ranks cannot see the terminal: the board tells them its size. */
static void tell_columns(const job *j) {
    tr_board_set_columns(j->board, tr_terminal_columns(stdout));
}

/* Ctrl-Z reaches the launcher alone: it takes the job with it, and brings it back. */
static void suspend(const job *j) {
    (void)kill(j->mpirun, SIGTSTP);
    (void)raise(SIGSTOP);
    (void)kill(j->mpirun, SIGCONT);
}

static void drop_name(job *j) {
    if (j->named) tr_board_unlink(j->name);
    j->named = false;
}

/* How many ranks have no place on the board; *first is one of them. */
static int count_absent(const job *j, int *first) {
    int absent = 0;
    for (int r = 0; r < j->launch->ranks; r++) {
        tr_rank_view v;
        tr_board_read(j->board, r, &v);
        if (v.state == TR_RANK_ABSENT && absent++ == 0) *first = r;
    }
    return absent;
}

static bool all_attached(const job *j) {
    int first;
    return count_absent(j, &first) == 0;
}

static void kill_ranks(const job *j) {
    for (int r = 0; r < j->launch->ranks; r++) tr_watch_kill(j->board, r);
    tr_watch_kill_unattached(&j->watch, j->board);
}

/* Ranks get a moment to leave with the job's code; then they are killed, mpirun is asked to end
 * what is left on other hosts, and at last is killed itself. */
static void press_on(job *j) {
    double waited = since_s(j->ending_ns);
    if (waited < grace_s) return;
    kill_ranks(j);
    /* On one host mpirun ends by itself with its last rank; asked while it is at it, Open MPI 4.1
     * has been seen to crash. */
    if (!j->terminated && (elsewhere(j) || waited > grace_s + mpirun_grace_s / 2)) {
        (void)kill(j->mpirun, SIGTERM);
        j->terminated = true;
    }
    if (waited > grace_s + mpirun_grace_s) (void)kill(-j->mpirun, SIGKILL);
}

static void look(job *j) {
    char sentence[768];
    int64_t failed_ns;
    if (tr_watch_look(&j->watch, j->board, sentence, sizeof sentence)) say("%s", sentence);
    if (tr_board_ending(j->board) && !j->ending_ns) j->ending_ns = tr_board_now_ns();
    int failure = tr_board_first_failure(j->board, NULL, &failed_ns);
    if (failure && failed_ns && since_s(failed_ns) > failed_grace_s) begin_end(j, failure);
    if (j->ending_ns) press_on(j);
    if (j->named && all_attached(j)) drop_name(j);
}

static void watch_until_the_end(job *j, const sigset_t *handled) {
    for (;;) {
        struct timespec tick = {.tv_nsec = 250 * 1000000};
        /* Sleeps until a signal, mpirun's end among them, or the next look. */
        int signal = sigtimedwait(handled, NULL, &tick);
        if (signal == SIGTSTP) {
            suspend(j);
        } else if (signal == SIGWINCH) {
            tell_columns(j);
        } else if (signal > 0 && signal != SIGCHLD) {
            on_stop_signal(j, signal);
        }
        if (waitpid(j->mpirun, &j->wait_status, WNOHANG) == j->mpirun) break;
        look(j);
    }
    j->watch.parent = 0;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void say_killed(job *j, int signal) {
    char when[64] = "";
    int first = 0, absent = elsewhere(j) ? 0 : count_absent(j, &first);
    if (absent == 1) (void)snprintf(when, sizeof when, " before rank %d had begun", first);
    if (absent > 1) (void)snprintf(when, sizeof when, " before %d ranks had begun", absent);
    say_once(j, "a rank was ended by a signal (%s)%s", strsignal(signal), when);
}

/* mpirun's own verdict, for what no rank has written on the board. */
static int code_of_mpirun(job *j) {
    int status = j->wait_status;
    if (WIFSIGNALED(status)) {
        say_once(j, "mpirun was ended by a signal (%s)", strsignal(WTERMSIG(status)));
        return TR_ERR_RANK;
    }
    int code = WEXITSTATUS(status);
    if (code == 0 || (code >= TR_ERR_USAGE && code <= TR_ERR_CONFIG)) return code;
    if (code > 128) {
        say_killed(j, code - 128);
        return TR_ERR_RANK;
    }
    say_once(
        j, "mpirun ended with %d before the job began; see why with: mpirun%s -n %d%s%s hostname",
        code, geteuid() == 0 ? " --allow-run-as-root" : "", j->launch->ranks,
        j->launch->hostfile ? " --hostfile " : "", j->launch->hostfile ? j->launch->hostfile : "");
    return TR_ERR_DEVICE;
}

/* MPI itself ended a rank, which could not say so: it leaves with a small code, not by a signal. */
static bool mpi_did_not_start(job *j) {
    int status = j->wait_status;
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || WEXITSTATUS(status) > 128) return false;
    if (tr_watch_gone_with_mpi(j->board) < 0 || tr_board_ending(j->board)) return false;
    say_once(j, "MPI could not start; see why with: mpirun%s -n %d %s doctor",
             geteuid() == 0 ? " --allow-run-as-root" : "", j->launch->ranks, j->exe);
    tr_board_end_all(j->board, TR_ERR_DEVICE);
    return true;
}

static int exit_code(job *j) {
    int rank, ending, failure;
    /* While MPI starts mpirun kills all ranks for one, which may have had no place on the board:
     * then nobody can tell whose end was the first. Else the one that mpirun saw dying before we
     * did is named. */
    bool known = tr_watch_gone_with_mpi(j->board) < 0 || (j->watch.suspects && all_attached(j));
    if (!mpi_did_not_start(j) && known) look(j);
    ending = tr_board_ending(j->board);
    failure = tr_board_first_failure(j->board, &rank, NULL);
    kill_ranks(j);
    if (ending) return ending;
    if (!failure) return code_of_mpirun(j);
    tr_rank_view v;
    tr_board_read(j->board, rank, &v);
    if (v.message[0]) say_once(j, "%s", v.message);
    return failure;
}

int tr_launch_run(const tr_launch *launch) {
    job j = {.launch = launch};
    ssize_t length = readlink("/proc/self/exe", j.exe, sizeof j.exe - 1);
    if (length <= 0) {
        say("this executable cannot be found through /proc: %s", strerror(errno));
        return TR_ERR_DEVICE;
    }
    tr_board_make_name(j.name, sizeof j.name);
    tr_status status = tr_board_open(j.name, launch->ranks, &j.board);
    if (status != TR_OK) {
        say("%s", tr_error_message());
        return (int)status;
    }
    j.named = true;
    tr_board_set_launcher(j.board, getpid());
    set_environment(&j);

    /* Blocked from here on and taken one by one in the loop. */
    sigset_t handled, before;
    (void)sigemptyset(&handled);
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD, SIGWINCH};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        (void)sigaddset(&handled, signals[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &handled, &before);
    tell_columns(&j);
    int code = start_mpirun(&j, &before);
    if (code == 0) {
        watch_until_the_end(&j, &handled);
        code = exit_code(&j);
    }
    drop_name(&j);
    tr_board_close(j.board);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}
