#include "device/cpu/columns.h"


enum { CHUNK = 128 }; /* rows */

size_t tr_columns_scratch(int64_t rows, int64_t width, int sums) {
    size_t chunks = (size_t)((rows + CHUNK - 1) / CHUNK);
    return chunks * (size_t)width * (size_t)sums * sizeof(float);
}

void tr_columns_reduce(const tr_cpu_run *run, tr_columns_fn add, int64_t rows, int64_t width,
                       int sums, float *const *out) {
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    int64_t blocks = (width + TR_COLUMNS - 1) / TR_COLUMNS;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(run->op);
    float *partial = run->args->scratch; /* [chunks, sums, width] */
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(run->op, rows *width))
    for (int64_t task = 0; task < chunks * blocks; task++) {
        int64_t chunk = task / blocks, column = task % blocks * TR_COLUMNS;
        int64_t n = tr_min_i64(TR_COLUMNS, width - column), first = chunk * CHUNK;
        float sum[TR_COLUMNS_SUMS * TR_COLUMNS] = {0};
        add(run, first, tr_min_i64(CHUNK, rows - first), column, n, sum);
        for (int s = 0; s < sums; s++)
            memcpy(partial + (chunk * sums + s) * width + column, sum + s * TR_COLUMNS,
                   (size_t)n * sizeof(float));
    }
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(run->op, rows *width))
    for (int64_t block = 0; block < blocks; block++) {
        int64_t column = block * TR_COLUMNS, n = tr_min_i64(TR_COLUMNS, width - column);
        for (int s = 0; s < sums; s++) {
            float total[TR_COLUMNS] = {0};
            for (int64_t chunk = 0; chunk < chunks; chunk++)
                kernels->row_add(TR_F32, partial, (chunk * sums + s) * width + column, n, total);
            float *to = out[s] + column;
            if (run->args->adds) kernels->row_add(TR_F32, total, 0, n, to);
            else memcpy(to, total, (size_t)n * sizeof *to);
        }
    }
}
