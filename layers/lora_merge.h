/* Merging low-rank updates into weights. */
#pragma once

#include <stdint.h>

/* factor * left[rows][rank] right[rank][columns], the update of a weight as it is stored. For a
 * weight [out, in], left is B and right is A; for one [in, out], they are A' and B'. */
typedef struct tr_low_rank {
    const float *left, *right;
    int64_t rank, columns;
    double factor;
} tr_low_rank;

/* Adds elements [first, first + count) of the update, in row-major order, to values[count]. Sums in
 * FP64, the terms in ascending order, the value last, and rounds once to FP32. */
void tr_low_rank_add(const tr_low_rank *update, int64_t first, int64_t count, float *values);
