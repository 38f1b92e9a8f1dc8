/* The kernels `softmax` and `softmax_dgrad` of kernels.h. Uses the vectors of kernels_body.h, which
 * includes it. */

/* Adds the panel at x, or its products with those at y, to the lanes of tr_vec_sum. */
static inline __attribute__((always_inline)) void add_panel(const float *x, const float *y,
                                                            strip *sum) {
#pragma GCC unroll 2
    for (int s = 0; s < STRIPS; s++) {
        const strip a = *(const strip_any *)(x + s * STRIP);
        sum[s] = y ? multiply_add(a, *(const strip_any *)(y + s * STRIP), sum[s]) : sum[s] + a;
    }
}

static inline float sum_of_lanes(const strip *sum) {
    float lane[TR_PANEL];
    memcpy(lane, sum, sizeof lane);
    return tr_vec_sum(lane, TR_PANEL);
}

static float softmax(int64_t panels, float scale, float *x, float *top) {
    const float shift = tr_vec_max(x, panels * TR_PANEL) * scale;
    strip sum[STRIPS] = {0};
    for (int64_t i = 0; i < panels * TR_PANEL; i += TR_PANEL) {
#pragma omp simd
        for (int64_t j = i; j < i + TR_PANEL; j++) x[j] = tr_expf(x[j] * scale - shift);
        add_panel(x + i, NULL, sum);
    }
    *top = shift;
    return sum_of_lanes(sum);
}

static void softmax_dgrad(int64_t panels, float near, const float *p, float *dp) {
    strip products[STRIPS] = {0}, sum[STRIPS] = {0};
    for (int64_t i = 0; i < panels * TR_PANEL; i += TR_PANEL) {
#pragma omp simd
        for (int64_t j = i; j < i + TR_PANEL; j++) dp[j] -= near;
        add_panel(p + i, dp + i, products);
        add_panel(p + i, NULL, sum);
    }
    const float mean = sum_of_lanes(products) / sum_of_lanes(sum);
#pragma omp simd
    for (int64_t i = 0; i < panels * TR_PANEL; i++) dp[i] = p[i] * (dp[i] - mean);
}
