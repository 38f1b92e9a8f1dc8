#include "comm/watchdog.h"

#include "comm/process.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double default_stopped_s = 5, default_silent_s = 10;
/* An observer whose looks lie further apart was away itself and cannot tell who was late. */
static const double away_s = 3;
/* Under `trireme run` the ranks leave the report to it, whose stderr nobody cuts off, for so long.
 */
static const double patience_s = 1.5;
/* Between SIGTERM and SIGKILL of mpirun ranks vanish one by one, on purpose. */
static const double leaving_s = 3;
/* A rank that failed ends the job through MPI; who is still there after so long ends on its own. */
static const double failed_s = 10;
static const int64_t tick_ns = 250 * 1000000;

struct tr_watchdog {
    tr_board *board;
    tr_watchdog_options options;
    tr_watch watch;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
};

typedef enum loss { LOSS_NONE, LOSS_GONE, LOSS_STOPPED, LOSS_SILENT } loss;

static bool same_process(const tr_process *p, const tr_rank_view *v) {
    return p->state == '?' ||
           (p->state && p->state != 'Z' && p->state != 'X' && p->start == v->pid_start);
}

/* What is wrong with one rank at now_ns; `late` is how long its last beat is ago, counted from
 * since_ns at the earliest. */
static loss judge(const tr_board *board, int rank, const tr_watch *watch, int64_t now_ns,
                  double *late) {
    tr_rank_view v;
    tr_board_read(board, rank, &v);
    *late = 0;
    if (v.state != TR_RANK_ALIVE) return LOSS_NONE;
    tr_process process;
    tr_process_look(v.pid, &process);
    if (!same_process(&process, &v)) {
        /* It may have said good-bye between the two looks. */
        tr_board_read(board, rank, &v);
        return v.state == TR_RANK_ALIVE ? LOSS_GONE : LOSS_NONE;
    }
    int64_t from = v.beat_ns > watch->since_ns ? v.beat_ns : watch->since_ns;
    *late = (double)(now_ns - from) * 1e-9;
    if (*late > watch->silent_s) return LOSS_SILENT;
    if (*late > watch->stopped_s && process.state == 'T') return LOSS_STOPPED;
    return LOSS_NONE;
}

static bool process_alive(pid_t pid) {
    tr_process process;
    tr_process_look(pid, &process);
    return process.state && process.state != 'Z';
}

static void say(const tr_board *board, int rank, loss why, double late, char *text, size_t size) {
    char what[256], reason[96];
    switch (why) {
    case LOSS_GONE:
        (void)snprintf(reason, sizeof reason,
                       "its process is gone (killed, perhaps for lack of memory: see dmesg)");
        break;
    case LOSS_STOPPED:
        (void)snprintf(reason, sizeof reason, "its process has been stopped for %.0f s", late);
        break;
    default: (void)snprintf(reason, sizeof reason, "it has not beaten for %.0f s", late); break;
    }
    (void)snprintf(text, size,
                   "lost %s; %s. All ranks end; continue from the last checkpoint with --resume",
                   tr_board_describe(board, rank, what, sizeof what), reason);
}

int tr_watch_look(tr_watch *watch, tr_board *board, char *sentence, size_t size) {
    if (watch->stopped_s <= 0) watch->stopped_s = default_stopped_s;
    if (watch->silent_s <= 0) watch->silent_s = default_silent_s;
    int64_t now = tr_board_now_ns();
    if (watch->last_ns == 0 || (double)(now - watch->last_ns) * 1e-9 > away_s)
        watch->since_ns = now;
    watch->last_ns = now;
    if (tr_board_ending(board) || tr_board_first_failure(board, NULL, NULL)) return -1;

    pid_t launcher = tr_board_launcher(board);
    bool observer = tr_board_rank(board) < 0;
    int64_t stop_ns = tr_board_stop_ns(board);
    for (int rank = 0; rank < tr_board_ranks(board); rank++) {
        if (rank == tr_board_rank(board)) continue;
        double late;
        loss why = judge(board, rank, watch, now, &late);
        if (why == LOSS_NONE) continue;
        if (why == LOSS_GONE && !watch->asked && stop_ns &&
            (double)(now - stop_ns) * 1e-9 < leaving_s) {
            continue;
        }
        if (watch->suspect != rank + 1) {
            watch->suspect = rank + 1;
            watch->suspect_ns = now;
        }
        if (!observer && launcher && (double)(now - watch->suspect_ns) * 1e-9 < patience_s &&
            process_alive(launcher)) {
            return -1;
        }
        say(board, rank, why, late, sentence, size);
        bool speaker = tr_board_claim_report(board);
        tr_board_end_all(board, TR_ERR_RANK);
        return speaker ? rank : -1;
    }
    watch->suspect = 0;
    return -1;
}

void tr_watch_kill(const tr_board *board, int rank) {
    tr_rank_view v;
    tr_board_read(board, rank, &v);
    tr_process process;
    if (v.state == TR_RANK_ABSENT) return;
    tr_process_look(v.pid, &process);
    if (same_process(&process, &v)) (void)kill(v.pid, SIGKILL);
}

/* After the report the others get time to leave with their own code 77, which is then the first
 * that a launcher sees; the lost rank, which may be stopped and cannot leave, is killed after that.
 */
static void end_after_report(tr_watchdog *watchdog, int lost, const char *sentence) {
    watchdog->options.report(watchdog->options.context, sentence);
    (void)nanosleep(&(struct timespec){.tv_nsec = 2 * tick_ns}, NULL);
    tr_watch_kill(watchdog->board, lost);
    watchdog->options.end(watchdog->options.context, TR_ERR_RANK);
}

/* One turn of the thread; false when the process was told to end. */
static bool turn(tr_watchdog *watchdog) {
    tr_board *board = watchdog->board;
    char sentence[768];
    int64_t failed_ns;
    tr_board_beat(board);
    int ending = tr_board_ending(board);
    int failure = tr_board_first_failure(board, NULL, &failed_ns);
    if (!ending && failure && failed_ns &&
        (double)(tr_board_now_ns() - failed_ns) * 1e-9 > failed_s) {
        ending = failure;
    }
    if (ending) {
        watchdog->options.end(watchdog->options.context, ending);
        return false;
    }
    int lost = tr_watch_look(&watchdog->watch, board, sentence, sizeof sentence);
    if (lost < 0) return true;
    end_after_report(watchdog, lost, sentence);
    return false;
}

static void *run(void *argument) {
    tr_watchdog *watchdog = argument;
    bool going = true;
    (void)pthread_mutex_lock(&watchdog->lock);
    while (going && !watchdog->stop) {
        (void)pthread_mutex_unlock(&watchdog->lock);
        going = turn(watchdog);
        (void)pthread_mutex_lock(&watchdog->lock);
        if (!going || watchdog->stop) break;
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += tick_ns;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        /* Sleeps until the next beat is due, or until tr_watchdog_stop wakes it. */
        (void)pthread_cond_timedwait(&watchdog->wake, &watchdog->lock, &until);
    }
    (void)pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

tr_status tr_watchdog_start(tr_board *board, const tr_watchdog_options *options,
                            tr_watchdog **out) {
    *out = NULL;
    if (tr_board_rank(board) < 0) {
        return TR_FAIL(TR_ERR_INTERNAL, "a watchdog needs a board with a rank attached");
    }
    tr_watchdog *watchdog = calloc(1, sizeof *watchdog);
    if (!watchdog) return TR_FAIL(TR_ERR_FIT, "out of memory for the watchdog");
    watchdog->board = board;
    watchdog->options = *options;
    watchdog->watch = options->limits;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&watchdog->lock, NULL);
    (void)pthread_cond_init(&watchdog->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);

    /* Signals are the main thread's business; the new thread inherits this mask. */
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&watchdog->thread, NULL, run, watchdog);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(watchdog);
        return TR_FAIL(TR_ERR_DEVICE, "starting the watchdog's thread: %s; see ulimit -u",
                       strerror(error));
    }
    *out = watchdog;
    return TR_OK;
}

void tr_watchdog_stop(tr_watchdog *watchdog) {
    if (!watchdog) return;
    (void)pthread_mutex_lock(&watchdog->lock);
    watchdog->stop = true;
    (void)pthread_cond_signal(&watchdog->wake);
    (void)pthread_mutex_unlock(&watchdog->lock);
    (void)pthread_join(watchdog->thread, NULL);
    (void)pthread_cond_destroy(&watchdog->wake);
    (void)pthread_mutex_destroy(&watchdog->lock);
    free(watchdog);
}
