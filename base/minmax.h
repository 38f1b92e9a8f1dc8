/* The smaller and the larger of numbers, for each type that the code compares. */
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

/* Returns the index of the smallest of `count` numbers, the first one among equals. */
static inline int tr_argmin_i64(const int64_t *number, int count) {
    int least = 0;
    for (int i = 1; i < count; i++)
        if (number[i] < number[least]) least = i;
    return least;
}
