/* Tests comm/ over the local transport: the shared checks, aborts and deadlines, and launchers'
 * variables. */
#include "comm/world_impl.h"
#include "support/comm_checks.h"
#include "support/seed.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

typedef bool (*body)(tr_world *world, uint32_t seed);

typedef struct rank_thread {
    pthread_t thread;
    body run;
    tr_world *world;
    uint32_t seed;
    bool good;
} rank_thread;

static uint32_t test_seed;
static const char *device_name; /* of the test that runs now */

static void *rank_main(void *argument) {
    rank_thread *t = argument;
    t->good = t->run(t->world, t->seed);
    if (!t->good)
        tr_world_abort(t->world, 1); /* otherwise the other ranks would wait for this one */
    tr_world_close(t->world);
    return NULL;
}

static void run_ranks(int n, body run) {
    tr_world *world[8];
    rank_thread rank[8];
    assert_int_equal(tr_world_open_local(n, world), TR_OK);
    for (int i = 0; i < n; i++) {
        rank[i] = (rank_thread){.run = run, .world = world[i], .seed = test_seed};
        assert_int_equal(pthread_create(&rank[i].thread, NULL, rank_main, &rank[i]), 0);
    }
    bool good = true;
    for (int i = 0; i < n; i++) {
        pthread_join(rank[i].thread, NULL);
        good = good && rank[i].good;
    }
    assert_true(good);
}

static bool checks_of_device(tr_world *world, uint32_t seed) {
    return comm_checks_on(world, device_name, false, seed) &&
           comm_checks_last(world, device_name, seed);
}

static void shared_checks(void **state) {
    static const int sizes[] = {1, 2, 3, 5, 8};
    device_name = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) run_ranks(sizes[i], checks_of_device);
}

/* Returns the status of the enqueued work. */
static tr_status settle(tr_world *w, tr_stream *stream, tr_status status) {
    return status != TR_OK ? status : tr_world_sync(w, stream);
}

static float *floats(tr_device *device, int count) {
    void *memory = NULL;
    return tr_device_alloc(device, TR_MEMORY_DATA, (size_t)count * sizeof(float), &memory) == TR_OK
               ? memory
               : NULL;
}

/* --- progress --------------------------------------------------------------------------------- */

static atomic_bool reduced; /* rank 1 has its sum */

/* Rank 0 does not call comm/ between the start of its reduction and the end of rank 1's: its
 * progress thread drives both rounds of messages and the additions. */
static bool thread_drives(tr_world *w, uint32_t seed) {
    checks k;
    tr_group *g;
    int64_t ticket;
    int ranks[2] = {0, 1}, me = tr_world_rank(w);
    CHECK(checks_open(w, device_name, seed, &k));
    CHECK_OK(tr_group_open(w, k.device, ranks, 2, 0, 8000, &g));
    float *x = floats(k.device, 5000);
    CHECK_OK(tr_group_start(g, k.stream, x, 5000, TR_F32, TR_REDUCE_SUM, &ticket));
    while (me == 0 && !reduced) usleep(100);
    CHECK_OK(tr_group_wait(g, k.stream, ticket));
    CHECK_OK(tr_world_sync(w, k.stream));
    if (me == 1) reduced = true;
    tr_group_close(g);
    tr_device_free(k.device, x);
    tr_device_close(k.device);
    return true;
}

static void progress(void **state) {
    device_name = *state;
    reduced = false;
    run_ranks(2, thread_drives);
}

/* --- sums that travel in BF16 ----------------------------------------------------------------- */

/* Counts the bytes of all ranks' messages of groups. */
static const tr_transport_ops *carried; /* the transport's own */
static atomic_size_t sent;

static tr_status count_send(tr_transport *transport, int peer, int tag, const void *buffer,
                            size_t bytes, tr_message *request) {
    if (tag >= TR_TAG_GROUP) sent += bytes;
    return carried->post_send(transport, peer, tag, buffer, bytes, request);
}

static float gaussian(uint32_t seed, int rank, int64_t i) {
    double sum = -6; /* of twelve numbers in 0..1 */
    for (int64_t k = 0; k < 12; k++) sum += (double)hash_of(seed, rank, 12 * i + k) / 4294967296.0;
    return (float)sum;
}

/* Returns the distance between the BF16 numbers around x. */
static double gap_of(double x) {
    int exponent; /* |x| is in [0.5, 1) 2^exponent, which has 2^7 BF16 numbers */
    (void)frexp(x, &exponent);
    return ldexp(1, exponent - 8);
}

/* Each element is within the errors of its n + 1 roundings, its values' and its sum's: half a gap
 * each. The squares of these errors add up on average: gap^2 / 12 for a value, and for the sum,
 * which is a multiple of the smallest gap u of its values, (gap^2 + 2 u^2) / 12, or 0 if its gap is
 * u. The square of an element's error has at most twice the square of its mean as variance, which
 * is the case of a normal error; the sum of all squares is within five deviations of its mean. */
static bool error_of_bf16(tr_world *w, uint32_t seed) {
    enum { COUNT = 20000 };
    const int n = tr_world_size(w), rank = tr_world_rank(w);
    double error = 0, due = 0, variance = 0;
    int ranks[8];
    checks k;
    tr_group *g;
    CHECK(checks_open(w, device_name, seed, &k));
    for (int r = 0; r < n; r++) ranks[r] = r;
    CHECK_OK(tr_group_open(w, k.device, ranks, n, 0, 50000, &g));
    float *x = floats(k.device, COUNT);
    for (int i = 0; i < COUNT; i++) x[i] = gaussian(seed, rank, i);
    CHECK_OK(tr_group_all_reduce(g, k.stream, x, COUNT, TR_F32, TR_REDUCE_SUM_BF16));
    CHECK_OK(tr_world_sync(w, k.stream));
    for (int i = 0; i < COUNT; i++) {
        double sum = 0, gap = gap_of((double)x[i]), least = gap, most = gap / 2, mean = 0;
        for (int r = 0; r < n; r++) {
            const double value = (double)gaussian(seed, r, i), one = gap_of(value);
            sum += value;
            least = fmin(least, one);
            most += one / 2;
            mean += one * one / 12;
        }
        if (least < gap) mean += (gap * gap + 2 * least * least) / 12;
        due += mean;
        variance += 2 * mean * mean;
        const double off = fabs((double)x[i] - sum);
        CHECK(off <= most * (1 + 1e-6));
        error += off * off;
    }
    CHECK(fabs(error - due) < 5 * sqrt(variance));
    tr_group_close(g);
    tr_device_free(k.device, x);
    tr_device_close(k.device);
    return true;
}

/* A sum that all get, or of which each gets a part; or the gather of such parts. */
typedef enum summing { ALL, PARTS, GATHER, SUMMINGS } summing;

/* Returns through *bytes what all ranks send for COUNT elements. */
static bool count_sum(const checks *k, tr_group *g, float *x, int count, summing what, tr_reduce op,
                      size_t *bytes) {
    int64_t ticket;
    const int n = tr_world_size(k->world), part = count / n;
    tr_scatter_range range[8];
    tr_gather_range gathered[8];
    for (int r = 0; r < n; r++) {
        range[r] = (tr_scatter_range){x + r * part, part, r, 1};
        gathered[r] = (tr_gather_range){x + r * part, (size_t)part * sizeof *x, r};
    }
    CHECK_OK(tr_world_barrier(k->world));
    const size_t before = sent;
    CHECK_OK(tr_world_barrier(k->world));
    if (what == PARTS)
        CHECK_OK(tr_group_scatter_ranges(g, k->stream, range, n, TR_F32, op, &ticket));
    else if (what == GATHER)
        CHECK_OK(tr_group_gather_sums(g, k->stream, gathered, n, TR_F32, op, &ticket));
    else CHECK_OK(tr_group_start(g, k->stream, x, count, TR_F32, op, &ticket));
    CHECK_OK(tr_group_wait(g, k->stream, ticket));
    CHECK_OK(tr_world_sync(k->world, k->stream));
    CHECK_OK(tr_world_barrier(k->world));
    *bytes = sent - before;
    return true;
}

static bool bytes_of_bf16(tr_world *w, uint32_t seed) {
    const int n = tr_world_size(w), count = 840 * 100;
    int ranks[8];
    checks k;
    tr_group *g;
    CHECK(checks_open(w, device_name, seed, &k));
    for (int r = 0; r < n; r++) ranks[r] = r;
    CHECK_OK(tr_group_open(w, k.device, ranks, n, 0, 50000, &g));
    float *x = floats(k.device, count);
    for (summing what = 0; what < SUMMINGS; what++) {
        const size_t elements = (size_t)((what == ALL ? 2 : 1) * (n - 1) * count);
        size_t bytes = 0;
        CHECK(count_sum(&k, g, x, count, what, TR_REDUCE_SUM, &bytes));
        CHECK(bytes == elements * sizeof(float));
        CHECK(count_sum(&k, g, x, count, what, TR_REDUCE_SUM_BF16, &bytes));
        CHECK(bytes == elements * sizeof(uint16_t));
    }
    tr_group_close(g);
    tr_device_free(k.device, x);
    tr_device_close(k.device);
    return true;
}

static bool count_bytes(tr_world *w, uint32_t seed) {
    static tr_transport_ops counting;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!carried) {
        carried = w->transport->ops;
        counting = *carried;
        counting.post_send = count_send;
    }
    pthread_mutex_unlock(&once);
    pthread_mutex_lock(&w->lock);
    w->transport->ops = &counting;
    pthread_mutex_unlock(&w->lock);
    return bytes_of_bf16(w, seed);
}

static void bf16_sums(void **state) {
    static const int sizes[] = {2, 3, 4, 8};
    device_name = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_ranks(sizes[i], error_of_bf16);
        run_ranks(sizes[i], count_bytes);
    }
}

/* --- failures -------------------------------------------------------------------------------- */

static atomic_int waiting; /* ranks in their first wait of abort_frees_waits, or past it */

static void count_waiting(void *context, bool begin, const char *what, int peer) {
    (void)what;
    (void)peer;
    bool *counted = context;
    if (begin && !*counted) waiting++;
    *counted = true;
}

static bool abort_frees_waits(tr_world *w, uint32_t seed) {
    (void)seed;
    bool counted = false;
    int ranks[3] = {0, 1, 2};
    tr_device *device;
    tr_group *g;
    CHECK_OK(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    float *x = floats(device, 2000);
    CHECK_OK(tr_group_open(w, device, ranks, 3, 0, 8000, &g));
    tr_stream *stream = tr_device_compute(device);
    CHECK_OK(tr_group_all_reduce(g, stream, x, 2000, TR_F32, TR_REDUCE_SUM));
    CHECK_OK(tr_world_sync(w, stream));
    if (tr_world_rank(w) == 2) {
        while (waiting < 2) usleep(1000);
        tr_world_abort(w, 9);
    } else {
        tr_world_set_hook(w, &(tr_world_hook){.wait = count_waiting, .context = &counted});
        CHECK(settle(w, stream, tr_group_all_reduce(g, stream, x, 2000, TR_F32, TR_REDUCE_SUM)) ==
              TR_ERR_RANK);
        CHECK(strstr(tr_error_message(), "code 9"));
        CHECK(tr_world_barrier(w) == TR_ERR_RANK); /* and every later call fails the same way */
        CHECK(tr_group_all_reduce(g, stream, x, 2, TR_F32, TR_REDUCE_SUM) == TR_ERR_RANK);
        tr_world_set_hook(w, NULL);
    }
    tr_group_close(g);
    tr_device_free(device, x);
    tr_device_close(device);
    return true;
}

static void aborts(void **state) {
    waiting = 0;
    device_name = *state;
    run_ranks(3, abort_frees_waits);
}

typedef struct board {
    int begun, ended, peer;
    char what[128];
} board;

static void on_wait(void *context, bool begin, const char *what, int peer) {
    board *b = context;
    if (begin) {
        b->begun++;
        b->peer = peer;
        (void)snprintf(b->what, sizeof b->what, "%s", what);
    } else b->ended++;
}

/* Rank 1 sends nothing: the message names it and what it is late for. */
static bool late_in_channel(tr_world *w, uint32_t seed) {
    (void)seed;
    if (tr_world_rank(w) == 1) return true; /* and waits for rank 0 to close its world too */
    board b = {0};
    tr_device *device;
    tr_channel *from;
    tr_world_set_hook(w, &(tr_world_hook){.wait = on_wait, .context = &b, .deadline_s = 0.05});
    CHECK_OK(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    CHECK_OK(tr_channel_open(w, device, 1, false, 1, &from));
    float *x = floats(device, 1);
    tr_stream *stream = tr_device_compute(device);
    CHECK(settle(w, stream, tr_channel_take(from, stream, x, 1)) == TR_ERR_RANK);
    CHECK(strstr(tr_error_message(), "for rank 1 in message 0"));
    CHECK(strstr(tr_error_message(), "parallel.deadline"));
    CHECK(b.begun == 1 && b.ended == 0 && b.peer == 1 && strstr(b.what, "message 0"));
    tr_channel_close(from);
    tr_device_free(device, x);
    tr_device_close(device);
    return true;
}

static bool late_in_group(tr_world *w, uint32_t seed) {
    (void)seed;
    if (tr_world_rank(w) == 1) return true; /* and waits for rank 0 to close its world too */
    int ranks[2] = {1, 0};
    board b = {0};
    tr_device *device;
    tr_group *g;
    tr_stream *stream;
    tr_world_set_hook(w, &(tr_world_hook){.wait = on_wait, .context = &b, .deadline_s = 0.05});
    CHECK_OK(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    float *x = floats(device, 2000);
    CHECK_OK(tr_group_open(w, device, ranks, 2, 4, 8000, &g));
    bool own = tr_device_on_host(device);
    if (own) CHECK_OK(tr_stream_create(device, &stream));
    else stream = tr_device_compute(device);
    /* Where a thread runs the stream's work, the next call returns the failure. */
    CHECK_OK(tr_group_all_reduce(g, stream, x, 2000, TR_F32, TR_REDUCE_SUM));
    CHECK_OK(tr_stream_sync(stream));
    CHECK(tr_group_all_reduce(g, stream, x, 2000, TR_F32, TR_REDUCE_SUM) == TR_ERR_RANK);
    CHECK(strstr(tr_error_message(), "for rank 1 in all_reduce of group 4"));
    CHECK(b.begun == 1 && b.ended == 0 && b.peer == -1);
    if (own) tr_stream_destroy(stream);
    tr_group_close(g);
    tr_device_free(device, x);
    tr_device_close(device);
    return true;
}

/* Rank 1 does not take part in the first of two sums, which the second one follows. Closing the
 * first one's group ends after its limit and does not fail the world, and the second sum never
 * begins, because its numbers are not complete. */
static bool late_before_close(tr_world *w, uint32_t seed) {
    (void)seed;
    const int me = tr_world_rank(w);
    int ranks[2] = {0, 1};
    int64_t ticket;
    tr_device *device;
    tr_group *g[2];
    tr_world_set_hook(w, &(tr_world_hook){.deadline_s = me == 0 ? 0.05 : 5});
    CHECK_OK(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    tr_stream *stream = tr_device_compute(device);
    float *x = floats(device, 2000);
    for (int i = 0; i < 2; i++) CHECK_OK(tr_group_open(w, device, ranks, 2, 6 + i, 8000, &g[i]));
    if (me == 0) {
        CHECK_OK(tr_group_start(g[0], stream, x, 2000, TR_F32, TR_REDUCE_SUM, &ticket));
        CHECK_OK(tr_group_follow(g[1], g[0], ticket));
    }
    tr_status status = tr_group_start(g[1], stream, x, 2000, TR_F32, TR_REDUCE_SUM, &ticket);
    if (me == 0) {
        CHECK_OK(status);
        tr_group_close(g[0]);
        CHECK_OK(tr_world_check(w));
    }
    if (status == TR_OK) status = settle(w, stream, tr_group_wait(g[1], stream, ticket));
    CHECK(status == TR_ERR_RANK);
    tr_group_close(g[1]);
    if (me == 1) tr_group_close(g[0]);
    tr_device_free(device, x);
    tr_device_close(device);
    return true;
}

/* Rank 0 fails with messages that rank 1 never takes: neither closing their channels nor leaving
 * waits for rank 1, and rank 1's own wait ends too. */
static bool gives_up(tr_world *w, uint32_t seed) {
    (void)seed;
    int me = tr_world_rank(w);
    int64_t ticket;
    tr_device *device;
    tr_channel *channel;
    tr_world_set_hook(w, &(tr_world_hook){.deadline_s = 600});
    CHECK_OK(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    if (me == 1) {
        CHECK(tr_world_barrier(w) == TR_ERR_RANK);
    } else {
        float *x = floats(device, 1);
        CHECK_OK(tr_channel_open(w, device, 1, true, 4, &channel));
        CHECK_OK(tr_channel_send(channel, tr_device_compute(device), x, 4, &ticket));
        tr_world_give_up(w, TR_FAIL(TR_ERR_DATA, "the loss is not finite"));
        CHECK(tr_world_barrier(w) == TR_ERR_DATA);
        CHECK(strstr(tr_error_message(), "not finite"));
        tr_channel_close(channel);
        tr_device_free(device, x);
    }
    tr_device_close(device);
    return true;
}

typedef struct observer {
    tr_world *world;
    atomic_bool over;
    bool stuck;
} observer;

static void *observe(void *argument) {
    observer *o = argument;
    char sentence[256];
    do o->stuck |= tr_world_look(o->world, sentence, sizeof sentence);
    while (!o->over);
    return NULL;
}

/* A watchdog looks from the begin on, also while the data plane is chosen. */
static bool looked_at(tr_world *w, uint32_t seed) {
    checks k;
    char note[256];
    pthread_t thread;
    observer o = {.world = w};
    CHECK(checks_open(w, device_name, seed, &k));
    CHECK(pthread_create(&thread, NULL, observe, &o) == 0);
    const tr_status status =
        tr_world_choose_data_plane(w, k.device, TR_PLANE_AUTO, note, sizeof note);
    o.over = true;
    pthread_join(thread, NULL);
    CHECK_OK(status);
    CHECK(!o.stuck);
    tr_device_close(k.device);
    return true;
}

static void observers(void **state) {
    device_name = *state;
    run_ranks(2, looked_at);
}

/* A rank that expects more bytes than are sent is in another call than the sender. */
static bool different_sizes(tr_world *w, uint32_t seed) {
    (void)seed;
    int64_t value = 0;
    const int me = tr_world_rank(w);
    const tr_status status = tr_world_broadcast(w, 0, &value, me == 0 ? 4 : sizeof value);
    if (me == 0) return true; /* its wait may end by rank 1's failure */
    CHECK(status == TR_ERR_INTERNAL);
    CHECK(strstr(tr_error_message(), "ranks 1 and 0 run different collectives"));
    return true;
}

static void sizes(void **state) {
    (void)state;
    run_ranks(2, different_sizes);
}

static void *late_main(void *argument) {
    rank_thread *t = argument;
    t->good = t->run(t->world, 0);
    tr_world_close(t->world);
    return NULL;
}

static void deadlines(void **state) {
    device_name = *state;
    static const body bodies[] = {late_in_channel, late_in_group, late_before_close, gives_up};
    for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
        tr_world *world[2];
        rank_thread rank[2];
        assert_int_equal(tr_world_open_local(2, world), TR_OK);
        for (int i = 0; i < 2; i++) {
            rank[i] = (rank_thread){.run = bodies[k], .world = world[i]};
            assert_int_equal(pthread_create(&rank[i].thread, NULL, late_main, &rank[i]), 0);
        }
        for (int i = 0; i < 2; i++) pthread_join(rank[i].thread, NULL);
        assert_true(rank[0].good && rank[1].good);
    }
}

/* --- messages that cannot be withdrawn -------------------------------------------------------- */

/* What rank 0 does not free, for tools that look for lost memory: of each call. */
static struct {
    tr_rounds *rounds;
    const int64_t *sent_from;
} kept[2];
static int call;         /* the one in progress */
static atomic_bool over; /* rank 0's call is */

static tr_status note_send(tr_transport *transport, int peer, int tag, const void *buffer,
                           size_t bytes, tr_message *request) {
    kept[call].sent_from = buffer;
    return carried->post_send(transport, peer, tag, buffer, bytes, request);
}

/* A transport that does not know when it has accessed the message's memory last. */
static bool withdraw_in_vain(tr_transport *transport, tr_message *request) {
    (void)carried->cancel(transport, request);
    return false;
}

/* The memory of rank 0's messages is not the caller's, and stays after the call has failed. */
static bool outlives_call(tr_world *w, bool gathers) {
    if (tr_world_rank(w) == 1) {
        while (!over) (void)sched_yield();
        return true;
    }
    static tr_transport_ops noting;
    int64_t value[2] = {42, 0};
    carried = w->transport->ops;
    noting = *carried;
    noting.post_send = note_send;
    noting.cancel = withdraw_in_vain;
    pthread_mutex_lock(&w->lock);
    w->transport->ops = &noting;
    pthread_mutex_unlock(&w->lock);
    tr_world_set_hook(w, &(tr_world_hook){.deadline_s = 0.1});
    const bool before = tr_world_keeps_memory(w);
    const tr_status status = gathers ? tr_world_gather_all(w, value, value, sizeof *value)
                                     : tr_world_broadcast(w, 0, value, sizeof *value);
    over = true;
    kept[call].rounds = w->control;
    CHECK(status == TR_ERR_RANK);
    CHECK(!before && tr_world_keeps_memory(w));
    CHECK(kept[call].sent_from != value && *kept[call].sent_from == 42);
    return true;
}

static bool outlives_gather(tr_world *w, uint32_t seed) {
    (void)seed;
    return outlives_call(w, true);
}

static bool outlives_broadcast(tr_world *w, uint32_t seed) {
    (void)seed;
    return outlives_call(w, false);
}

static void memory_of_messages(void **state) {
    (void)state;
    static const body bodies[] = {outlives_gather, outlives_broadcast};
    for (call = 0; call < 2; call++) {
        over = false;
        run_ranks(2, bodies[call]);
    }
}

/* --- a job that is stopped -------------------------------------------------------------------- */

static atomic_int ahead;   /* seconds that the clock is ahead */
static atomic_long clocks; /* how often it was read since */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    const int failed = __real_clock_gettime(clock, now);
    if (clock == CLOCK_MONOTONIC && ahead > 0) {
        now->tv_sec += ahead;
        clocks++;
    }
    return failed;
}

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock,
                                  const struct timespec *until) {
    const struct timespec real = {.tv_sec = until->tv_sec - ahead, .tv_nsec = until->tv_nsec};
    return __real_pthread_cond_timedwait(cond, lock, &real);
}

/* All ranks are stopped for 1000 s when the board has a rank's wait. */
static void stop_all(void *context, bool begin, const char *what, int peer) {
    (void)context, (void)what, (void)peer;
    if (begin) ahead = 1000;
}

/* Rank 1 comes after rank 0 has looked at its wait again, often enough to have judged it. */
static bool stopped_in_wait(tr_world *w, uint32_t seed) {
    (void)seed;
    if (tr_world_rank(w) == 0)
        tr_world_set_hook(w, &(tr_world_hook){.wait = stop_all, .deadline_s = 600});
    else
        while (clocks < 100) usleep(1000);
    CHECK_OK(tr_world_barrier(w));
    return true;
}

static void time_while_stopped_does_not_count(void **state) {
    (void)state;
    run_ranks(2, stopped_in_wait);
    ahead = 0;
}

/* --- opening --------------------------------------------------------------------------------- */

static void launchers(void **state) {
    (void)state;
    static const char *const variables[] = {"SLURM_NTASKS", "WORLD_SIZE"};
    static const char *const remedies[] = {"srun --mpi=pmix -n 4", "trireme run -n 4"};
    tr_world *world;
    for (int i = 0; i < 2; i++) {
        setenv(variables[i], "4", 1);
        assert_int_equal(tr_world_open_mpi(&world), TR_ERR_DEVICE);
        assert_non_null(strstr(tr_error_message(), remedies[i]));
        setenv(variables[i], "1", 1);
        assert_int_equal(tr_world_open_mpi(&world), TR_OK);
        assert_int_equal(tr_world_size(world), 1);
        tr_world_close(world);
        unsetenv(variables[i]);
    }
}

static void refusals(void **state) {
    (void)state;
    tr_world *world;
    tr_group *g;
    tr_channel *c;
    int outside[] = {1};
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_group_open(world, NULL, outside, 1, 0, 1, &g), TR_ERR_INTERNAL);
    assert_int_equal(tr_group_open(world, NULL, outside, 2, 0, 1, &g), TR_ERR_INTERNAL);
    assert_int_equal(tr_group_open(world, NULL, &(int){0}, 1, -1, 1, &g), TR_ERR_INTERNAL);
    assert_int_equal(tr_channel_open(world, NULL, 0, true, 1, &c), TR_ERR_INTERNAL);
    tr_world_close(world);
    assert_int_equal(tr_world_open_local(0, &world), TR_ERR_INTERNAL);
}

int main(void) {
    test_seed = (uint32_t)tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(shared_checks, "ref"),
        cmocka_unit_test_prestate(progress, "ref"),
        cmocka_unit_test_prestate(bf16_sums, "ref"),
        cmocka_unit_test_prestate(aborts, "ref"),
        cmocka_unit_test_prestate(deadlines, "ref"),
        cmocka_unit_test_prestate(observers, "ref"),
        /* Staged: */
        cmocka_unit_test_prestate(shared_checks, "guarded"),
        cmocka_unit_test_prestate(progress, "guarded"),
        cmocka_unit_test_prestate(aborts, "guarded"),
        cmocka_unit_test_prestate(deadlines, "guarded"),
        cmocka_unit_test(memory_of_messages),
        cmocka_unit_test(time_while_stopped_does_not_count),
        cmocka_unit_test(sizes),
        cmocka_unit_test(launchers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
