/* Progress of messages. A thread polls while messages are in flight; its sleeps between polls grow
 * while no message moves. A caller that waits polls itself, and the thread pauses meanwhile. Ranks
 * may share few cores, so a thread that waits longer than SPIN_S sleeps and leaves its core to
 * computing threads. */
#include "base/minmax.h"
#include "base/thread.h"
#include "base/wait.h"
#include "comm/world_impl.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double SPIN_S =
    50e-6; /* a waiting caller polls without sleeping this long after a message moved */
/* Sleeps between polls: shortest, longest, and as a fraction of the time without an event. A poll
 * of the thread takes about 10 us from a computing core; a caller that waits has no other work. */
static const double CALLER_MIN_S = 20e-6, CALLER_MAX_S = 200e-6, CALLER_PART = 1.0 / 16;
static const double POLLER_MIN_S = 200e-6, POLLER_MAX_S = 1e-3, POLLER_PART = 0.5;
static const double POLLER_BUSY_S = 20e-6; /* the thread's sleep while messages move */
/* A poll that takes this much processor time has moved data in the transport. Not time by the
 * clock, which also passes while other threads have the core. */
static const double BUSY_POLL_S = 20e-6;
static const double CLOSE_LIMIT_S = 10; /* how long closing waits without a deadline */
static const double MOMENT_S = 1e-3;    /* a wait longer than this is shown through the hook */
/* A waiting thread asks how long its wait lasts many times a second. After a longer gap than this
 * its process was stopped (the watchdog's limit, too: job/watchdog.c). */
static const double AWAY_S = 3;

tr_status tr_world_fail(tr_world *world, tr_status status, const char *message) {
    if (world->failure == TR_OK) {
        world->failure = status;
        (void)snprintf(world->failure_message, sizeof world->failure_message, "%s", message);
    }
    return status;
}

tr_status tr_world_failed(const tr_world *world) {
    return TR_FAIL(world->failure, "%s", world->failure_message);
}

/* Polls the transport, all channels and all groups once. An error becomes the world's failure. May
 * release the lock for a while. */
static tr_poll poll_all(tr_world *world) {
    const double begin = tr_clock_s(CLOCK_THREAD_CPUTIME_ID);
    tr_poll poll = {.next = INFINITY};
    tr_status status = world->transport->ops->progress(world->transport);
    for (tr_channel *c = world->channels; c && status == TR_OK; c = c->next)
        status = c->ops->poll(c, &poll);
    for (tr_group *g = world->groups; g && status == TR_OK; g = g->next) g->ops->poll(g, &poll);
    if (status != TR_OK) (void)tr_world_fail(world, status, tr_error_message());
    if (tr_clock_s(CLOCK_THREAD_CPUTIME_ID) - begin > BUSY_POLL_S) poll.moved = true;
    return poll;
}

static double clamp(double x, double least, double most) {
    return x < least ? least : tr_min_f64(x, most);
}

/* Asks the scheduler for short time slices. The thread's turns are short, and a late turn delays
 * messages. Linux 6.12 and later run a thread with a short slice soon after it wakes, instead of at
 * the end of a computing thread's slice, milliseconds later; older kernels ignore it. Also makes
 * its timers exact instead of 50 us late. */
static void ask_for_short_turns(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice_ns, deadline, period;
    } attributes = {.size = sizeof attributes,
                    .nice = getpriority(PRIO_PROCESS, 0), /* of this thread */
                    .slice_ns = 100000};
    /* Keeps a policy that was chosen for the process (chrt), as it keeps its nice value. */
    if (sched_getscheduler(0) == SCHED_OTHER) (void)syscall(SYS_sched_setattr, 0, &attributes, 0U);
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

/* Sleeps without the lock, until a signal at the latest. */
static void thread_sleep(tr_world *world, double seconds) {
    if (seconds <= 0) {
        pthread_mutex_unlock(&world->lock);
        sched_yield();
        pthread_mutex_lock(&world->lock);
        return;
    }
    (void)tr_cond_wait_until(&world->wake, &world->lock, tr_now_ns() + (int64_t)(seconds * 1e9));
}

static void *thread_main(void *argument) {
    tr_world *world = argument;
    ask_for_short_turns();
    pthread_mutex_lock(&world->lock);
    while (!world->closing) {
        double sleep = POLLER_MIN_S;
        if (world->drivers == 0 && tr_now_s() - world->event >= POLLER_BUSY_S) {
            tr_poll poll = poll_all(world);
            if (!poll.outstanding || world->failure != TR_OK) {
                /* No message can move before a thread sends or opens a channel, which signals. */
                world->idle = true;
                pthread_cond_wait(&world->wake, &world->lock);
                world->idle = false;
                continue;
            }
            double end = tr_now_s();
            if (poll.moved) world->event = end;
            sleep = poll.moved
                        ? POLLER_BUSY_S
                        : clamp((end - world->event) * POLLER_PART, POLLER_MIN_S, POLLER_MAX_S);
            sleep = tr_min_f64(sleep, poll.next - end);
        }
        thread_sleep(world, sleep);
    }
    pthread_mutex_unlock(&world->lock);
    return NULL;
}

void tr_poller_wake(tr_world *world, bool sent) {
    if (sent) world->event = tr_now_s() - POLLER_BUSY_S;
    if (sent || world->idle) pthread_cond_signal(&world->wake);
}

tr_status tr_poller_start(tr_world *world) {
    if (world->size == 1) return TR_OK;
    TR_TRY(tr_thread_start(&world->poller, thread_main, world, "messages"));
    world->poller_runs = true;
    return TR_OK;
}

void tr_poller_stop(tr_world *world) {
    if (!world->poller_runs) return;
    pthread_mutex_lock(&world->lock);
    world->closing = true;
    pthread_cond_signal(&world->wake);
    pthread_mutex_unlock(&world->lock);
    pthread_join(world->poller, NULL);
    world->poller_runs = false;
}

double tr_world_close_limit(tr_world *world) {
    const double deadline = tr_world_get_hook(world).deadline_s;
    return deadline > 0 ? deadline : CLOSE_LIMIT_S;
}

void tr_wait_describe(const tr_wait *wait, char *text, size_t size) {
    if (wait->peer >= 0 && wait->number < 0)
        (void)snprintf(text, size, "%s of the channel with rank %d", wait->what, wait->peer);
    else if (wait->peer >= 0)
        (void)snprintf(text, size, "%s %lld of the channel with rank %d", wait->what,
                       (long long)wait->number, wait->peer);
    else if (wait->group >= 0)
        (void)snprintf(text, size, "%s of group %d", wait->what, wait->group);
    else (void)snprintf(text, size, "%s of all ranks", wait->what);
}

tr_status tr_wait_fail(tr_world *world, const tr_wait *wait, double seconds) {
    char text[128];
    char late_rank[32] = "another rank";
    int late = wait->peer >= 0 ? wait->peer : wait->missing;
    if (late >= 0) (void)snprintf(late_rank, sizeof late_rank, "rank %d", late);
    tr_wait_describe(wait, text, sizeof text);
    tr_status status =
        TR_FAIL(TR_ERR_RANK,
                "rank %d waited %.1f s for %s in %s: that rank is stuck or gone, or needs a longer "
                "parallel.deadline",
                world->rank, seconds, late_rank, text);
    /* A close that exceeds its own limit does not fail the world. */
    if (wait->limit_s <= 0) (void)tr_world_fail(world, status, tr_error_message());
    return status;
}

/* Sleeps between two polls of a waiting caller, without the lock. quiet: seconds since a message
 * moved, not since the wait began: a large message takes many polls, and a sleep after each would
 * take longer than the copies. */
static void wait_pause(tr_world *world, double quiet, double next) {
    if (quiet < SPIN_S) {
        sched_yield();
        return;
    }
    double sleep =
        tr_min_f64(clamp(quiet * CALLER_PART, CALLER_MIN_S, CALLER_MAX_S), next - tr_now_s());
    if (sleep > 0) world->transport->ops->pause(world->transport, sleep);
}

tr_lasting tr_lasting_begin(void) {
    const double now = tr_now_s();
    return (tr_lasting){.since = now, .asked = now};
}

double tr_lasting_seconds(tr_lasting *lasting) {
    const double now = tr_now_s(), away = now - lasting->asked;
    if (away > AWAY_S) lasting->since += away;
    lasting->asked = now;
    return now - lasting->since;
}

/* A wait, how long it lasts, and whether it has been shown through the hook. */
typedef struct showing {
    tr_world_hook hook;
    tr_lasting lasting;
    int turn;
    bool shown;
} showing;

/* Restarts the time of a wait that is now for another rank. Under the lock. */
static void turn_to_next(showing *show, const tr_wait *wait) {
    if (show->turn == wait->turn) return;
    if (show->shown) show->hook.wait(show->hook.context, false, wait->what, wait->peer);
    show->shown = false;
    show->turn = wait->turn;
    show->lasting = tr_lasting_begin();
}

static void show_wait(showing *show, const tr_wait *wait) {
    char text[128];
    if (show->shown || wait->alone || !show->hook.wait ||
        tr_lasting_seconds(&show->lasting) <= MOMENT_S)
        return;
    tr_wait_describe(wait, text, sizeof text);
    show->hook.wait(show->hook.context, true, text, wait->peer);
    show->shown = true;
}

tr_status tr_poller_wait(tr_world *world, tr_wait *wait) {
    pthread_mutex_lock(&world->lock);
    if (wait->ready(wait)) {
        pthread_mutex_unlock(&world->lock);
        return TR_OK;
    }
    double event = tr_now_s();
    showing show = {.hook = world->hook, .lasting = tr_lasting_begin(), .turn = wait->turn};
    double limit = wait->limit_s > 0 ? wait->limit_s : show.hook.deadline_s;
    tr_status status = TR_OK;
    world->drivers++;
    for (;;) {
        tr_poll poll = poll_all(world);
        if (wait->ready(wait)) break;
        if (world->failure != TR_OK) {
            status = tr_world_failed(world);
            break;
        }
        turn_to_next(&show, wait);
        const double waited = tr_lasting_seconds(&show.lasting), now = show.lasting.asked;
        if (poll.moved) event = now;
        /* Fails only a wait that was shown, and so polled more than once, because this thread
         * itself may have been stopped for longer than the limit. */
        if (limit > 0 && waited > limit && !wait->alone && (show.shown || !show.hook.wait)) {
            status = tr_wait_fail(world, wait, waited);
            break;
        }
        pthread_mutex_unlock(&world->lock);
        show_wait(&show, wait);
        wait_pause(world, now - event, poll.next);
        pthread_mutex_lock(&world->lock);
    }
    world->drivers--;
    world->event = tr_now_s();
    pthread_mutex_unlock(&world->lock);
    if (show.shown && (status == TR_OK || wait->limit_s > 0))
        show.hook.wait(show.hook.context, false, wait->what, wait->peer);
    return status;
}
