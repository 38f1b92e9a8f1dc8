/* The arithmetic of reductions on the host. */
#include "comm/world_impl.h"

#include <string.h>

/* Elements added at a time, so that accumulators stay in the first-level cache. */
enum { BLOCK = 512 };

static inline float max_f32(float a, float b) {
    return b > a || b != b ? b : a;
}

static inline double max_f64(double a, double b) {
    return b > a || b != b ? b : a;
}

static void reduce_f32(float *to, const void *const *source, int n, int64_t count, tr_reduce op) {
    float sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, (const float *)source[0] + at, (size_t)m * sizeof *sum);
        for (int r = 1; r < n; r++) {
            const float *x = (const float *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += x[i];
            else
                for (int64_t i = 0; i < m; i++) sum[i] = max_f32(sum[i], x[i]);
        }
        memcpy(to + at, sum, (size_t)m * sizeof *sum);
    }
}

static void reduce_f64(double *to, const void *const *source, int n, int64_t count, tr_reduce op) {
    double sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        memcpy(sum, (const double *)source[0] + at, (size_t)m * sizeof *sum);
        for (int r = 1; r < n; r++) {
            const double *x = (const double *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += x[i];
            else
                for (int64_t i = 0; i < m; i++) sum[i] = max_f64(sum[i], x[i]);
        }
        memcpy(to + at, sum, (size_t)m * sizeof *sum);
    }
}

/* Of BF16 or FP16; the sum is rounded once. Inlined with either, so that the loops vectorise. */
static inline __attribute__((always_inline)) void reduce_narrow(uint16_t *to,
                                                                const void *const *source, int n,
                                                                int64_t count, tr_dtype dtype,
                                                                tr_reduce op) {
    float sum[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        const uint16_t *first = (const uint16_t *)source[0] + at;
        for (int64_t i = 0; i < m; i++) sum[i] = tr_narrow_load(dtype, first[i]);
        for (int r = 1; r < n; r++) {
            const uint16_t *x = (const uint16_t *)source[r] + at;
            if (op == TR_REDUCE_SUM)
                for (int64_t i = 0; i < m; i++) sum[i] += tr_narrow_load(dtype, x[i]);
            else
                for (int64_t i = 0; i < m; i++)
                    sum[i] = max_f32(sum[i], tr_narrow_load(dtype, x[i]));
        }
        for (int64_t i = 0; i < m; i++) to[at + i] = tr_narrow_round(dtype, sum[i]);
    }
}

void tr_reduce_pack(void *values, int64_t count) {
    float wide[BLOCK];
    uint16_t narrow[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t m = count - at < BLOCK ? count - at : BLOCK;
        memcpy(wide, (const char *)values + (size_t)at * sizeof *wide, (size_t)m * sizeof *wide);
        for (int64_t i = 0; i < m; i++) narrow[i] = tr_f32_to_bf16(wide[i]);
        memcpy((char *)values + (size_t)at * sizeof *narrow, narrow, (size_t)m * sizeof *narrow);
    }
}

/* The last block first, because a block's FP32 values cover the BF16 values of later blocks. */
void tr_reduce_unpack(void *values, int64_t count) {
    float wide[BLOCK];
    uint16_t narrow[BLOCK];
    for (int64_t end = count; end > 0;) {
        const int64_t at = (end - 1) / BLOCK * BLOCK, m = end - at;
        memcpy(narrow, (const char *)values + (size_t)at * sizeof *narrow,
               (size_t)m * sizeof *narrow);
        for (int64_t i = 0; i < m; i++) wide[i] = tr_bf16_to_f32(narrow[i]);
        memcpy((char *)values + (size_t)at * sizeof *wide, wide, (size_t)m * sizeof *wide);
        end = at;
    }
}

void tr_reduce_sources(void *to, const void *const *source, int n, int64_t count, tr_dtype dtype,
                       tr_reduce op) {
    if (dtype == TR_F32) reduce_f32(to, source, n, count, op);
    else if (dtype == TR_F64) reduce_f64(to, source, n, count, op);
    else if (dtype == TR_BF16) reduce_narrow(to, source, n, count, TR_BF16, op);
    else reduce_narrow(to, source, n, count, TR_F16, op);
}
