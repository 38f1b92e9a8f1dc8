#include "job/watchdog.h"

#include "base/memory.h"
#include "base/thread.h"
#include "base/wait.h"
#include "job/process.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double DEFAULT_STOPPED_S = 5, DEFAULT_SILENT_S = 10, DEFAULT_REMOTE_S = 15,
                    DEFAULT_STARTING_S = 600;
/* An observer that pauses longer than this between looks was itself stopped, and cannot tell which
 * rank is late. */
static const double AWAY_S = 3;
/* How long to wait for a better-informed observer to report the loss first: the launcher, which can
 * still print at the end, or the leader, which tells the other hosts. */
static const double PATIENCE_S = 1.5;
/* How long to wait for mpirun to report it first, when a process vanishes while MPI starts. */
static const double MPI_PATIENCE_S = 5;
/* How long a rank that waits for MPI may take to notice that the job was asked to stop. */
static const double STOPPING_S = 10;
/* Ranks without a common board notice at the same time that MPI does not start. One reports this
 * time after the other, and the first one ends the job: mpirun kills the others 1 s after it asks
 * them to end, later on a busy host. */
static const double APART_S = 5;
/* Between mpirun's SIGTERM and SIGKILL ranks vanish one by one, on purpose. */
static const double LEAVING_S = 3;
/* A rank that failed ends the job through MPI. A rank that is still alive after this time ends by
 * itself. */
static const double FAILED_S = 10;
/* How long a leader waits until rank 0's host has taken over the report; then it reports by
 * itself. */
static const double RELAY_S = 2;
static const int64_t TICK_NS = 250 * 1000000;

struct tr_watchdog {
    tr_board *board;
    _Atomic(tr_heartbeat *) heartbeat; /* of a leader, else NULL */
    tr_watchdog_options options;
    tr_watch watch;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
};

typedef enum loss {
    LOSS_NONE,
    LOSS_GONE,
    LOSS_STOPPED,
    LOSS_SILENT,
    LOSS_REMOTE,
    LOSS_STARTING
} loss;

static double seconds(int64_t from_ns, int64_t to_ns) {
    return (double)(to_ns - from_ns) * 1e-9;
}

static bool same_process(const tr_process *p, const tr_rank_view *v) {
    return p->state == '?' ||
           (p->state && p->state != 'Z' && p->state != 'X' && p->start == v->pid_start);
}

static bool waits_for_mpi(const tr_rank_view *v) {
    return v->state == TR_RANK_ALIVE && v->waiting &&
           strcmp(v->wait_what, TR_RANK_WAITS_FOR_MPI) == 0;
}

/* Returns whether MPI's start takes too long: it has no deadline of its own, and a rank in it does
 * not notice that the job was asked to stop. */
static bool starts_late(const tr_board *board, const tr_rank_view *v, const tr_watch *watch,
                        int64_t now_ns) {
    if (!waits_for_mpi(v)) return false;
    const int64_t stop_ns = tr_board_stop_ns(board), since_ns = watch->since_ns;
    if (seconds(v->wait_ns > since_ns ? v->wait_ns : since_ns, now_ns) > watch->starting_s)
        return true;
    return stop_ns && seconds(stop_ns > since_ns ? stop_ns : since_ns, now_ns) > STOPPING_S;
}

/* Judges one rank at now_ns: returns how it is lost, if it is. *late is the age of its last
 * heartbeat, counted from since_ns at the earliest. */
static loss judge(const tr_board *board, int rank, const tr_watch *watch, int64_t now_ns,
                  double *late) {
    tr_rank_view v;
    tr_board_read(board, rank, &v);
    int64_t from = v.beat_ns > watch->since_ns ? v.beat_ns : watch->since_ns;
    *late = seconds(from, now_ns);
    if (v.state == TR_RANK_REMOTE) return *late > watch->remote_s ? LOSS_REMOTE : LOSS_NONE;
    if (v.state != TR_RANK_ALIVE) return LOSS_NONE;
    tr_process process = {0};
    if (!v.hidden) tr_process_look(v.pid, &process);
    if (!v.hidden && !same_process(&process, &v)) {
        /* It may have finished since the first read. */
        tr_board_read(board, rank, &v);
        return v.state == TR_RANK_ALIVE ? LOSS_GONE : LOSS_NONE;
    }
    if (*late > watch->silent_s) return LOSS_SILENT;
    if (*late > watch->stopped_s && process.state == 'T') return LOSS_STOPPED;
    if (starts_late(board, &v, watch, now_ns)) return LOSS_STARTING;
    return LOSS_NONE;
}

static bool process_alive(pid_t pid) {
    tr_process process;
    tr_process_look(pid, &process);
    return process.state && process.state != 'Z';
}

const char *tr_watch_remedy(const tr_board *board, char *text, size_t size) {
    int64_t step;
    if (!tr_board_saved(board, &step)) (void)snprintf(text, size, "%s", "");
    else if (step < 0) (void)snprintf(text, size, "; nothing was saved: start again");
    else (void)snprintf(text, size, "; --resume continues after step %" PRId64, step);
    return text;
}

void tr_watch_say_lost(const tr_board *board, const char *who, const char *why, char *sentence,
                       size_t size) {
    char remedy[64];
    (void)snprintf(sentence, size, "lost %s; %s. All ranks end%s", who, why,
                   tr_watch_remedy(board, remedy, sizeof remedy));
}

static void say(const tr_board *board, const char *who, loss why, double late, char *text,
                size_t size) {
    char reason[128];
    switch (why) {
    case LOSS_GONE:
        (void)snprintf(reason, sizeof reason,
                       "its process is gone (killed, perhaps for lack of memory: see dmesg)");
        break;
    case LOSS_STOPPED:
        (void)snprintf(reason, sizeof reason, "its process has been stopped for %.0f s", late);
        break;
    case LOSS_REMOTE:
        (void)snprintf(reason, sizeof reason,
                       "no heartbeat for %.0f s: its process was stopped, its host is down, or the "
                       "network is cut",
                       late);
        break;
    case LOSS_STARTING:
        (void)snprintf(reason, sizeof reason,
                       "MPI does not start: a rank has not begun, or the ranks do not reach one "
                       "another");
        break;
    default: (void)snprintf(reason, sizeof reason, "no heartbeat for %.0f s", late); break;
    }
    tr_watch_say_lost(board, who, reason, text, size);
}

bool tr_watch_lives(const tr_board *board, int rank) {
    tr_rank_view v;
    tr_process process;
    tr_board_read(board, rank, &v);
    if (v.state == TR_RANK_ABSENT || v.state == TR_RANK_REMOTE || v.hidden) return false;
    tr_process_look(v.pid, &process);
    return same_process(&process, &v);
}

void tr_watch_kill(const tr_board *board, int rank) {
    tr_rank_view v;
    if (rank < 0 || rank == tr_board_rank(board) || !tr_watch_lives(board, rank)) return;
    tr_board_read(board, rank, &v);
    (void)kill(v.pid, SIGKILL);
}

int tr_watch_gone_with_mpi(const tr_board *board) {
    for (int rank = 0; rank < tr_board_ranks(board); rank++) {
        tr_rank_view v;
        tr_process process;
        tr_board_read(board, rank, &v);
        if (!waits_for_mpi(&v) || v.hidden) continue;
        tr_process_look(v.pid, &process);
        if (!same_process(&process, &v)) return rank;
    }
    return -1;
}

/* --- ranks that have not attached to the board ------------------------------------------------ */

enum { MAX_CHILDREN = 4096 };

static bool attached(const tr_board *board, pid_t pid) {
    for (int rank = 0; rank < tr_board_ranks(board); rank++) {
        tr_rank_view v;
        tr_board_read(board, rank, &v);
        if (v.state != TR_RANK_ABSENT && v.state != TR_RANK_REMOTE && !v.hidden && v.pid == pid)
            return true;
    }
    return false;
}

static bool process_stopped(pid_t pid) {
    tr_process process;
    tr_process_look(pid, &process);
    return process.state == 'T';
}

/* Fills child[MAX_CHILDREN] with the children of watch->parent that have not attached; returns how
 * many. */
static int unattached(const tr_watch *watch, const tr_board *board, pid_t *child) {
    if (!watch->parent) return 0;
    int n = tr_process_children(watch->parent, child, MAX_CHILDREN), left = 0;
    for (int i = 0; i < n; i++)
        if (!attached(board, child[i])) child[left++] = child[i];
    return left;
}

/* Finds a child that has not attached and is stopped (watch->stopped); returns for how long, else
 * 0. */
static double stopped_unattached(tr_watch *watch, const tr_board *board, int64_t now_ns) {
    pid_t child[MAX_CHILDREN], found = 0;
    int n = unattached(watch, board, child);
    for (int i = 0; i < n && !found; i++)
        if (process_stopped(child[i])) found = child[i];
    if (found != watch->stopped || watch->stopped_ns < watch->since_ns) watch->stopped_ns = now_ns;
    watch->stopped = found;
    return found ? seconds(watch->stopped_ns, now_ns) : 0;
}

/* Returns the rank that Open MPI gave a process, or -1. */
static int rank_of(pid_t pid) {
    char number[16];
    bool known = tr_process_variable(pid, TR_RANK_VARIABLE, number, sizeof number);
    return known ? atoi(number) : -1;
}

void tr_watch_kill_unattached(const tr_watch *watch, const tr_board *board) {
    pid_t child[MAX_CHILDREN];
    int n = unattached(watch, board, child);
    for (int i = 0; i < n; i++)
        if (process_stopped(child[i]) || rank_of(child[i]) >= 0) (void)kill(child[i], SIGKILL);
}

/* --- a look ----------------------------------------------------------------------------------- */

typedef struct finding {
    int rank;
    loss why;
    double late;
} finding;

/* Returns the first loss among the ranks on the board. A rank that was suspected before comes
 * first, because mpirun kills the other ranks after it. */
static finding find_on_board(const tr_watch *watch, const tr_board *board, int64_t now_ns) {
    int64_t stop_ns = tr_board_stop_ns(board);
    bool leaving = !watch->asked && stop_ns && seconds(stop_ns, now_ns) < LEAVING_S;
    int ranks = tr_board_ranks(board),
        first = watch->suspects && watch->lost >= 0 ? watch->lost : 0;
    for (int i = 0; i < ranks; i++) {
        int rank = (first + i) % ranks;
        finding f = {.rank = rank};
        f.why = judge(board, rank, watch, now_ns, &f.late);
        if (rank == tr_board_rank(board) && f.why != LOSS_STARTING) continue;
        if (f.why != LOSS_NONE && !(f.why == LOSS_GONE && leaving)) return f;
    }
    return (finding){.rank = -1};
}

static finding find(tr_watch *watch, const tr_board *board, int64_t now_ns, char *who,
                    size_t size) {
    finding f = find_on_board(watch, board, now_ns);
    if (f.why != LOSS_NONE) {
        (void)tr_board_describe(board, f.rank, who, size);
        return f;
    }
    f.late = stopped_unattached(watch, board, now_ns);
    if (f.late <= watch->stopped_s) return f;
    f.why = LOSS_STOPPED;
    f.rank = rank_of(watch->stopped);
    char number[16] = "";
    if (f.rank >= 0) (void)snprintf(number, sizeof number, " %d", f.rank);
    (void)snprintf(who, size, "rank%s (pid %ld): before it began", number, (long)watch->stopped);
    return f;
}

static double patience(const tr_board *board, const tr_watch *watch, const finding *f) {
    if (f->why == LOSS_GONE && watch->parent && tr_watch_gone_with_mpi(board) >= 0)
        return MPI_PATIENCE_S;
    int me = tr_board_rank(board), leader = tr_board_leader(board);
    if (me < 0) return 0;
    pid_t launcher = tr_board_launcher(board);
    if (launcher && process_alive(launcher)) return PATIENCE_S;
    if (f->why == LOSS_STARTING) return me * APART_S;
    return leader >= 0 && leader != me && leader != f->rank ? PATIENCE_S : 0;
}

bool tr_watch_look(tr_watch *watch, tr_board *board, char *sentence, size_t size) {
    if (watch->stopped_s <= 0) watch->stopped_s = DEFAULT_STOPPED_S;
    if (watch->silent_s <= 0) watch->silent_s = DEFAULT_SILENT_S;
    if (watch->remote_s <= 0) watch->remote_s = DEFAULT_REMOTE_S;
    if (watch->starting_s <= 0) watch->starting_s = DEFAULT_STARTING_S;
    int64_t now = tr_now_ns();
    if (watch->last_ns == 0 || seconds(watch->last_ns, now) > AWAY_S) watch->since_ns = now;
    watch->last_ns = now;
    if (tr_board_ending(board) || tr_board_first_failure(board, NULL, NULL)) return false;

    char who[256];
    finding found = find(watch, board, now, who, sizeof who);
    if (found.why == LOSS_NONE) {
        watch->suspects = false;
        return false;
    }
    if (!watch->suspects || watch->lost != found.rank) watch->suspect_ns = now;
    watch->suspects = true;
    watch->lost = found.rank;
    if (seconds(watch->suspect_ns, now) < patience(board, watch, &found)) return false;
    say(board, who, found.why, found.late, sentence, size);
    bool speaker = tr_board_claim_report(board);
    tr_board_end_all(board, TR_ERR_RANK);
    return speaker;
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Takes a turn of the heartbeats between hosts. When another host announces the end of the job,
 * ends it here too, and prints the sentence that came with it, if any. */
static void hear(tr_watchdog *watchdog) {
    tr_heartbeat *heartbeat = atomic_load(&watchdog->heartbeat);
    tr_heartbeat_end end;
    if (!heartbeat || !tr_heartbeat_turn(heartbeat, &end)) return;
    bool speaker = tr_board_claim_report(watchdog->board);
    tr_board_end_all(watchdog->board, end.code);
    if (speaker && end.sentence[0])
        watchdog->options.report(watchdog->options.context, end.sentence);
}

/* Tells the other hosts that the job ends. If rank 0's host is to print the sentence, waits for its
 * answer, and returns false when there is none in time. */
static bool tell(tr_watchdog *watchdog, int code, const char *sentence) {
    tr_heartbeat *heartbeat = atomic_load(&watchdog->heartbeat);
    if (!heartbeat) return false;
    tr_heartbeat_end end;
    bool by_rank_0 = tr_board_rank(watchdog->board) != 0 && sentence[0];
    tr_heartbeat_tell(heartbeat, code, sentence);
    bool heard = tr_heartbeat_turn(heartbeat, &end);
    for (int64_t begin = tr_now_ns(); by_rank_0 && !heard && tr_since_s(begin) < RELAY_S;) {
        (void)nanosleep(&(struct timespec){.tv_nsec = TICK_NS / 25}, NULL);
        heard = tr_heartbeat_turn(heartbeat, &end);
    }
    return heard;
}

/* Reports, gives the other ranks time to leave with code 77, which is then the first code that a
 * launcher sees, and kills the lost rank, which may be stopped and unable to leave. */
static void end_after_report(tr_watchdog *watchdog, const char *sentence) {
    bool here = tr_board_rank(watchdog->board) == 0;
    if (here) watchdog->options.report(watchdog->options.context, sentence);
    bool told = tell(watchdog, TR_ERR_RANK, here ? "" : sentence);
    if (!here && !told) watchdog->options.report(watchdog->options.context, sentence);
    (void)nanosleep(&(struct timespec){.tv_nsec = 2 * TICK_NS}, NULL);
    tr_watch_kill(watchdog->board, watchdog->watch.lost);
    watchdog->options.end(watchdog->options.context, TR_ERR_RANK);
}

/* Takes one turn of the thread; returns false when the process was told to end. */
static bool turn(tr_watchdog *watchdog) {
    tr_board *board = watchdog->board;
    char sentence[768];
    int64_t failed_ns;
    tr_board_beat(board);
    hear(watchdog);
    int ending = tr_board_ending(board);
    int failure = tr_board_first_failure(board, NULL, &failed_ns);
    if (!ending && failure && failed_ns && tr_since_s(failed_ns) > FAILED_S) ending = failure;
    if (ending) {
        (void)tell(watchdog, ending, "");
        watchdog->options.end(watchdog->options.context, ending);
        return false;
    }
    if (watchdog->options.look &&
        watchdog->options.look(watchdog->options.context, sentence, sizeof sentence)) {
        if (tr_board_claim_report(board))
            watchdog->options.report(watchdog->options.context, sentence);
        tr_board_end_all(board, TR_ERR_RANK); /* this process too, in its next turn */
        return true;
    }
    if (!tr_watch_look(&watchdog->watch, board, sentence, sizeof sentence)) return true;
    end_after_report(watchdog, sentence);
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
        /* Sleeps until the next beat is due, or until tr_watchdog_stop wakes it. */
        (void)tr_cond_wait_until(&watchdog->wake, &watchdog->lock, tr_now_ns() + TICK_NS);
    }
    (void)pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

static void release(tr_watchdog *watchdog) {
    (void)pthread_cond_destroy(&watchdog->wake);
    (void)pthread_mutex_destroy(&watchdog->lock);
    free(watchdog);
}

tr_status tr_watchdog_start(tr_board *board, const tr_watchdog_options *options,
                            tr_watchdog **out) {
    *out = NULL;
    if (tr_board_rank(board) < 0)
        return TR_FAIL(TR_ERR_INTERNAL, "a watchdog needs a board with a rank attached");
    tr_watchdog *watchdog;
    TR_TRY(tr_calloc(1, sizeof *watchdog, &watchdog));
    watchdog->board = board;
    watchdog->options = *options;
    watchdog->watch = options->limits;
    (void)pthread_mutex_init(&watchdog->lock, NULL);
    tr_cond_init(&watchdog->wake);
    const tr_status status = tr_thread_start(&watchdog->thread, run, watchdog, "the watchdog");
    if (status == TR_OK) *out = watchdog;
    else release(watchdog);
    return status;
}

void tr_watchdog_lead(tr_watchdog *watchdog, tr_heartbeat *heartbeat) {
    atomic_store(&watchdog->heartbeat, heartbeat);
}

void tr_watchdog_stop(tr_watchdog *watchdog) {
    if (!watchdog) return;
    (void)pthread_mutex_lock(&watchdog->lock);
    watchdog->stop = true;
    (void)pthread_cond_signal(&watchdog->wake);
    (void)pthread_mutex_unlock(&watchdog->lock);
    (void)pthread_join(watchdog->thread, NULL);
    release(watchdog);
}
