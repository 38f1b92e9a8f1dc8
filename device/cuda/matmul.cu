/* The program's own product, for products that cuBLASLt does not have: any types, leading
 * dimensions and transpositions, but slow. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"

namespace {

enum { TILE = 16 };

struct matrix {
    const void *memory;
    int64_t row, column; /* strides of the matrix as multiplied, in elements */
    tr_dtype dtype;
};

__device__ float load(const matrix &x, int64_t row, int64_t column) {
    int64_t at = row * x.row + column * x.column;
    if (x.dtype == TR_F32) return tr_load_one(static_cast<const float *>(x.memory) + at);
    if (x.dtype == TR_F16) return tr_load_one(static_cast<const tr_f16 *>(x.memory) + at);
    return tr_load_one(static_cast<const tr_bf16 *>(x.memory) + at);
}

/* A thread computes one element of C; a block a tile of it, in steps of TILE along k. The sum runs
 * in ascending k with one rounding a term. */
__global__ void matmul(int64_t m, int64_t n, int64_t k, matrix a, matrix b, matrix bias, void *c,
                       int64_t ldc, tr_dtype dtype, float scale, bool has_bias, bool adds) {
    __shared__ float tile_a[TILE][TILE + 1], tile_b[TILE][TILE + 1];
    const int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    const int64_t tiles = (n + TILE - 1) / TILE;
    const int64_t row = (int64_t)blockIdx.x / tiles * TILE + y;
    const int64_t column = (int64_t)blockIdx.x % tiles * TILE + x;
    float sum = 0;
    for (int64_t first = 0; first < k; first += TILE) {
        tile_a[y][x] = row < m && first + x < k ? load(a, row, first + x) : 0;
        tile_b[y][x] = column < n && first + y < k ? load(b, first + y, column) : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum = fmaf(tile_a[y][i], tile_b[i][x], sum);
        __syncthreads(); /* before the tiles are filled again */
    }
    if (row >= m || column >= n) return;
    sum *= scale;
    if (has_bias) sum += load(bias, 0, column);
    int64_t at = row * ldc + column;
    if (adds) sum += load({c, ldc, 1, dtype}, row, column);
    if (dtype == TR_BF16) tr_store_one(static_cast<tr_bf16 *>(c) + at, sum);
    else if (dtype == TR_F16) tr_store_one(static_cast<tr_f16 *>(c) + at, sum);
    else static_cast<float *>(c)[at] = sum;
}

} // namespace

cudaError_t tr_cuda_launch_matmul(cudaStream_t stream, const tr_matmul_desc *d, const tr_tensor *t,
                                  bool adds) {
    int64_t lda = tr_matmul_lda(d), ldb = tr_matmul_ldb(d);
    matrix a = {t[TR_MATMUL_A].data, d->trans_a ? 1 : lda, d->trans_a ? lda : 1, d->a};
    matrix b = {t[TR_MATMUL_B].data, d->trans_b ? 1 : ldb, d->trans_b ? ldb : 1, d->b};
    matrix bias = {t[TR_MATMUL_BIAS].data, 0, 1, d->b};
    int64_t blocks = (d->m + TILE - 1) / TILE * ((d->n + TILE - 1) / TILE);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return tr_launch(stream, (unsigned)blocks, TILE * TILE, matmul, d->m, d->n, d->k, a, b, bias,
                     t[TR_MATMUL_C].data, tr_matmul_ldc(d), d->c,
                     d->scale != 0 ? (float)d->scale : 1.0f, d->fused.bias, d->accumulate && adds);
}
