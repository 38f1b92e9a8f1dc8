/* The smaller and the larger of two numbers, for each type that the code compares. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline int tr_min_int(int a, int b) {
    return a < b ? a : b;
}

static inline int64_t tr_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t tr_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline size_t tr_min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t tr_max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Neither number may be NaN. */
static inline double tr_min_f64(double a, double b) {
    return a < b ? a : b;
}

static inline double tr_max_f64(double a, double b) {
    return a > b ? a : b;
}
