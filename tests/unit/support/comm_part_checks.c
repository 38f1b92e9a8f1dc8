#include "support/comm_part_checks.h"

#include <stdlib.h>
#include <string.h>

bool check_gathers(const checks *k, const int *ranks, int n, int id) {
    enum { RANGES = 60, GATHERS = 3, LARGE = 150000 };
    tr_gather_range range[GATHERS][RANGES];
    both data[GATHERS], sum;
    int64_t ticket[GATHERS + 1];
    tr_group *g;
    const int rank = tr_world_rank(k->world);
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, 5000, &g));
    CHECK(both_new(k, 4 * sizeof(float), &sum));
    fill(sum.host, TR_F32, 4, true, k->seed, rank);
    for (int i = 0; i < GATHERS; i++) {
        CHECK(both_new(k, RANGES * 500 + 2 * LARGE, &data[i]));
        size_t at = 0;
        for (int j = 0; j < RANGES; j++) {
            const uint32_t h = hash_of(k->seed + (uint32_t)i, 0, j);
            const size_t bytes = j == 7 || j == 30 ? LARGE : h % 5 == 0 ? 0 : h / 8 % 500;
            /* With i == 2 one member has all. */
            const int owner = i == 2 ? n - 1 : (int)(h / 4096 % (uint32_t)n);
            for (size_t b = 0; b < bytes; b++)
                data[i].host[at + b] = (char)hash_of(k->seed, ranks[owner] == rank, (int64_t)b);
            range[i][j] = (tr_gather_range){data[i].device + at, bytes, owner};
            at += bytes;
        }
        if (i == 1) CHECK_OK(tr_stream_call(k->stream, slow_work, NULL));
        CHECK(upload(k->stream, &data[i]));
        CHECK_OK(tr_group_gather(g, k->stream, range[i], RANGES, &ticket[i]));
        if (i != 0) continue;
        CHECK(upload(k->stream, &sum));
        CHECK_OK(
            tr_group_start(g, k->stream, sum.device, 4, TR_F32, TR_REDUCE_SUM, &ticket[GATHERS]));
    }
    for (int i = GATHERS; i >= 0; i--) CHECK_OK(tr_group_wait(g, k->stream, ticket[i]));
    CHECK(download(k, k->stream, &sum));
    float want[4];
    for (int64_t i = 0; i < 4; i++) expect(want, TR_F32, TR_REDUCE_SUM, true, k->seed, ranks, n, i);
    CHECK(memcmp(want, sum.host, sizeof want) == 0);
    for (int i = 0; i < GATHERS; i++) {
        CHECK(download(k, k->stream, &data[i]));
        for (int j = 0; j < RANGES; j++) {
            const char *got = data[i].host + ((char *)range[i][j].data - data[i].device);
            for (size_t b = 0; b < range[i][j].bytes; b++)
                CHECK(got[b] == (char)hash_of(k->seed, 1, (int64_t)b));
        }
        both_free(k, &data[i]);
    }
    range[0][0].rank = n;
    CHECK(tr_group_gather(g, k->stream, range[0], 1, ticket) == TR_ERR_INTERNAL);
    tr_group_close(g);
    both_free(k, &sum);
    return true;
}

/* Each owner has FP32 elements that BF16 represents, the other members something else. */
bool check_gathers_of_sums(const checks *k, const int *ranks, int n, int id) {
    enum { RANGES = 40, LARGE = 30000 };
    tr_gather_range range[RANGES];
    both data;
    int64_t ticket;
    tr_group *g;
    size_t at = 0;
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, 5000, &g));
    CHECK(both_new(k, (RANGES * 500 + LARGE) * sizeof(float), &data));
    for (int j = 0; j < RANGES; j++) {
        const uint32_t h = hash_of(k->seed, 2, j);
        const size_t count = j == 7 ? LARGE : h % 5 == 0 ? 0 : h / 8 % 500;
        const int owner = (int)(h / 4096 % (uint32_t)n);
        range[j] =
            (tr_gather_range){data.device + at * sizeof(float), count * sizeof(float), owner};
        for (size_t i = 0; i < count; i++)
            ((float *)(void *)data.host)[at + i] =
                ranks[owner] == tr_world_rank(k->world)
                    ? (float)(int8_t)hash_of(k->seed, j, (int64_t)i) / 64
                    : 0.1f;
        at += count;
    }
    CHECK(upload(k->stream, &data));
    CHECK_OK(
        tr_group_gather_sums(g, k->stream, range, RANGES, TR_F32, TR_REDUCE_SUM_BF16, &ticket));
    CHECK_OK(tr_group_wait(g, k->stream, ticket));
    CHECK(download(k, k->stream, &data));
    const float *got = (const float *)(const void *)data.host;
    for (int j = 0; j < RANGES; j++)
        for (size_t i = 0; i < range[j].bytes / sizeof(float); i++)
            CHECK(*got++ == (float)(int8_t)hash_of(k->seed, j, (int64_t)i) / 64);
    CHECK(tr_group_gather_sums(g, k->stream, range, 1, TR_F64, TR_REDUCE_SUM_BF16, &ticket) ==
          TR_ERR_INTERNAL);
    tr_group_close(g);
    both_free(k, &data);
    return true;
}

bool check_parts(const checks *k, const int *ranks, int n, int id, size_t max_bytes) {
    static const int64_t counts[] = {1, 3, 1025, 4501};
    static const tr_dtype dtypes[] = {TR_F32, TR_BF16, TR_F16, TR_F64};
    enum { CASES = 16 };
    both whole[CASES], part[CASES], gathered[CASES];
    int64_t ticket[2 * CASES];
    tr_group *g;
    int place = 0;
    while (ranks[place] != tr_world_rank(k->world)) place++;
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, max_bytes, &g));
    for (int i = 0; i < CASES; i++) {
        const tr_dtype dtype = dtypes[i % 4];
        const int64_t count = counts[i / 4];
        const size_t bytes = (size_t)count * tr_dtype_size(dtype), own = (size_t)place * bytes;
        CHECK(both_new(k, (size_t)n * bytes, &whole[i]) && both_new(k, bytes, &part[i]) &&
              both_new(k, (size_t)n * bytes, &gathered[i]));
        fill(whole[i].host, dtype, n * count, false, k->seed, tr_world_rank(k->world));
        memset(gathered[i].host, 0, (size_t)n * bytes);
        for (size_t b = 0; b < bytes; b++)
            gathered[i].host[own + b] = (char)hash_of(k->seed, place, (int64_t)b);
        if (i % 4 == 0) CHECK_OK(tr_stream_call(k->stream, slow_work, NULL));
        CHECK(upload(k->stream, &whole[i]) && upload(k->stream, &gathered[i]));
        CHECK_OK(tr_group_scatter(g, k->stream, whole[i].device, part[i].device, count, dtype,
                                  &ticket[2 * i]));
        CHECK_OK(tr_group_gather_parts(g, k->stream, gathered[i].device, count, dtype,
                                       &ticket[2 * i + 1]));
    }
    for (int i = 2 * CASES; i-- > 0;) CHECK_OK(tr_group_wait(g, k->stream, ticket[i]));
    for (int i = 0; i < CASES; i++) {
        const tr_dtype dtype = dtypes[i % 4];
        const int64_t count = counts[i / 4];
        const size_t e = tr_dtype_size(dtype), bytes = (size_t)count * e;
        char *want = malloc((size_t)n * bytes);
        CHECK(want && download(k, k->stream, &part[i]) && download(k, k->stream, &gathered[i]));
        for (int64_t j = 0; j < n * count; j++)
            expect(want, dtype, TR_REDUCE_SUM, false, k->seed, ranks, n, j);
        CHECK(wrong(part[i].host, want + (size_t)place * bytes, e, count) == 0);
        for (int r = 0; r < n; r++)
            for (size_t b = 0; b < bytes; b++)
                CHECK(gathered[i].host[(size_t)r * bytes + b] ==
                      (char)hash_of(k->seed, r, (int64_t)b));
        both_free(k, &whole[i]);
        both_free(k, &part[i]);
        both_free(k, &gathered[i]);
        free(want);
    }
    CHECK(tr_group_scatter(g, k->stream, NULL, NULL, 3, TR_I32, ticket) == TR_ERR_INTERNAL);
    tr_group_close(g);
    return true;
}

/* Fails unless the range of data, from element `first` on, has the sum where this member gets
 * it. */
static bool check_scattered(const both *data, const tr_scatter_range *range, int64_t first,
                            tr_dtype dtype, tr_reduce op, uint32_t seed, const int *ranks, int n,
                            int place) {
    if (place < range->rank || place >= range->rank + range->ranks) return true;
    const size_t e = tr_dtype_size(dtype);
    char *want = malloc(data->bytes);
    CHECK(want);
    for (int64_t i = first; i < first + range->count; i++)
        expect(want, dtype, op, false, seed, ranks, n, i);
    CHECK(wrong(want + (size_t)first * e, data->host + (size_t)first * e, e, range->count) == 0);
    free(want);
    return true;
}

bool check_scattered_ranges(const checks *k, const int *ranks, int n, int id) {
    enum { RANGES = 70, SCATTERS = 5, LARGE = 30000 };
    static const tr_dtype dtypes[SCATTERS] = {TR_F32, TR_BF16, TR_F64, TR_F32, TR_F32};
    static const tr_reduce ops[SCATTERS] = {[3] = TR_REDUCE_SUM_BF16, [4] = TR_REDUCE_SUM_BF16};
    tr_scatter_range range[SCATTERS][RANGES];
    const int run[SCATTERS] = {1, n % 2 ? n : 2, n, 1, n % 2 ? n : 2};
    both data[SCATTERS], sum;
    int64_t ticket[SCATTERS + 1];
    tr_group *g;
    int place = 0;
    while (ranks[place] != tr_world_rank(k->world)) place++;
    CHECK_OK(tr_group_open(k->world, k->device, ranks, n, id, 5000, &g));
    CHECK(both_new(k, 4 * sizeof(float), &sum));
    fill(sum.host, TR_F32, 4, true, k->seed, ranks[place]);
    for (int i = 0; i < SCATTERS; i++) {
        const size_t e = tr_dtype_size(dtypes[i]);
        int64_t at = 0;
        CHECK(both_new(k, (RANGES * 500 + 2 * LARGE) * e, &data[i]));
        for (int j = 0; j < RANGES; j++) {
            const uint32_t h = hash_of(k->seed + (uint32_t)i, 1, j);
            const int64_t count = j == 7 || j == 30 ? LARGE : h % 5 == 0 ? 0 : h / 8 % 500;
            const int first = (int)(h / 4096 % (uint32_t)(n / run[i])) * run[i];
            range[i][j] = (tr_scatter_range){data[i].device + (size_t)at * e, count, first, run[i]};
            at += count;
        }
        fill(data[i].host, dtypes[i], at, false, k->seed + (uint32_t)i, ranks[place]);
        if (i == 1) CHECK_OK(tr_stream_call(k->stream, slow_work, NULL));
        CHECK(upload(k->stream, &data[i]));
        CHECK_OK(
            tr_group_scatter_ranges(g, k->stream, range[i], RANGES, dtypes[i], ops[i], &ticket[i]));
        if (i != 0) continue;
        CHECK(upload(k->stream, &sum));
        CHECK_OK(
            tr_group_start(g, k->stream, sum.device, 4, TR_F32, TR_REDUCE_SUM, &ticket[SCATTERS]));
    }
    for (int i = SCATTERS; i >= 0; i--) CHECK_OK(tr_group_wait(g, k->stream, ticket[i]));
    CHECK(download(k, k->stream, &sum));
    float want[4];
    for (int64_t i = 0; i < 4; i++) expect(want, TR_F32, TR_REDUCE_SUM, true, k->seed, ranks, n, i);
    CHECK(memcmp(want, sum.host, sizeof want) == 0);
    for (int i = 0; i < SCATTERS; i++) {
        CHECK(download(k, k->stream, &data[i]));
        int64_t first = 0;
        for (int j = 0; j < RANGES; first += range[i][j++].count)
            if (!check_scattered(&data[i], &range[i][j], first, dtypes[i], ops[i],
                                 k->seed + (uint32_t)i, ranks, n, place))
                return false;
        both_free(k, &data[i]);
    }
    range[0][0] = (tr_scatter_range){.count = 1, .rank = n, .ranks = 1};
    CHECK(tr_group_scatter_ranges(g, k->stream, range[0], 1, TR_F32, TR_REDUCE_SUM, ticket) ==
          TR_ERR_INTERNAL);
    tr_group_close(g);
    both_free(k, &sum);
    return true;
}
