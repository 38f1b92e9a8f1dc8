#include "support/comm_values.h"

#include <string.h>
#include <unistd.h>

bool both_new(const checks *k, size_t bytes, both *out) {
    *out = (both){.bytes = bytes};
    CHECK_OK(tr_device_alloc(k->device, TR_MEMORY_DATA, bytes, (void **)&out->device));
    CHECK_OK(tr_device_staging_alloc(k->device, bytes, (void **)&out->host));
    return true;
}

void both_free(const checks *k, both *b) {
    tr_device_free(k->device, b->device);
    tr_device_staging_free(k->device, b->host);
}

bool upload(tr_stream *stream, const both *b) {
    CHECK_OK(tr_stream_copy(stream, b->device, b->host, b->bytes));
    return true;
}

bool download(const checks *k, tr_stream *stream, const both *b) {
    CHECK_OK(tr_stream_copy(stream, b->host, b->device, b->bytes));
    CHECK_OK(tr_world_sync(k->world, stream));
    return true;
}

uint32_t hash_of(uint32_t seed, int rank, int64_t i) {
    uint32_t x = seed ^ (uint32_t)rank * 0x9E3779B9u ^ (uint32_t)i * 0x85EBCA6Bu;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

double value_of(bool crafted, uint32_t seed, int rank, int64_t i) {
    if (crafted) return (double)((rank + 1) * (int)(i % 7 + 1));
    uint32_t h = hash_of(seed, rank, i);
    static const double scale[] = {1e-3, 1e-2, 0.1, 1, 10, 100, 1e3, 0.3};
    return ((double)(h >> 3) / (1 << 28) - 1) * scale[h & 7];
}

void store(void *to, tr_dtype dtype, int64_t i, double x) {
    if (dtype == TR_F32) ((float *)to)[i] = (float)x;
    else if (dtype == TR_F64) ((double *)to)[i] = x;
    else ((uint16_t *)to)[i] = tr_narrow_round(dtype, (float)x);
}

static double load(const void *from, tr_dtype dtype, int64_t i) {
    if (dtype == TR_F32) return (double)((const float *)from)[i];
    if (dtype == TR_F64) return ((const double *)from)[i];
    return (double)tr_narrow_load(dtype, ((const uint16_t *)from)[i]);
}

void fill(void *to, tr_dtype dtype, int64_t count, bool crafted, uint32_t seed, int rank) {
    for (int64_t i = 0; i < count; i++) store(to, dtype, i, value_of(crafted, seed, rank, i));
}

void expect(void *to, tr_dtype dtype, tr_reduce op, bool crafted, uint32_t seed, const int *ranks,
            int n, int64_t i) {
    double one = 0, sum = 0;
    for (int r = 0; r < n; r++) {
        store(&one, dtype, 0, value_of(crafted, seed, ranks[r], i));
        if (op == TR_REDUCE_SUM_BF16) store(&one, TR_BF16, 0, load(&one, dtype, 0));
        double x = load(&one, tr_reduce_wire(op, dtype), 0);
        if (r == 0) sum = x;
        else if (op == TR_REDUCE_MAX) sum = x > sum ? x : sum;
        else if (dtype == TR_F64) sum += x;
        else sum = (double)(float)((float)sum + (float)x);
    }
    if (n > 1 && op == TR_REDUCE_SUM_BF16) {
        store(&one, TR_BF16, 0, sum);
        sum = load(&one, TR_BF16, 0);
    } else if (op == TR_REDUCE_SUM_BF16) sum = value_of(crafted, seed, ranks[0], i);
    store(to, dtype, i, sum);
}

size_t wrong(const void *a, const void *b, size_t element, int64_t count) {
    size_t bad = 0;
    for (int64_t i = 0; i < count; i++)
        bad += memcmp((const char *)a + (size_t)i * element, (const char *)b + (size_t)i * element,
                      element) != 0;
    return bad;
}

void slow_work(void *unused) {
    (void)unused;
    usleep(2000);
}
