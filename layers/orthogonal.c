#include "layers/orthogonal.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Vectors are made orthogonal by panels, so that memory gives the vectors before a panel once for
 * all of its vectors. What is used again, blocks of TALL rows and WIDE columns, fits in a cache. */
enum { LANES = 8, PANEL = 32, TALL = 64, WIDE = 32 };

typedef struct work {
    double *vectors; /* [count][n] */
    double *turned;  /* [n][PANEL]: a panel's vectors; 0 beyond its last one */
    double *along;   /* [count][PANEL] */
    int64_t count, n;
    int threads;
} work;

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

/* Draws the panel's `width` vectors, from vector k on. */
static void draw(const work *w, int64_t k, int64_t width, uint64_t seed, uint64_t name) {
#pragma omp parallel for schedule(static) num_threads(w->threads) if (width * w->n > 1 << 14)
    for (int64_t i = k; i < k + width; i++)
        for (int64_t j = 0; j < w->n; j++)
            w->vectors[i * w->n + j] = (double)tr_normal(seed, name, (uint64_t)(i * w->n + j));
}

static void turn(const work *w, int64_t k, int64_t width) {
    memset(w->turned, 0, (size_t)(w->n * PANEL) * sizeof *w->turned);
    for (int64_t j = 0; j < w->n; j++)
        for (int64_t p = 0; p < width; p++)
            w->turned[j * PANEL + p] = w->vectors[(k + p) * w->n + j];
}

/* Sets `along` to the products of the k vectors before the panel with those of the panel. */
static void multiply(const work *w, int64_t k) {
    const int64_t n = w->n;
#pragma omp parallel for schedule(static) num_threads(w->threads) if (k * n > 1 << 14)
    for (int64_t first = 0; first < k; first += TALL) {
        const int64_t last = tr_min_i64(k, first + TALL);
        memset(w->along + first * PANEL, 0, (size_t)((last - first) * PANEL) * sizeof *w->along);
        for (int64_t at = 0; at < n; at += TALL) {
            const int64_t end = tr_min_i64(n, at + TALL);
            for (int64_t i = first; i < last; i++) {
                double sum[PANEL];
                memcpy(sum, w->along + i * PANEL, sizeof sum);
                for (int64_t j = at; j < end; j++)
                    for (int p = 0; p < PANEL; p++)
                        sum[p] += w->vectors[i * n + j] * w->turned[j * PANEL + p];
                memcpy(w->along + i * PANEL, sum, sizeof sum);
            }
        }
    }
}

/* Subtracts `along` times vectors first..last-1, of which `block` has columns at..at+WIDE-1, from
 * the panel's. */
static void subtract_block(const work *w, int64_t k, int64_t width, int64_t first, int64_t last,
                           int64_t at, double (*block)[WIDE]) {
    const size_t bytes = (size_t)tr_min_i64(WIDE, w->n - at) * sizeof(double);
    for (int64_t i = first; i < last; i++)
        memcpy(block[i - first], w->vectors + i * w->n + at, bytes);
    for (int64_t p = 0; p < width; p++) {
        double x[WIDE] = {0};
        memcpy(x, w->vectors + (k + p) * w->n + at, bytes);
        for (int64_t i = first; i < last; i++)
            for (int j = 0; j < WIDE; j++) x[j] -= w->along[i * PANEL + p] * block[i - first][j];
        memcpy(w->vectors + (k + p) * w->n + at, x, bytes);
    }
}

/* Subtracts from the panel's vectors their parts along the k vectors before it. */
static void subtract(const work *w, int64_t k, int64_t width) {
#pragma omp parallel for schedule(static) num_threads(w->threads) if (k * w->n > 1 << 14)
    for (int64_t at = 0; at < w->n; at += WIDE) {
        double block[TALL][WIDE] = {{0}};
        for (int64_t first = 0; first < k; first += TALL)
            subtract_block(w, k, width, first, tr_min_i64(k, first + TALL), at, block);
    }
}

/* Makes vector p of the panel orthogonal to those before it in the panel, and its length 1. */
static void finish_vector(const work *w, int64_t k, int64_t p) {
    const int64_t n = w->n;
    double *panel = w->vectors + k * n, *v = panel + p * n;
    for (int twice = 0; twice < 2; twice++) {
        for (int64_t i = 0; i < p; i++) w->along[i] = dot(panel + i * n, v, n);
        for (int64_t i = 0; i < p; i++)
            for (int64_t j = 0; j < n; j++) v[j] -= w->along[i] * panel[i * n + j];
    }
    const double length = sqrt(dot(v, v, n));
    for (int64_t j = 0; j < n; j++) v[j] /= length;
}

static void make_vectors(const work *w, uint64_t seed, uint64_t name) {
    for (int64_t k = 0; k < w->count; k += PANEL) {
        const int64_t width = tr_min_i64(PANEL, w->count - k);
        draw(w, k, width, seed, name);
        /* Twice, because the first time leaves what rounding lost. */
        for (int twice = 0; twice < 2 && k > 0; twice++) {
            turn(w, k, width);
            multiply(w, k);
            subtract(w, k, width);
        }
        for (int64_t p = 0; p < width; p++) finish_vector(w, k, p);
    }
}

tr_status tr_orthogonal(uint64_t seed, uint64_t name, int64_t rows, int64_t columns, int threads,
                        float *out) {
    const int64_t count = tr_min_i64(rows, columns), n = tr_max_i64(rows, columns);
    work w = {.count = count, .n = n, .threads = threads};
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)(count * n), sizeof *w.vectors, &w.vectors));
    TR_TRY_OUT(tr_calloc((size_t)(n * PANEL), sizeof *w.turned, &w.turned));
    TR_TRY_OUT(tr_calloc((size_t)(count * PANEL), sizeof *w.along, &w.along));
    make_vectors(&w, seed, name);
    for (int64_t k = 0; k < count; k++)
        for (int64_t j = 0; j < n; j++)
            out[rows <= columns ? k * n + j : j * columns + k] = (float)w.vectors[k * n + j];
out:
    free(w.vectors);
    free(w.turned);
    free(w.along);
    return status;
}
