#include "support/comm_checks.h"

#include "base/clock.h"
#include "support/comm_part_checks.h"

#include <stdlib.h>
#include <string.h>

/* Checks one all-reduce of `count` elements, `shift` elements into the buffer. An element's place
 * in the random sequence depends on the element alone, so equal places must give equal bits
 * whatever the count and shift: `expect` does not get them. */
static bool check_all_reduce(const checks *k, tr_group *g, tr_stream *stream, const int *ranks,
                             int n, int64_t count, int64_t shift, tr_dtype dtype, tr_reduce op,
                             bool crafted) {
    size_t e = tr_dtype_size(dtype), all = (size_t)(count + shift) * e + 8;
    size_t offset = (size_t)shift * e;
    both data;
    char *want = malloc(all);
    CHECK(both_new(k, all, &data) && want);
    fill(data.host + offset, dtype, count, crafted, k->seed, tr_world_rank(k->world));
    CHECK(upload(stream, &data));
    CHECK_OK(tr_group_all_reduce(g, stream, data.device + offset, count, dtype, op));
    CHECK(download(k, stream, &data));
    for (int64_t i = 0; i < count; i++) expect(want, dtype, op, crafted, k->seed, ranks, n, i);
    CHECK(wrong(data.host + offset, want, e, count) == 0);
    both_free(k, &data);
    free(want);
    return true;
}

static bool check_group(const checks *k, tr_stream *stream, const int *ranks, int n, int id,
                        size_t max_bytes) {
    static const int64_t counts[] = {1, 3, 127, 1025, 4501};
    static const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F16, TR_F64};
    tr_group *g;
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, max_bytes, &g));
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int d = 0; d < 4; d++)
            for (int op = 0; op <= (d < 2 ? TR_REDUCE_SUM_BF16 : TR_REDUCE_MAX); op++)
                for (int crafted = 0; crafted < (op == TR_REDUCE_SUM ? 2 : 1); crafted++)
                    if (!check_all_reduce(k, g, stream, ranks, n, counts[c], (int64_t)c % 3,
                                          dtypes[d], (tr_reduce)op, crafted))
                        return false;
    CHECK(tr_group_all_reduce(g, stream, NULL, 3, TR_I32, TR_REDUCE_SUM) == TR_ERR_INTERNAL);
    CHECK(tr_group_all_reduce(g, stream, NULL, 3, TR_F64, TR_REDUCE_SUM_BF16) == TR_ERR_INTERNAL);
    tr_group_close(g);
    return true;
}

/* Only the compute stream may wait for other ranks: the other streams have no thread for it. */
static bool check_wrong_stream(const checks *k, tr_stream *stream) {
    int ranks[64], n = tr_world_size(k->world);
    for (int i = 0; i < n; i++) ranks[i] = i;
    tr_group *g;
    both data;
    CHECK(both_new(k, 8, &data));
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, 2, 64, &g));
    if (n > 1) {
        CHECK(tr_group_all_reduce(g, stream, data.device, 2, TR_F32, TR_REDUCE_SUM) ==
              TR_ERR_INTERNAL);
        CHECK(strstr(tr_error_message(), "only the compute stream"));
    }
    tr_group_close(g);
    both_free(k, &data);
    return true;
}

enum { TICKET_GROUPS = 3, TICKETS = 5, IN_FLIGHT = TICKET_GROUPS * TICKETS };

/* A reduction that has been started, with its data. */
typedef struct flight {
    tr_group *group;
    const int *ranks;
    int n;
    int64_t count, ticket;
    both data;
} flight;

static double random_delay(void *context, int group, size_t bytes) {
    (void)group;
    uint32_t *state = context;
    (void)bytes;
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 16) / 65536 * 2e-3;
}

/* Starts reduction `i` after work that computes its data. */
static bool start_flight(const checks *k, tr_stream *stream, flight *f, int i) {
    static const int64_t counts[TICKETS] = {3, 1025, 20001, 1, 4501};
    uint32_t seed = k->seed + (uint32_t)i;
    f->count = counts[i / TICKET_GROUPS];
    CHECK(both_new(k, (size_t)f->count * sizeof(float), &f->data));
    fill(f->data.host, TR_F32, f->count, false, seed, tr_world_rank(k->world));
    if (i < 3) CHECK_OK(tr_stream_call(stream, slow_work, NULL));
    CHECK(upload(stream, &f->data));
    CHECK_OK(tr_group_start(f->group, stream, f->data.device, f->count, TR_F32, TR_REDUCE_SUM,
                            &f->ticket));
    return true;
}

static bool check_flight(const checks *k, flight *f, int i) {
    float *want = malloc(f->data.bytes);
    CHECK(want);
    for (int64_t j = 0; j < f->count; j++)
        expect(want, TR_F32, TR_REDUCE_SUM, false, k->seed + (uint32_t)i, f->ranks, f->n, j);
    CHECK(wrong(f->data.host, want, sizeof *want, f->count) == 0);
    both_free(k, &f->data);
    free(want);
    return true;
}

/* Several reductions of three groups are in flight at one time. Each rank waits for them in an
 * order of its own, half of the ranks start the first one after a barrier that the others reach
 * after theirs, and every buffer is copied by work that follows its wait. */
static bool check_tickets(const checks *k, bool delayed, bool own_stream) {
    tr_world *w = k->world;
    int size = tr_world_size(w), rank = tr_world_rank(w), all[64], back[64], half[64], n = 0;
    uint32_t state = k->seed + (uint32_t)rank;
    for (int i = 0; i < size; i++) {
        all[i] = i;
        back[i] = size - 1 - i;
        if (i % 2 == rank % 2) half[n++] = i;
    }
    tr_group *g[TICKET_GROUPS];
    const int *ranks[TICKET_GROUPS] = {all, half, back}, counts[TICKET_GROUPS] = {size, n, size};
    const int ids[TICKET_GROUPS] = {11, 12 + rank % 2, 14};
    for (int i = 0; i < TICKET_GROUPS; i++)
        CHECK_OK(tr_group_open(w, k->device, ranks[i], counts[i], ids[i], 5000, &g[i]));
    tr_stream *stream = k->stream;
    if (own_stream) CHECK_OK(tr_stream_create(k->device, &stream));
    if (delayed) tr_world_set_delay(w, random_delay, &state);
    flight f[IN_FLIGHT];
    int order[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) {
        const int j = i % TICKET_GROUPS;
        f[i] = (flight){.group = g[j], .ranks = ranks[j], .n = counts[j]};
        order[i] = i;
        if (i == 0 && rank % 2) CHECK_OK(tr_world_barrier(w));
        if (!start_flight(k, stream, &f[i], i)) return false;
        if (i == 0 && rank % 2 == 0) CHECK_OK(tr_world_barrier(w));
    }
    for (int i = IN_FLIGHT - 1; i > 0; i--) { /* shuffle */
        int j = (int)(hash_of(k->seed, rank, i) % (uint32_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        flight *one = &f[order[i]];
        for (int again = 0; again < 1 + i % 2; again++)
            CHECK_OK(tr_group_wait(one->group, stream, one->ticket));
        CHECK_OK(tr_stream_copy(stream, one->data.host, one->data.device, one->data.bytes));
    }
    CHECK_OK(tr_world_sync(w, stream));
    for (int i = 0; i < IN_FLIGHT; i++)
        if (!check_flight(k, &f[i], i)) return false;
    tr_world_set_delay(w, NULL, NULL);
    if (own_stream) tr_stream_destroy(stream);
    for (int i = TICKET_GROUPS - 1; i >= 0; i--) tr_group_close(g[i]);
    return true;
}

static double fixed_delay(void *context, int group, size_t bytes) {
    (void)group;
    (void)bytes;
    return *(const double *)context;
}

/* A sum of a second group follows the first group's, which is delayed and then closes: it adds
 * sums. */
static bool check_following(const checks *k) {
    enum { COUNT = 3000 };
    tr_world *w = k->world;
    const int size = tr_world_size(w);
    int ranks[64];
    double delay = 5e-3;
    int64_t first, second;
    tr_group *g[2];
    both data;
    for (int i = 0; i < size; i++) ranks[i] = i;
    CHECK(both_new(k, COUNT * sizeof(float), &data));
    for (int i = 0; i < 2; i++)
        CHECK_OK(tr_group_open(w, k->device, ranks, size, 16 + i, 5000, &g[i]));
    fill(data.host, TR_F32, COUNT, true, k->seed, tr_world_rank(w));
    CHECK(upload(k->stream, &data));
    tr_world_set_delay(w, fixed_delay, &delay);
    CHECK_OK(tr_group_start(g[0], k->stream, data.device, COUNT, TR_F32, TR_REDUCE_SUM, &first));
    tr_world_set_delay(w, NULL, NULL);
    CHECK_OK(tr_group_follow(g[1], g[0], first));
    CHECK_OK(tr_group_start(g[1], k->stream, data.device, COUNT, TR_F32, TR_REDUCE_SUM, &second));
    if (!tr_world_uses_nccl(w)) tr_group_close(g[0]);
    CHECK_OK(tr_group_wait(g[1], k->stream, second));
    CHECK(download(k, k->stream, &data));
    for (int64_t i = 0; i < COUNT; i++) {
        float got; /* value_of is (rank + 1) (i % 7 + 1) */
        memcpy(&got, data.host + (size_t)i * sizeof got, sizeof got);
        CHECK(got == (float)(size * size * (size + 1) / 2 * (int)(i % 7 + 1)));
    }
    tr_group_close(g[1]);
    if (tr_world_uses_nccl(w)) tr_group_close(g[0]);
    both_free(k, &data);
    return true;
}

static bool check_groups(const checks *k) {
    int size = tr_world_size(k->world), rank = tr_world_rank(k->world);
    int ranks[64];
    for (int i = 0; i < size; i++) ranks[i] = i;
    if (!check_group(k, k->stream, ranks, size, 0, 1 << 20)) return false; /* whole buffers */
    for (int i = 0; i < size; i++) ranks[i] = size - 1 - i;
    if (!check_group(k, k->stream, ranks, size, 1, 5000)) return false; /* in pieces, reversed */
    if (!check_gathers(k, ranks, size, 3) || !check_gathers_of_sums(k, ranks, size, 9) ||
        !check_following(k))
        return false;
    if (!check_scattered_ranges(k, ranks, size, 6)) return false;
    if (!check_parts(k, ranks, size, 4, 5000) || !check_parts(k, ranks, size, 5, 1 << 20))
        return false;
    /* Two groups at a time, and a stream for each. */
    int n = 0;
    for (int i = rank % 2; i < size; i += 2) ranks[n++] = i;
    tr_stream *stream;
    CHECK_OK(tr_stream_create(k->device, &stream));
    bool staged = !tr_device_on_host(k->device) && !tr_world_uses_nccl(k->world);
    bool good = !staged || check_wrong_stream(k, stream);
    good &= check_group(k, staged ? k->stream : stream, ranks, n, 7 + rank % 2, 5000);
    tr_stream_destroy(stream);
    return good;
}

/* Memory that is not there is a failure for the program, as without a sanitizer. */
#if defined __SANITIZE_ADDRESS__
#define SANITIZER_OPTIONS __asan_default_options
#elif defined __SANITIZE_THREAD__
#define SANITIZER_OPTIONS __tsan_default_options
#endif
#ifdef SANITIZER_OPTIONS
const char *SANITIZER_OPTIONS(void);
const char *SANITIZER_OPTIONS(void) {
    return "allocator_may_return_null=1";
}
#endif

static bool check_control(const checks *k) {
    tr_world *w = k->world;
    int size = tr_world_size(w), rank = tr_world_rank(w);
    CHECK_OK(tr_world_barrier(w));
    for (int root = 0; root < size; root++) {
        int value = rank * 10 + 1;
        CHECK_OK(tr_world_broadcast(w, root, &value, sizeof value));
        CHECK(value == root * 10 + 1);
    }
    int64_t mine = rank * 3, all[64];
    CHECK_OK(tr_world_gather_all(w, &mine, all, sizeof mine));
    for (int r = 0; r < size; r++) CHECK(all[r] == r * 3);

    char text[64], *texts;
    size_t sizes[64], at = 0;
    memset(text, 'a' + rank, sizeof text);
    CHECK_OK(tr_world_gather_all_v(w, text, (size_t)rank * 2, (void **)&texts, sizes));
    for (int r = 0; r < size; r++) {
        CHECK(sizes[r] == (size_t)r * 2);
        for (size_t i = 0; i < sizes[r]; i++) CHECK(texts[at++] == 'a' + r);
    }
    free(texts);

    CHECK_OK(tr_world_agree(w, TR_OK));
    tr_status fault =
        rank >= size / 2 ? TR_FAIL(TR_ERR_DATA, "rank %d found a fault", rank) : TR_OK;
    CHECK(tr_world_agree(w, fault) == TR_ERR_DATA);
    char want[64];
    (void)snprintf(want, sizeof want, "rank %d found a fault", size / 2);
    CHECK(strcmp(tr_error_message(), want) == 0);

    CHECK_OK(tr_world_calloc(w, (size_t)rank + 1, 1, &texts));
    CHECK(texts[rank] == 0);
    free(texts);
    CHECK(tr_world_calloc(w, 1, rank == size - 1 ? SIZE_MAX : 1, &texts) == TR_ERR_FIT);
    CHECK(tr_error_is_agreed() && !texts);
    return true;
}

enum { MESSAGES = 12, MESSAGE_BYTES = 20000 };

static size_t message_size(int number) {
    return number % 4 == 0 ? 0 : number % 4 == 1 ? 5 : (size_t)MESSAGE_BYTES - (size_t)number;
}

/* The two channels of a rank in a ring: to the next rank, from the previous one. */
typedef struct ring {
    tr_channel *to, *from;
    tr_stream *out, *in;
    int previous;
    both source, staged, landed; /* messages: of this rank, as they are sent, as they came */
    size_t size[MESSAGES];
} ring;

/* Opening waits for the other end, so ranks must not wait in a circle. */
static bool open_ring(const checks *k, ring *r) {
    tr_world *w = k->world;
    int size = tr_world_size(w), rank = tr_world_rank(w), next = (rank + 1) % size;
    r->previous = (rank + size - 1) % size;
    if (rank > 0)
        CHECK_OK(tr_channel_open(w, k->device, r->previous, false, MESSAGE_BYTES, &r->from));
    CHECK_OK(tr_channel_open(w, k->device, next, true, MESSAGE_BYTES, &r->to));
    if (rank == 0)
        CHECK_OK(tr_channel_open(w, k->device, r->previous, false, MESSAGE_BYTES, &r->from));
    enum { ALL = MESSAGES * MESSAGE_BYTES };
    CHECK(both_new(k, ALL, &r->source) && both_new(k, ALL, &r->staged) &&
          both_new(k, ALL, &r->landed));
    for (int m = 0; m < MESSAGES; m++) {
        r->size[m] = message_size(m);
        for (int i = 0; i < MESSAGE_BYTES; i++)
            r->source.host[m * MESSAGE_BYTES + i] = (char)hash_of((uint32_t)m, rank, i);
    }
    return true;
}

/* The stream computes the data, so a send that does not wait for it sends wrong data. */
static bool send_round(ring *r) {
    CHECK(upload(r->out, &r->source));
    CHECK_OK(tr_channel_expect(r->from, r->size, MESSAGES));
    int64_t ticket[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        const size_t at = (size_t)m * MESSAGE_BYTES;
        if (m < 3) CHECK_OK(tr_stream_call(r->out, slow_work, NULL));
        CHECK_OK(
            tr_stream_copy(r->out, r->staged.device + at, r->source.device + at, MESSAGE_BYTES));
        CHECK_OK(tr_channel_send(r->to, r->out, r->staged.device + at, r->size[m], &ticket[m]));
    }
    for (int m = 0; m < MESSAGES; m++)
        CHECK_OK(tr_channel_take(r->from, r->in, r->landed.device + (size_t)m * MESSAGE_BYTES,
                                 r->size[m]));
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(tr_channel_wait_sent(r->to, r->out, ticket[m]));
        CHECK_OK(
            tr_stream_zero(r->out, r->staged.device + (size_t)m * MESSAGE_BYTES, MESSAGE_BYTES));
    }
    return true;
}

static bool has_messages(const ring *r) {
    for (int m = 0; m < MESSAGES; m++)
        for (size_t i = 0; i < r->size[m]; i++)
            CHECK(r->landed.host[(size_t)m * MESSAGE_BYTES + i] ==
                  (char)hash_of((uint32_t)m, r->previous, (int64_t)i));
    return true;
}

/* All ranks in a ring send twelve messages to their neighbour first and receive afterwards. With
 * rendezvous this works only if sends do not block and the progress thread posts the receives. */
static bool check_channels(const checks *k, bool delayed, bool own_streams) {
    tr_world *w = k->world;
    int rank = tr_world_rank(w);
    if (tr_world_size(w) == 1) return true;
    uint32_t state = k->seed + (uint32_t)rank;
    if (delayed) tr_world_set_delay(w, random_delay, &state);
    ring r = {.out = k->stream, .in = k->stream};
    if (own_streams) {
        CHECK_OK(tr_stream_create(k->device, &r.out));
        CHECK_OK(tr_stream_create(k->device, &r.in));
    }
    CHECK(open_ring(k, &r) && send_round(&r));
    CHECK(download(k, r.in, &r.landed));
    CHECK_OK(tr_world_sync(w, r.out));
    CHECK(has_messages(&r));
    CHECK_OK(tr_world_barrier(w));
    int64_t ticket;
    CHECK(tr_channel_send(r.to, k->stream, r.source.device, MESSAGE_BYTES + 1, &ticket) ==
          TR_ERR_INTERNAL);
    /* A receive is posted for a message that is never sent: closing cancels it. */
    if (rank > 0) tr_channel_close(r.from);
    tr_channel_close(r.to);
    if (rank == 0) tr_channel_close(r.from);
    CHECK_OK(tr_world_barrier(w)); /* the pair may open a channel again */
    if (own_streams) {
        tr_stream_destroy(r.out);
        tr_stream_destroy(r.in);
    }
    tr_world_set_delay(w, NULL, NULL);
    both_free(k, &r.source);
    both_free(k, &r.staged);
    both_free(k, &r.landed);
    return true;
}

/* On a device that runs behind the caller, the next wait returns the error, and the world has
 * failed. */
static bool check_wrong_size(const checks *k) {
    tr_world *w = k->world;
    int rank = tr_world_rank(w);
    if (tr_world_size(w) < 2) return true;
    both data;
    int64_t ticket;
    tr_channel *c;
    CHECK(both_new(k, 8, &data));
    /* Every rank has ended its earlier waits. Ranks without a channel may still be in this barrier
     * when the world fails. */
    const tr_status met = tr_world_barrier(w);
    CHECK(rank > 1 || met == TR_OK);
    if (rank < 2) {
        CHECK_OK(tr_channel_open(w, k->device, 1 - rank, rank == 0, 8, &c));
        if (rank == 0) CHECK_OK(tr_channel_send(c, k->stream, data.device, 8, &ticket));
        else {
            CHECK_OK(tr_channel_expect(c, &(size_t){8}, 1));
            tr_status status = tr_channel_take(c, k->stream, data.device, 7);
            if (status == TR_OK) status = tr_world_sync(w, k->stream);
            CHECK(status == TR_ERR_INTERNAL);
            CHECK(strstr(tr_error_message(), "8 bytes instead of 7"));
        }
        tr_channel_close(c);
    }
    if (tr_device_on_host(k->device)) CHECK_OK(tr_world_barrier(w));
    both_free(k, &data);
    return true;
}

/* Rank 0 sends two rendezvous messages; rank 1 takes none before both are complete on rank 0: so
 * the receive of the second was posted before the first was taken. Otherwise the deadline ends the
 * wait. */
static bool check_two_deep(const checks *k) {
    enum {
        BIG = 5 << 19
    }; /* above any eager limit: a send without its receive stays open; two
          chunks and a half */
    tr_world *w = k->world;
    int rank = tr_world_rank(w);
    double delay = 20e-3;
    if (tr_world_size(w) < 2) return true;
    both data;
    tr_channel *c = NULL;
    int64_t ticket;
    CHECK(both_new(k, BIG, &data));
    tr_world_set_hook(w, &(tr_world_hook){.deadline_s = 120});
    if (rank < 2) CHECK_OK(tr_channel_open(w, k->device, 1 - rank, rank == 0, BIG, &c));
    if (rank == 1) CHECK_OK(tr_channel_expect(c, (size_t[]){BIG, BIG}, 2));
    if (rank == 0) {
        double start = tr_now_s();
        tr_world_set_delay(w, fixed_delay, &delay);
        CHECK_OK(tr_channel_send(c, k->stream, data.device, BIG, &ticket));
        CHECK_OK(tr_channel_send(c, k->stream, data.device, BIG, &ticket));
        CHECK_OK(tr_channel_wait_sent(c, k->stream, ticket));
        CHECK_OK(tr_world_sync(w, k->stream));
        CHECK(tr_world_uses_nccl(w) || tr_now_s() - start >= delay);
        tr_world_set_delay(w, NULL, NULL);
    }
    CHECK_OK(tr_world_barrier(w));
    if (rank == 1) {
        CHECK_OK(tr_channel_take(c, k->stream, data.device, BIG));
        CHECK_OK(tr_channel_take(c, k->stream, data.device, BIG));
        CHECK_OK(tr_world_sync(w, k->stream));
    }
    tr_channel_close(c);
    CHECK_OK(tr_world_barrier(w));
    tr_world_set_hook(w, NULL);
    both_free(k, &data);
    return true;
}

bool checks_open(tr_world *world, const char *device, uint32_t seed, checks *k) {
    *k = (checks){.world = world, .seed = seed};
    const tr_device_options options = {.threads = 1, .ranks = tr_world_size(world)};
    CHECK_OK(tr_device_open(device, &options, &k->device));
    k->stream = tr_device_compute(k->device);
    return true;
}

/* The ranks are on one machine, so those that opened a device with the same name share its
 * memory. */
static bool check_sharers(const checks *k) {
    int size = tr_world_size(k->world), same = 0;
    char(*names)[sizeof k->device->name] = calloc((size_t)size, sizeof *names);
    CHECK(names);
    CHECK_OK(tr_world_gather_all(k->world, k->device->name, names, sizeof *names));
    for (int r = 0; r < size; r++) {
        bool mine = strcmp(names[r], k->device->name) == 0;
        same += mine;
        CHECK(tr_world_shares(k->world, r) == mine);
    }
    free(names);
    CHECK(tr_world_sharers(k->world) == same);
    return true;
}

bool comm_checks_on(tr_world *world, const char *device, bool nccl, uint32_t seed) {
    checks k;
    char note[256];
    CHECK(checks_open(world, device, seed, &k));
    CHECK_OK(tr_world_choose_data_plane(world, k.device, nccl ? TR_PLANE_NCCL : TR_PLANE_MPI, note,
                                        sizeof note));
    tr_world_set_own_sums(world, (tr_own_sums){.ordered = true, .bf16 = true});
    CHECK(!note[0] && tr_world_uses_nccl(world) == (nccl && tr_world_size(world) > 1));
    CHECK(tr_world_receive_units(world) == (tr_world_uses_nccl(world) ? 2 : 0));
    CHECK(tr_world_receive_units(world) ==
          tr_world_expected_units(k.device, nccl ? TR_PLANE_NCCL : TR_PLANE_MPI,
                                  tr_world_size(world)));
    CHECK(check_sharers(&k));
    bool good = check_control(&k) && check_groups(&k) && check_tickets(&k, false, false) &&
                check_tickets(&k, true, false) &&
                (!tr_device_on_host(k.device) || check_tickets(&k, true, true)) &&
                check_channels(&k, false, false) && check_channels(&k, true, false) &&
                (!tr_device_on_host(k.device) || check_channels(&k, true, true)) &&
                check_two_deep(&k);
    tr_device_close(k.device);
    return good;
}

bool comm_checks_last(tr_world *world, const char *device, uint32_t seed) {
    checks k;
    bool good = checks_open(world, device, seed, &k) && check_wrong_size(&k);
    tr_device_close(k.device);
    return good;
}
