/* Checks of a world, the same for every transport: collectives bit for bit against sums in rank
 * order, channels, the control plane. Every rank calls comm_checks() with its world; a failed check
 * prints a line and returns false. For test_comm_local.c and mpi/comm.c. */
#pragma once

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    tr_error_message());                                                           \
            return false;                                                                          \
        }                                                                                          \
    } while (0)
#define CHECK_OK(expression) CHECK((expression) == TR_OK)

typedef struct checks {
    tr_world *world;
    tr_device *device;
    tr_stream *stream;
    uint32_t seed;
} checks;

/* Number of a position that every rank can compute for every rank. */
static inline uint32_t hash_of(uint32_t seed, int rank, int64_t i) {
    uint32_t x = seed ^ (uint32_t)rank * 0x9E3779B9u ^ (uint32_t)i * 0x85EBCA6Bu;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* Crafted values are small integers, whose sums are exact in every dtype; random ones span six
 * orders of magnitude, so that their sums depend on the order. */
static inline double value_of(bool crafted, uint32_t seed, int rank, int64_t i) {
    if (crafted) return (double)((rank + 1) * (int)(i % 7 + 1));
    uint32_t h = hash_of(seed, rank, i);
    static const double scale[] = {1e-3, 1e-2, 0.1, 1, 10, 100, 1e3, 0.3};
    return ((double)(h >> 3) / (1 << 28) - 1) * scale[h & 7];
}

static inline void store(void *to, tr_dtype dtype, int64_t i, double x) {
    if (dtype == TR_F32) ((float *)to)[i] = (float)x;
    else if (dtype == TR_F64) ((double *)to)[i] = x;
    else ((uint16_t *)to)[i] = tr_f32_to_bf16((float)x);
}

static inline double load(const void *from, tr_dtype dtype, int64_t i) {
    if (dtype == TR_F32) return (double)((const float *)from)[i];
    if (dtype == TR_F64) return ((const double *)from)[i];
    return (double)tr_bf16_to_f32(((const uint16_t *)from)[i]);
}

static inline void fill(void *to, tr_dtype dtype, int64_t count, bool crafted, uint32_t seed,
                        int rank, int64_t offset) {
    for (int64_t i = 0; i < count; i++)
        store(to, dtype, i, value_of(crafted, seed, rank, offset + i));
}

/* Element i of the reduction over `n` ranks, with the promised arithmetic, into to[at]. */
static inline void expect(void *to, tr_dtype dtype, int64_t at, tr_reduce op, bool crafted,
                          uint32_t seed, const int *ranks, int n, int64_t i) {
    double one = 0, sum = 0;
    for (int r = 0; r < n; r++) {
        store(&one, dtype, 0, value_of(crafted, seed, ranks[r], i));
        double x = load(&one, dtype, 0);
        if (r == 0) sum = x;
        else if (op == TR_REDUCE_MAX) sum = x > sum ? x : sum;
        else if (dtype == TR_F64) sum += x;
        else sum = (double)(float)((float)sum + (float)x);
    }
    store(to, dtype, at, sum);
}

static inline size_t wrong(const void *a, const void *b, size_t element, int64_t count) {
    size_t bad = 0;
    for (int64_t i = 0; i < count; i++)
        bad += memcmp((const char *)a + (size_t)i * element, (const char *)b + (size_t)i * element,
                      element) != 0;
    return bad;
}

/* One all-reduce, reduce-scatter and all-gather of `count` elements, `shift` elements into the
 * buffer. Every element's place in the random sequence depends on the element alone, so equal
 * places must give equal bits whatever the count and shift: `expect` knows neither. */
static inline bool check_collectives(const checks *k, tr_group *g, tr_stream *stream,
                                     const int *ranks, int64_t count, int64_t shift, tr_dtype dtype,
                                     tr_reduce op, bool crafted) {
    int n = tr_group_size(g), me = tr_group_rank(g);
    size_t e = tr_dtype_size(dtype), all = (size_t)(count * n + shift) * e + 8;
    char *in = malloc(all), *out = malloc(all), *want = malloc(all);
    CHECK(in && out && want);
    char *from = in + (size_t)shift * e, *to = out + (size_t)shift * e;
    int self = ranks[me];

    fill(to, dtype, count, crafted, k->seed, self, 0);
    CHECK_OK(tr_group_all_reduce(g, stream, to, count, dtype, op));
    CHECK_OK(tr_stream_sync(stream));
    for (int64_t i = 0; i < count; i++) expect(want, dtype, i, op, crafted, k->seed, ranks, n, i);
    CHECK(wrong(to, want, e, count) == 0);

    for (int64_t i = 0; i < count; i++)
        expect(want, dtype, i, op, crafted, k->seed, ranks, n, me * count + i);
    fill(from, dtype, count * n, crafted, k->seed, self, 0);
    CHECK_OK(tr_group_reduce_scatter(g, stream, from, to, count, dtype, op));
    CHECK_OK(tr_stream_sync(stream));
    CHECK(wrong(to, want, e, count) == 0);
    CHECK_OK(tr_group_reduce_scatter(g, stream, from, from, count, dtype, op)); /* in place */
    CHECK_OK(tr_stream_sync(stream));
    CHECK(wrong(from, want, e, count) == 0);

    for (int r = 0; r < n; r++)
        fill(want + (size_t)(r * count) * e, dtype, count, crafted, k->seed, ranks[r], 0);
    fill(from, dtype, count, crafted, k->seed, self, 0);
    CHECK_OK(tr_group_all_gather(g, stream, from, to, count, dtype));
    CHECK_OK(tr_stream_sync(stream));
    CHECK(wrong(to, want, e, count * n) == 0);
    CHECK_OK(tr_group_all_gather(g, stream, from, from, count, dtype)); /* in place */
    CHECK_OK(tr_stream_sync(stream));
    CHECK(wrong(from, want, e, count * n) == 0);

    int root = (int)(count % n);
    fill(to, dtype, count, crafted, k->seed, self, 0);
    CHECK_OK(tr_group_broadcast(g, stream, root, to, (size_t)count * e));
    CHECK_OK(tr_stream_sync(stream));
    CHECK(wrong(to, want + (size_t)(root * count) * e, e, count) == 0);
    free(in);
    free(out);
    free(want);
    return true;
}

static inline bool check_group(const checks *k, tr_stream *stream, const int *ranks, int n, int id,
                               size_t max_bytes) {
    static const int64_t counts[] = {1, 3, 127, 1025, 4501};
    static const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F64};
    tr_group *g;
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, max_bytes, &g));
    CHECK(tr_group_size(g) == n && ranks[tr_group_rank(g)] == tr_world_rank(k->world));
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int d = 0; d < 3; d++)
            for (int op = 0; op < 2; op++)
                for (int crafted = 0; crafted < (op == TR_REDUCE_SUM ? 2 : 1); crafted++)
                    if (!check_collectives(k, g, stream, ranks, counts[c], (int64_t)c % 3,
                                           dtypes[d], (tr_reduce)op, crafted))
                        return false;
    CHECK(tr_group_all_reduce(g, stream, NULL, 3, TR_I32, TR_REDUCE_SUM) == TR_ERR_INTERNAL);
    tr_group_close(g);
    return true;
}

static inline bool check_groups(const checks *k) {
    int size = tr_world_size(k->world), rank = tr_world_rank(k->world);
    int ranks[64];
    for (int i = 0; i < size; i++) ranks[i] = i;
    if (!check_group(k, k->stream, ranks, size, 0, 1 << 20)) return false; /* whole buffers */
    for (int i = 0; i < size; i++) ranks[i] = size - 1 - i;
    if (!check_group(k, k->stream, ranks, size, 1, 5000)) return false; /* in pieces, reversed */
    /* Two groups at a time, and a stream of its own. */
    int n = 0;
    for (int i = rank % 2; i < size; i += 2) ranks[n++] = i;
    tr_stream *stream;
    CHECK_OK(tr_stream_create(k->device, &stream));
    bool good = check_group(k, stream, ranks, n, 7 + rank % 2, 5000);
    tr_stream_destroy(stream);
    return good;
}

static inline bool check_control(const checks *k) {
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
    return true;
}

/* --- channels -------------------------------------------------------------------------------- */

enum { MESSAGES = 12, MESSAGE_BYTES = 20000 };

static inline size_t message_size(int number) {
    return number % 4 == 0 ? 0 : number % 4 == 1 ? 5 : (size_t)MESSAGE_BYTES - (size_t)number;
}

static inline double random_delay(void *context, size_t bytes) {
    uint32_t *state = context;
    (void)bytes;
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 16) / 65536 * 2e-3;
}

static inline void slow_work(void *unused) {
    (void)unused;
    usleep(2000);
}

/* All ranks in a ring send to their neighbour first and receive afterwards, twelve messages deep:
 * with rendezvous that needs sends which wait for nothing and receives posted by the engine. */
static inline bool check_channels(const checks *k, bool delayed, bool own_streams) {
    tr_world *w = k->world;
    int size = tr_world_size(w), rank = tr_world_rank(w);
    if (size == 1) return true;
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    uint32_t state = k->seed + (uint32_t)rank;
    if (delayed) tr_world_set_delay(w, random_delay, &state);
    tr_stream *out = k->stream, *in = k->stream;
    if (own_streams) {
        CHECK_OK(tr_stream_create(k->device, &out));
        CHECK_OK(tr_stream_create(k->device, &in));
    }
    tr_channel *to, *from;
    CHECK_OK(tr_channel_open(w, k->device, next, true, MESSAGE_BYTES, &to));
    CHECK_OK(tr_channel_open(w, k->device, previous, false, MESSAGE_BYTES, &from));
    unsigned char *source = malloc((size_t)MESSAGES * MESSAGE_BYTES);
    unsigned char *staged = malloc((size_t)MESSAGES * MESSAGE_BYTES);
    unsigned char *landed = malloc((size_t)MESSAGES * MESSAGE_BYTES);
    CHECK(source && landed && staged);
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < MESSAGE_BYTES; i++)
            source[m * MESSAGE_BYTES + i] = (unsigned char)hash_of((uint32_t)m, rank, i);
    int64_t ticket[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        unsigned char *message = staged + (size_t)m * MESSAGE_BYTES;
        /* The stream makes the data: a send that does not wait for it sends rubbish. */
        if (own_streams && m < 3) CHECK_OK(tr_stream_call(out, slow_work, NULL));
        CHECK_OK(tr_stream_copy(out, message, source + (size_t)m * MESSAGE_BYTES, MESSAGE_BYTES));
        CHECK_OK(tr_channel_send(to, out, message, message_size(m), &ticket[m]));
    }
    for (int m = 0; m < MESSAGES; m++)
        CHECK_OK(tr_channel_take(from, in, landed + (size_t)m * MESSAGE_BYTES, message_size(m)));
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(tr_channel_wait_sent(to, out, ticket[m]));
        CHECK_OK(tr_stream_zero(out, staged + (size_t)m * MESSAGE_BYTES, MESSAGE_BYTES));
    }
    CHECK_OK(tr_stream_sync(in));
    CHECK_OK(tr_stream_sync(out));
    for (int m = 0; m < MESSAGES; m++)
        for (size_t i = 0; i < message_size(m); i++)
            CHECK(landed[(size_t)m * MESSAGE_BYTES + i] ==
                  (unsigned char)hash_of((uint32_t)m, previous, (int64_t)i));
    CHECK_OK(tr_world_barrier(w));
    CHECK(tr_channel_send(to, k->stream, source, MESSAGE_BYTES + 1, ticket) == TR_ERR_INTERNAL);
    /* A receive is posted for a message that never comes: close withdraws it. */
    tr_channel_close(to);
    tr_channel_close(from);
    CHECK_OK(tr_world_barrier(w)); /* the pair may open a channel again */
    if (own_streams) {
        tr_stream_destroy(out);
        tr_stream_destroy(in);
    }
    tr_world_set_delay(w, NULL, NULL);
    free(source);
    free(staged);
    free(landed);
    return true;
}

static inline bool check_wrong_size(const checks *k) {
    tr_world *w = k->world;
    int rank = tr_world_rank(w);
    if (tr_world_size(w) < 2) return true;
    char data[8] = {0};
    int64_t ticket;
    tr_channel *c;
    if (rank < 2) {
        CHECK_OK(tr_channel_open(w, k->device, 1 - rank, rank == 0, 8, &c));
        if (rank == 0) CHECK_OK(tr_channel_send(c, k->stream, data, 8, &ticket));
        else CHECK(tr_channel_take(c, k->stream, data, 7) == TR_ERR_INTERNAL);
        tr_channel_close(c);
    }
    CHECK_OK(tr_world_barrier(w));
    return true;
}

static inline double check_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double fixed_delay(void *context, size_t bytes) {
    (void)bytes;
    return *(const double *)context;
}

/* Rank 0 sends two rendezvous messages; rank 1 takes none before both are complete on rank 0: so
 * the receive of the second was posted before the first was taken. Otherwise the deadline ends it.
 */
static inline bool check_two_deep(const checks *k) {
    enum { BIG = 1 << 20 }; /* above any eager limit: a send without its receive stays open */
    tr_world *w = k->world;
    int rank = tr_world_rank(w);
    double delay = 20e-3;
    if (tr_world_size(w) < 2) return true;
    unsigned char *data = calloc(1, BIG);
    tr_channel *c = NULL;
    int64_t ticket;
    CHECK(data);
    tr_world_set_hook(w, &(tr_wait_hook){.deadline_s = 20});
    if (rank < 2) CHECK_OK(tr_channel_open(w, k->device, 1 - rank, rank == 0, BIG, &c));
    if (rank == 0) {
        double start = check_now();
        tr_world_set_delay(w, fixed_delay, &delay);
        CHECK_OK(tr_channel_send(c, k->stream, data, BIG, &ticket));
        CHECK_OK(tr_channel_send(c, k->stream, data, BIG, &ticket));
        CHECK_OK(tr_channel_wait_sent(c, k->stream, ticket));
        CHECK(check_now() - start >= delay);
        tr_world_set_delay(w, NULL, NULL);
    }
    CHECK_OK(tr_world_barrier(w));
    if (rank == 1) {
        CHECK_OK(tr_channel_take(c, k->stream, data, BIG));
        CHECK_OK(tr_channel_take(c, k->stream, data, BIG));
    }
    tr_channel_close(c);
    CHECK_OK(tr_world_barrier(w));
    tr_world_set_hook(w, NULL);
    free(data);
    return true;
}

static inline bool comm_checks(tr_world *world, uint32_t seed) {
    checks k = {.world = world, .seed = seed};
    CHECK_OK(tr_device_open("ref", &(tr_device_options){.threads = 1}, &k.device));
    k.stream = tr_device_compute(k.device);
    bool good = check_control(&k) && check_groups(&k) && check_channels(&k, false, false) &&
                check_channels(&k, true, false) && check_channels(&k, true, true) &&
                check_two_deep(&k) && check_wrong_size(&k);
    tr_device_close(k.device);
    return good;
}
