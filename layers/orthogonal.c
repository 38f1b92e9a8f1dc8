#include "layers/orthogonal.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>

enum { LANES = 8, BLOCK = 512 };

/* Adds in lanes by j % 8, so that the compiler needs no freedom to use vectors. */
static double dot(const double *a, const double *b, int64_t n) {
    double lane[LANES] = {0}, sum = 0;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[j + l] * b[j + l];
    for (; j < n; j++) sum += a[j] * b[j];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* Subtracts from vector k of length n its parts along the k vectors before it. */
static void make_orthogonal(double *vectors, int64_t k, int64_t n, int threads, double *along) {
    double *v = vectors + k * n;
    (void)threads; /* unused in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads) if (k * n > 1 << 16)
    for (int64_t i = 0; i < k; i++) along[i] = dot(vectors + i * n, v, n);
#pragma omp parallel for schedule(static) num_threads(threads) if (k * n > 1 << 16)
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t end = tr_min_i64(n, at + BLOCK);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = at; j < end; j++) v[j] -= along[i] * vectors[i * n + j];
    }
}

tr_status tr_orthogonal(uint64_t seed, uint64_t name, int64_t rows, int64_t columns, int threads,
                        float *out) {
    const int64_t count = tr_min_i64(rows, columns), n = tr_max_i64(rows, columns);
    tr_status status = TR_OK;
    double *vectors = NULL, *along = NULL;
    TR_TRY_OUT(tr_calloc((size_t)(count * n), sizeof *vectors, &vectors));
    TR_TRY_OUT(tr_calloc((size_t)count, sizeof *along, &along));
    for (int64_t k = 0; k < count; k++) {
        double *v = vectors + k * n;
        for (int64_t j = 0; j < n; j++) v[j] = (double)tr_normal(seed, name, (uint64_t)(k * n + j));
        /* Twice, because the first time leaves what rounding lost. */
        make_orthogonal(vectors, k, n, threads, along);
        make_orthogonal(vectors, k, n, threads, along);
        const double length = sqrt(dot(v, v, n));
        for (int64_t j = 0; j < n; j++) {
            v[j] /= length;
            out[rows <= columns ? k * n + j : j * columns + k] = (float)v[j];
        }
    }
out:
    free(vectors);
    free(along);
    return status;
}
