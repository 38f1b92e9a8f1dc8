#include "job/launch.h"

#include "base/clock.h"
#include "base/text.h"
#include "job/hosts.h"
#include "job/mpirun.h"
#include "job/mpirun_log.h"
#include "job/process.h"
#include "job/signals.h"
#include "job/sweep.h"
#include "job/terminal.h"
#include "job/watchdog.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* After the end of a job: how long the ranks may take to exit; how long mpirun then may take before
 * it is killed; how long a rank that failed may take to end the job. */
static const double GRACE_S = 0.75, MPIRUN_GRACE_S = 4, FAILED_GRACE_S = 8;

/* How long mpirun may take to name the rank that it lost: it sends the other ranks SIGTERM, SIGKILL
 * 1 s later, and names the rank when all have ended. */
static const double VERDICT_S = 8;

/* What a rank of Open MPI 4.1 takes of /dev/shm; with less it uses TCP if it can. */
static const uint64_t SEGMENT_BYTES = 4 << 20;

/* How long a killed rank may take to die before a restart is given up. */
static const double DYING_S = 60;

/* How long the output of an mpirun that has ended may take to be copied. */
static const double COPIES_S = 2;

/* How long a host may take to answer before a restart leaves it out. */
static const double ANSWER_S = 20;

typedef struct job {
    const tr_launch *launch;
    tr_board *board;
    char name[64];
    bool named; /* the board may still have its name */
    char exe[4096];
    pid_t mpirun;
    tr_relay *output[2]; /* of mpirun: its stdout and stderr */
    bool lost;           /* output that cannot be written */
    bool printed;        /* the job's message was printed, by this process or by a rank */
    bool refreshes;      /* the ranks' progress line is refreshed on a terminal */
    int wait_status;
    bool stopping;     /* the ranks were asked to stop */
    bool told;         /* mpirun passes the request on */
    int64_t urgent_ns; /* the first urgent signal; 0: none yet */
    int64_t ending_ns; /* when the job began to end */
    tr_watch watch;
    tr_mpirun_log log;
    tr_job_files files;
    uint64_t shared_free; /* bytes of /dev/shm before the ranks started */
} job;

/* Prints the job's one message, unless a rank has printed it. */
__attribute__((format(printf, 2, 3))) static void say_once(job *j, const char *format, ...) {
    char text[3 * PATH_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!tr_board_claim_report(j->board)) return;
    tr_signal_say(text, j->refreshes);
    j->printed = true;
}

/* --- watching --------------------------------------------------------------------------------- */

static tr_rank_state state_of(const job *j, int rank) {
    tr_rank_view v;
    tr_board_read(j->board, rank, &v);
    return v.state;
}

/* Returns how many ranks are in this state; *first is one of them (may be NULL). */
static int count_in(const job *j, tr_rank_state state, int *first) {
    int count = 0;
    for (int r = 0; r < j->launch->ranks; r++)
        if (state_of(j, r) == state && count++ == 0 && first) *first = r;
    return count;
}

/* Returns true when ranks run on other hosts, or may run there and not be shown on this board
 * yet. */
static bool elsewhere(const job *j) {
    return tr_launch_spans_hosts(j->launch) || count_in(j, TR_RANK_REMOTE, NULL) > 0;
}

/* Notes that the job began to end. */
static void note_end(job *j) {
    if (j->ending_ns) return;
    j->ending_ns = tr_now_ns();
    tr_relay_drop_from(j->output[1], j->mpirun);
}

static void begin_end(job *j, int code) {
    tr_board_end_all(j->board, code);
    note_end(j);
}

/* Returns true when a rank of this host is on the board, or ranks have written output. */
static bool has_begun(const job *j) {
    return count_in(j, TR_RANK_ABSENT, NULL) < j->launch->ranks ||
           tr_relay_has_copied(j->output[0]);
}

static void ask_to_stop(job *j) {
    if (j->stopping) return;
    j->stopping = true;
    /* A rank may have asked before: then mpirun is ending the job. */
    j->watch.asked = !tr_board_stop_requested(j->board);
    tr_board_request_stop(j->board);
    tr_board_tell_ranks(j->board);
}

/* Lets mpirun pass a request to stop on when no rank is on this host: one rank is enough, since the
 * ranks agree in every step. An mpirun without a handler would end by the signal, and ranks that
 * have not begun would, too. */
static void pass_on(job *j) {
    const int away = count_in(j, TR_RANK_ABSENT, NULL) + count_in(j, TR_RANK_REMOTE, NULL);
    if (j->told || !elsewhere(j) || away < j->launch->ranks || !has_begun(j)) return;
    if (!(tr_process_handled(j->mpirun) >> (SIGUSR1 - 1) & 1)) return;
    j->told = true;
    (void)kill(j->mpirun, SIGUSR1);
}

static void on_stop_signal(job *j, int signal) {
    if (signal == SIGINT && tr_board_interrupt(j->board)) return;
    bool again = j->stopping;
    if (tr_signal_is_urgent(signal)) {
        again = j->urgent_ns;
        bool second = again && tr_since_s(j->urgent_ns) > TR_SECOND_SIGNAL_S;
        if (second && !tr_board_any_done(j->board)) {
            say_once(j, "%s", tr_signal_abort_text(j->board));
            begin_end(j, TR_ERR_RANK);
            return;
        }
        if (!again) j->urgent_ns = tr_now_ns();
    }
    /* A job that ends already, as after a loss, saves nothing more. */
    if (!again && !tr_board_ending(j->board) && !tr_board_first_failure(j->board, NULL, NULL))
        tr_signal_say(tr_signal_text(signal, j->launch->saves), j->refreshes);
    ask_to_stop(j);
}

/* Writes the terminal's size to the board, since the ranks cannot see the terminal. */
static void tell_columns(const job *j) {
    tr_board_set_columns(j->board, tr_terminal_columns(stdout));
}

/* Ctrl-Z reaches only the launcher, which therefore stops the job with itself and continues it
 * later. */
static void suspend(const job *j) {
    (void)kill(j->mpirun, SIGTSTP);
    (void)raise(SIGSTOP);
    (void)kill(j->mpirun, SIGCONT);
}

static void drop_name(job *j) {
    if (j->named) tr_board_unlink(j->name);
    j->named = false;
}

static bool all_attached(const job *j) {
    return count_in(j, TR_RANK_ABSENT, NULL) == 0;
}

static void kill_ranks(const job *j) {
    for (int r = 0; r < j->launch->ranks; r++) tr_watch_kill(j->board, r);
    tr_watch_kill_unattached(&j->watch, j->board);
}

/* Gives the ranks a moment to leave with the job's code, and then kills them. On one host mpirun
 * ends by itself after its last rank. On several hosts it would wait for a host that does not
 * answer, so it is killed; the daemons of the other hosts notice that at once and end their
 * remaining ranks. */
static void end_ranks(job *j) {
    double waited = tr_since_s(j->ending_ns);
    if (waited < GRACE_S) return;
    kill_ranks(j);
    if (waited > GRACE_S + (elsewhere(j) ? GRACE_S : MPIRUN_GRACE_S))
        (void)kill(-j->mpirun, SIGKILL);
}

/* Reports the rank that ended first, or the host that was lost, as mpirun named it in a job on
 * several hosts. The other ranks end because of that one. Open MPI 5 also names a host that it
 * could not reach at the start; that job has not begun, and mpirun ends by itself. */
static void say_named_by_mpirun(job *j) {
    char lost[512], why[128] = "mpirun's daemon there has ended or cannot be reached", text[1024];
    int rank = j->log.rank, signal = j->log.signal;
    if (rank >= 0 && !signal) return; /* it failed and reported that itself */
    if (rank < 0 && !has_begun(j)) return;
    if (signal)
        (void)snprintf(why, sizeof why, "a signal ended its process (%s%s)", strsignal(signal),
                       signal == SIGKILL ? ", perhaps for lack of memory: see dmesg" : "");
    if (rank < 0) (void)snprintf(lost, sizeof lost, "host %s", j->log.node);
    else if (state_of(j, rank) == TR_RANK_ABSENT)
        (void)snprintf(lost, sizeof lost, "rank %d (host %s): before it began", rank, j->log.node);
    else (void)tr_board_describe(j->board, rank, lost, sizeof lost);
    tr_watch_say_lost(j->board, lost, why, text, sizeof text);
    /* Ranks that are all on other hosts do not see this board, and have printed it themselves. */
    if (!tr_relay_printed_loss(j->output[1])) say_once(j, "%s", text);
    begin_end(j, TR_ERR_RANK);
}

/* Finds the loss that ends this job, if there is one. */
static void find_loss(job *j) {
    char sentence[768];
    tr_mpirun_log_read(&j->log);
    if (j->log.rank >= 0 || j->log.node[0]) {
        say_named_by_mpirun(j);
        return;
    }
    /* Until then the ranks that mpirun kills look lost. */
    if (j->log.aborting_ns && tr_since_s(j->log.aborting_ns) < VERDICT_S && j->watch.parent) return;
    if (tr_watch_look(&j->watch, j->board, sentence, sizeof sentence))
        tr_signal_say(sentence, j->refreshes);
}

static void look(job *j) {
    int64_t failed_ns;
    find_loss(j);
    if (tr_board_ending(j->board)) note_end(j);
    if (j->launch->shows && !j->ending_ns && tr_relay_lost(j->output[0])) {
        say_once(j, "%s", TR_STDOUT_LOST);
        begin_end(j, TR_ERR_IO);
    }
    if (j->stopping && !j->ending_ns) pass_on(j);
    int failure = tr_board_first_failure(j->board, NULL, &failed_ns);
    if (failure && failed_ns && tr_since_s(failed_ns) > FAILED_GRACE_S) begin_end(j, failure);
    if (j->ending_ns) end_ranks(j);
    if (j->named && all_attached(j)) drop_name(j);
}

static void watch_until_the_end(job *j, const sigset_t *handled) {
    for (;;) {
        struct timespec tick = {.tv_nsec = 250 * 1000000};
        /* Sleeps until the next look or a signal (SIGCHLD when mpirun ends). */
        int signal = sigtimedwait(handled, NULL, &tick);
        if (signal == SIGTSTP) suspend(j);
        else if (signal == SIGWINCH) tell_columns(j);
        else if (signal > 0 && signal != SIGCHLD) on_stop_signal(j, signal);
        if (waitpid(j->mpirun, &j->wait_status, WNOHANG) == j->mpirun) break;
        signal = j->stopping ? 0 : tr_mpirun_held_signal(j->mpirun);
        if (signal) on_stop_signal(j, signal);
        look(j);
    }
    j->watch.parent = 0;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void say_killed(job *j, int signal) {
    char when[64] = "";
    int first = 0, absent = elsewhere(j) ? 0 : count_in(j, TR_RANK_ABSENT, &first);
    const int finished = count_in(j, TR_RANK_FINISHED, NULL);
    if (absent == 1) (void)snprintf(when, sizeof when, " before rank %d had begun", first);
    else if (absent > 1) (void)snprintf(when, sizeof when, " before %d ranks had begun", absent);
    else if (finished > 0)
        (void)snprintf(when, sizeof when, " after %d of %d ranks had finished", finished,
                       j->launch->ranks);
    say_once(j, "a rank was ended by a signal (%s)%s", strsignal(signal), when);
}

/* Returns true when every rank has announced its end, and then sets *code to that of the ranks: 0,
 * or TR_ERR_STOPPED, since none has failed. */
static bool ranks_ended(const job *j, int *code) {
    tr_rank_view v;
    *code = 0;
    for (int r = 0; r < j->launch->ranks; r++) {
        tr_board_read(j->board, r, &v);
        if (v.state != TR_RANK_FINISHED) return false;
        if (v.exit_code) *code = v.exit_code;
    }
    return true;
}

/* Writes the command that starts this program, which has little to do, with mpirun and the job's
 * options, and so shows why mpirun did not start the job. */
static const char *write_trial(const job *j, const char *program, char *text, size_t size) {
    const tr_launch *l = j->launch;
    (void)snprintf(text, size, "mpirun%s -n %d", geteuid() == 0 ? " --allow-run-as-root" : "",
                   l->ranks);
    if (l->hostfile) tr_text_add(text, size, " --hostfile %s", l->hostfile);
    for (char **o = l->mpirun_options; *o; o++) tr_text_add(text, size, " %s", *o);
    tr_text_add(text, size, " %s", program);
    return text;
}

/* Returns true when mpirun could not start a rank because its host lacks the program, and reports
 * that. mpirun's exit code is then above 128, as if a signal had ended a rank. */
static bool host_lacks_program(job *j) {
    const tr_mpirun_log *log = &j->log;
    tr_mpirun_log_read(&j->log);
    if (!log->program[0]) return false;
    say_once(j,
             "host %s cannot start '%s': install the same program there, at the same path, or take "
             "the host out of the hostfile",
             log->lacking, log->program);
    return true;
}

/* Returns the job's code by mpirun's exit status, when no rank has failed according to the
 * board. */
static int code_of_mpirun(job *j) {
    char command[PATH_MAX];
    int status = j->wait_status, ranks_code;
    if (WIFSIGNALED(status)) {
        char remedy[64];
        say_once(j, "mpirun was ended by a signal (%s)%s", strsignal(WTERMSIG(status)),
                 tr_watch_remedy(j->board, remedy, sizeof remedy));
        return TR_ERR_RANK;
    }
    int code = WEXITSTATUS(status);
    if (host_lacks_program(j)) return TR_ERR_DEVICE;
    if (code == 0 || (code >= TR_ERR_USAGE && code <= TR_ERR_CONFIG)) return code;
    if (code > 128 && code <= 128 + SIGRTMAX) {
        say_killed(j, code - 128);
        return TR_ERR_RANK;
    }
    /* mpirun ends with 1 when it has not learned that a rank leaves MPI, as when mpirun itself does
     * not run for some seconds: MPI_Finalize does not wait longer for its answer. */
    if (ranks_ended(j, &ranks_code)) return ranks_code;
    say_once(j, "mpirun ended with %d before the job began; see why with: %s", code,
             write_trial(j, "hostname", command, sizeof command));
    return TR_ERR_DEVICE;
}

/* Waits until what mpirun wrote is copied, in a job on several hosts: it tells whether the job had
 * begun and which host was lost. Ranks that outlive mpirun keep the pipes open. */
static void wait_for_copies(const job *j) {
    const int64_t begin = tr_now_ns();
    for (int i = 0; i < 2 && j->log.fd >= 0; i++)
        while (!tr_relay_ended(j->output[i]) && tr_since_s(begin) < COPIES_S)
            (void)nanosleep(&(struct timespec){.tv_nsec = 5 * 1000000}, NULL);
}

/* Returns true when MPI itself ended a rank, which then leaves with a small code instead of by a
 * signal, and reports that. */
static bool mpi_did_not_start(job *j) {
    char doctor[sizeof j->exe + 16], command[sizeof doctor + PATH_MAX];
    int status = j->wait_status;
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || WEXITSTATUS(status) > 128) return false;
    if (tr_watch_gone_with_mpi(j->board) < 0 || tr_board_ending(j->board)) return false;
    (void)snprintf(doctor, sizeof doctor, "%s doctor", j->exe);
    if (j->shared_free < SEGMENT_BYTES * (uint64_t)j->launch->ranks && !elsewhere(j))
        say_once(j,
                 "MPI could not start: its %d ranks take %llu MiB or more of shared memory, and "
                 "/dev/shm had %.1f MiB free; make room there (docker run --shm-size=1g)",
                 j->launch->ranks, (unsigned long long)j->launch->ranks * (SEGMENT_BYTES >> 20),
                 (double)j->shared_free / (1 << 20));
    else
        say_once(j, "MPI could not start; see why with: %s",
                 write_trial(j, doctor, command, sizeof command));
    tr_board_end_all(j->board, TR_ERR_DEVICE);
    return true;
}

static int exit_code(job *j) {
    int rank, ending, failure;
    wait_for_copies(j);
    /* While MPI starts, mpirun kills all ranks because of one that may not have attached to the
     * board; then the first one is not known. Otherwise the message names the rank that mpirun saw
     * end first. */
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

/* Waits until the ranks of this host, which were killed, are dead; then no lock is theirs. Returns
 * false, after a sentence, when one does not die, as in a file system that does not answer. */
static bool ranks_end(const job *j) {
    const int64_t begin = tr_now_ns();
    char text[160];
    for (int r = 0; r < j->launch->ranks; r++)
        while (tr_watch_lives(j->board, r)) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
            if (tr_since_s(begin) < DYING_S) continue;
            (void)snprintf(text, sizeof text,
                           "rank %d was killed but does not end, so the job does not start again",
                           r);
            tr_signal_say(text, j->refreshes);
            return false;
        }
    return true;
}

/* Waits until all output is copied. If its reader has stopped reading, the wait lasts until a
 * signal comes. */
static void drain(job *j, const sigset_t *handled) {
    for (int i = 0; i < 2; i++) {
        while (j->output[i] && !tr_relay_ended(j->output[i])) {
            struct timespec tick = {.tv_nsec = 5 * 1000000};
            int signal = sigtimedwait(handled, NULL, &tick);
            if (signal == SIGTSTP) (void)raise(SIGSTOP);
            else if (signal > 0 && signal != SIGCHLD && signal != SIGWINCH) return;
        }
        if (i == 0) j->lost = tr_relay_lost(j->output[0]);
        else j->printed = j->printed || tr_relay_printed(j->output[1]);
    }
    /* The relay of stderr reads the state of stdout's line. */
    if (tr_relay_close(j->output[1])) (void)tr_relay_close(j->output[0]);
    j->output[0] = j->output[1] = NULL;
}

/* Prints the message of the rank that failed first, when that rank printed it but nothing of it has
 * arrived: mpirun drops what it has not read when the rank calls MPI_Abort. */
static void say_what_was_dropped(const job *j) {
    tr_rank_view v;
    int rank;
    if (!j->board || j->printed || j->output[1]) return;
    if (!tr_board_first_failure(j->board, &rank, NULL)) return;
    tr_board_read(j->board, rank, &v);
    if (v.message[0]) tr_signal_say(v.message, j->refreshes);
}

/* Fills the set of signals that the launcher takes one by one in its loop. It leaves out those that
 * were ignored at the start, because the kernel ignores a signal only while it is not blocked. */
static void handled_signals(sigset_t *handled) {
    const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGTSTP, SIGWINCH};
    (void)sigemptyset(handled);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!tr_signal_is_ignored(signals[i])) (void)sigaddset(handled, signals[i]);
    (void)sigaddset(handled, SIGCHLD);
}

/* Returns the bytes that are free in /dev/shm; UINT64_MAX when the system cannot say. */
static uint64_t free_shared_memory(void) {
    struct statvfs info;
    return statvfs("/dev/shm", &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : UINT64_MAX;
}

/* Sets j->exe to this program when its file was replaced or removed since the launcher began, as by
 * an installation before a restart. The kernel keeps the file while this process runs. */
static tr_status find_replaced_program(job *j) {
    if (tr_launch_spans_hosts(j->launch))
        return TR_FAIL(TR_ERR_DEVICE,
                       "the file of this program was replaced or removed, and other hosts need it "
                       "('%s'): start the job with --resume",
                       j->exe);
    (void)snprintf(j->exe, sizeof j->exe, "/proc/%ld/exe", (long)getpid());
    return TR_OK;
}

/* Opens the board, the launcher's only shared memory, and makes the job's folder. */
static tr_status open_board(job *j) {
    ssize_t length = readlink("/proc/self/exe", j->exe, sizeof j->exe - 1);
    if (length <= 0)
        return TR_FAIL(TR_ERR_DEVICE,
                       "this executable cannot be found through /proc: %s; mount /proc",
                       strerror(errno));
    if (access(j->exe, X_OK) != 0) TR_TRY(find_replaced_program(j));
    TR_TRY(tr_mpirun_check_limits(j->launch));
    tr_sweep();
    tr_board_make_name(j->name, sizeof j->name);
    TR_TRY(tr_job_files_make(&j->files, j->name));
    j->shared_free = free_shared_memory();
    tr_job_files_use(&j->files, true);
    j->named = true; /* also after a failure: /dev/shm may be full */
    TR_TRY(tr_board_open(j->name, j->launch->ranks, &j->board));
    tr_board_set_launcher(j->board, getpid());
    return TR_OK;
}

/* Runs the job once. *ends: it is not to be started again, whatever the code. name[64]: its board's
 * name. */
static int run_once(const tr_launch *launch, const sigset_t *handled, bool *ends, char *name) {
    job j = {.launch = launch, .refreshes = tr_signal_refreshes()};
    j.log = (tr_mpirun_log){.fd = -1, .rank = -1};
    int code = (int)open_board(&j);
    if (code == 0) tell_columns(&j);
    if (tr_launch_spans_hosts(launch)) tr_mpirun_log_open(&j.log);
    if (code == 0) code = (int)tr_mpirun_start(launch, j.exe, j.name, &j.mpirun, j.output);
    if (code == 0) {
        tr_relay_keep_notices(j.output[1], j.log.fd);
        j.watch.parent = j.mpirun;
        watch_until_the_end(&j, handled);
        code = exit_code(&j);
    } else {
        tr_signal_say(tr_error_message(), false);
    }
    drain(&j, handled);
    say_what_was_dropped(&j);
    if (code == 0 && j.lost && !launch->saves) { /* a run has log.txt */
        code = TR_ERR_IO;
        tr_signal_say(TR_STDOUT_LOST, false);
    }
    *ends = code != TR_ERR_RANK || j.stopping || launch->restarts == 0 || !ranks_end(&j);
    memcpy(name, j.name, sizeof j.name);
    drop_name(&j);
    tr_board_close(j.board);
    tr_mpirun_log_close(&j.log);
    tr_job_files_use(&j.files, false); /* a restart makes its own */
    tr_job_files_remove(&j.files);
    return code;
}

/* Chooses the hosts and the number of ranks of a restart: hosts that do not answer are left out.
 * path[size]: a new hostfile, or "". Returns false, after a sentence, when the rest cannot run the
 * job. */
static bool find_hosts(const tr_launch *launch, tr_launch *next, char *path, size_t size) {
    tr_hosts hosts;
    char lost[512], change[1024] = "", text[2048];
    path[0] = '\0';
    next->ranks = launch->ranks;
    next->hostfile = launch->hostfile;
    if (!launch->hostfile) return true;
    if (tr_hosts_read(launch->hostfile, &hosts) != TR_OK) {
        tr_hosts_free(&hosts);
        return true;
    }
    if (tr_hosts_ask(&hosts, launch->mpirun_options, ANSWER_S) != TR_OK) {
        tr_signal_say(tr_error_message(), false);
        tr_hosts_free(&hosts);
        return false;
    }
    tr_hosts_text(&hosts, false, lost, sizeof lost);
    const int slots = lost[0] ? tr_hosts_slots(&hosts) : INT_MAX;
    bool good = launch->fit(launch->fit_context, slots, &next->ranks, change, sizeof change);
    if (lost[0]) {
        (void)snprintf(text, sizeof text, "no answer from %s: the job %s%s%s", lost,
                       good ? "goes on without it" : "does not start again, because ",
                       good && change[0] ? ", with " : "", change);
        tr_signal_say(text, false);
    }
    if (good && lost[0]) {
        good = tr_hosts_write(&hosts, path, size) == TR_OK;
        if (good) next->hostfile = path;
        else tr_signal_say(tr_error_message(), false);
    }
    tr_hosts_free(&hosts);
    return good;
}

int tr_launch_run(const tr_launch *launch) {
    tr_launch next = *launch;
    sigset_t handled;
    char first[64], name[64];
    bool ends = false;
    handled_signals(&handled);
    (void)sigprocmask(SIG_BLOCK, &handled, NULL);
    void (*pipe_before)(int) = signal(SIGPIPE, SIG_IGN);
    int code = run_once(&next, &handled, &ends, first);
    while (!ends) {
        char text[96], hostfile[4096];
        next.restarts--;
        next.first = first;
        next.command = launch->again;
        if (!find_hosts(launch, &next, hostfile, sizeof hostfile)) break;
        (void)snprintf(text, sizeof text, "the job starts again (restart %d of %d)",
                       launch->restarts - next.restarts, launch->restarts);
        tr_signal_say(text, false);
        code = run_once(&next, &handled, &ends, name);
        if (hostfile[0]) (void)unlink(hostfile);
    }
    (void)signal(SIGPIPE, pipe_before);
    return code;
}
