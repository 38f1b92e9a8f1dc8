#include "layers/lora_merge.h"

#include "base/minmax.h"

enum { BLOCK = 512 };

/* Adds n elements of one row, from a column on. */
static void add_run(const tr_low_rank *u, int64_t row, int64_t column, int64_t n, float *values) {
    double sum[BLOCK] = {0};
    for (int64_t k = 0; k < u->rank; k++) {
        const double left = (double)u->left[row * u->rank + k];
        const float *right = u->right + k * u->columns + column;
        for (int64_t i = 0; i < n; i++) sum[i] += left * (double)right[i];
    }
    for (int64_t i = 0; i < n; i++) values[i] = (float)((double)values[i] + u->factor * sum[i]);
}

void tr_low_rank_add(const tr_low_rank *u, int64_t first, int64_t count, float *values) {
    for (int64_t done = 0, n; done < count; done += n) {
        const int64_t row = (first + done) / u->columns, column = (first + done) % u->columns;
        n = tr_min_i64(tr_min_i64(BLOCK, count - done), u->columns - column);
        add_run(u, row, column, n, values + done);
    }
}
