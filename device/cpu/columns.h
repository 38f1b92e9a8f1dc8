/* Sums over the rows of a matrix, one number for each column, in an order that does not depend on
 * the number of threads: chunks of rows are summed separately, then added in ascending order.
 * Private to device/cpu/. */
#pragma once

#include "device/cpu/cpu_impl.h"

enum { TR_COLUMNS = 256, TR_COLUMNS_SUMS = 2 };

typedef struct tr_cpu_run {
    const tr_op *op;
    const tr_op_args *args;
} tr_cpu_run;

/* Adds rows first_row .. first_row + rows - 1 of columns column .. column + n - 1 (n <= TR_COLUMNS)
 * to sums[n]; a second sum, if any, is TR_COLUMNS further. */
typedef void (*tr_columns_fn)(const tr_cpu_run *run, int64_t first_row, int64_t rows,
                              int64_t column, int64_t n, float *sums);

/* Returns the bytes of scratch that tr_columns_reduce uses. */
size_t tr_columns_scratch(int64_t rows, int64_t width, int sums);

/* out[s][width] (+)= sums over all rows, s < sums <= TR_COLUMNS_SUMS. Uses the run's scratch. */
void tr_columns_reduce(const tr_cpu_run *run, tr_columns_fn add, int64_t rows, int64_t width,
                       int sums, float *const *out);
