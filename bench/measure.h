/* Shared by the benchmarks of operators: medians of times, and normal random data in device memory,
 * because a GPU draws less power and runs faster on equal numbers. */
#pragma once

#include "base/clock.h"
#include "base/philox.h"
#include "device/op.h"

#include <math.h>
#include <stdlib.h>

/* Bytes of random data; larger tensors repeat them. */
enum { BENCH_PATTERN = 1 << 24 };

static inline int bench_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of x[n], which it sorts. */
static inline double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, bench_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* A run of a prepared operator. */
typedef struct bench_run {
    tr_op *op;
    tr_stream *stream;
    tr_op_args args;
} bench_run;

/* Runs it: a call for bench_time, with a bench_run as context. */
static inline tr_status bench_run_op(void *context) {
    const bench_run *r = context;
    return tr_op_run(r->op, r->stream, &r->args);
}

/* Measures the seconds of one of n calls, which are enqueued together. */
static inline tr_status bench_time_calls(tr_device *device, tr_status (*call)(void *),
                                         void *context, int n, double *out) {
    double start = tr_now_s();
    for (int i = 0; i < n; i++) TR_TRY(call(context));
    TR_TRY(tr_stream_sync(tr_device_compute(device)));
    *out = (tr_now_s() - start) / n;
    return TR_OK;
}

/* Measures the median seconds of one call(context), which enqueues work on the compute stream.
 * Takes at least 5 measurements and about `seconds`. On the host each call is measured, since its
 * work is done when it returns; on other devices a measurement is of as many calls as take a tenth
 * of `seconds`. */
static inline tr_status bench_time(tr_device *device, tr_status (*call)(void *), void *context,
                                   double seconds, double *out) {
    enum { LEAST = 5, MOST = 1000 };
    double took[MOST], begin;
    int n = 1, count = 0;
    if (!tr_device_on_host(device)) {
        double one = 0;
        TR_TRY(bench_time_calls(device, call, context, 3, &one));
        TR_TRY(bench_time_calls(device, call, context, 3, &one));
        n = one < seconds / 10 ? (int)fmin(seconds / 10 / one + 1, MOST) : 1;
    }
    for (begin = tr_now_s(); count < LEAST || (count < MOST && tr_now_s() - begin < seconds);
         count++)
        TR_TRY(bench_time_calls(device, call, context, n, &took[count]));
    *out = bench_median(took, count);
    return TR_OK;
}

/* Fills BENCH_PATTERN bytes with numbers of mean 0 and standard deviation 1. A pair of BF16 numbers
 * that is read as one FP32 number is such a number too. */
static inline void bench_draw(void *memory, tr_dtype dtype) {
    for (int64_t i = 0; i < BENCH_PATTERN / (int64_t)tr_dtype_size(dtype); i += 2) {
        float pair[2];
        tr_normal_pair(1, 1, (uint64_t)i / 2, pair);
        for (int k = 0; k < 2; k++)
            if (dtype == TR_BF16) ((uint16_t *)memory)[i + k] = tr_f32_to_bf16(pair[k]);
            else ((float *)memory)[i + k] = pair[k];
    }
}

/* Fills a tensor with the pattern, in host memory. */
static inline tr_status bench_fill(tr_device *device, void *tensor, int64_t bytes,
                                   const void *pattern) {
    tr_stream *stream = tr_device_compute(device);
    for (int64_t at = 0; at < bytes; at += BENCH_PATTERN) {
        int64_t n = bytes - at < BENCH_PATTERN ? bytes - at : BENCH_PATTERN;
        TR_TRY(tr_stream_copy(stream, (char *)tensor + at, pattern, (size_t)n));
    }
    return tr_stream_sync(stream);
}
