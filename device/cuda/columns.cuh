/* Sums over the rows of a matrix, one number a column, in an order that depends on the shape alone:
 * chunks of rows are summed by one block each, the chunks' sums by a second kernel. Private to the
 * kernels. */
#pragma once

#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"

/* F::add(row, column, total) adds elements column .. column + N of a row to total[sums][N]. Warp w
 * of a block takes rows w, w + TR_WARPS, ... of the chunk, a lane N columns; then the warps' totals
 * are added in ascending order. partial[chunks][SUMS][width]. */
template <int N, int SUMS, typename F>
__global__ void tr_columns_partial(int64_t rows, int64_t width, F matrix, float *partial) {
    constexpr int tile = TR_WARP * N;
    __shared__ float part[TR_WARPS][SUMS][N][TR_WARP];
    const int64_t tiles = (width + tile - 1) / tile, chunk_rows = tr_cuda_chunk_rows(rows);
    const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    for (int64_t task = blockIdx.x; task < chunks * tiles; task += gridDim.x) {
        const int64_t chunk = task / tiles, left = task % tiles * tile;
        const int64_t column = left + tr_lane() * N;
        const int64_t end = rows < (chunk + 1) * chunk_rows ? rows : (chunk + 1) * chunk_rows;
        float total[SUMS][N] = {};
        if (column < width)
#pragma unroll 4
            for (int64_t r = chunk * chunk_rows + tr_warp(); r < end; r += TR_WARPS)
                matrix.add(r, column, total);
#pragma unroll
        for (int s = 0; s < SUMS; s++)
#pragma unroll
            for (int i = 0; i < N; i++) part[tr_warp()][s][i][tr_lane()] = total[s][i];
        __syncthreads();
        for (int k = (int)threadIdx.x; k < SUMS * tile; k += TR_THREADS) {
            const int s = k / tile, at = k % tile;
            float sum = part[0][s][at % N][at / N];
            for (int w = 1; w < TR_WARPS; w++) sum += part[w][s][at % N][at / N];
            if (left + at < width) partial[(chunk * SUMS + s) * width + left + at] = sum;
        }
        __syncthreads(); /* all threads have read, so the next task may write */
    }
}

template <int SUMS> struct tr_columns_out { float *sum[SUMS]; };

/* out[s][column] (+)= the chunks' sums: warp w adds chunks w, w + TR_WARPS, ... of 32 columns, then
 * the warps are added in ascending order. A block does 32 columns of one sum. */
template <int SUMS>
__global__ void tr_columns_finish(int64_t chunks, int64_t width, const float *partial,
                                  tr_columns_out<SUMS> out, bool adds) {
    __shared__ float part[TR_WARPS][TR_WARP];
    const int64_t tiles = (width + TR_WARP - 1) / TR_WARP;
    for (int64_t task = blockIdx.x; task < SUMS * tiles; task += gridDim.x) {
        const int64_t s = task / tiles, column = task % tiles * TR_WARP + tr_lane();
        float sum = 0;
        if (column < width) {
#pragma unroll 8
            for (int64_t c = tr_warp(); c < chunks; c += TR_WARPS)
                sum += partial[(c * SUMS + s) * width + column];
        }
        part[tr_warp()][tr_lane()] = sum;
        __syncthreads();
        if (tr_warp() == 0 && column < width) {
            for (int w = 1; w < TR_WARPS; w++) sum += part[w][tr_lane()];
            float *to = (s == 0 ? out.sum[0] : out.sum[SUMS - 1]) + column;
            *to = adds ? *to + sum : sum;
        }
        __syncthreads();
    }
}

/* out[s][width] (+)= the column sums of `matrix`, s < SUMS <= 2; partial is the scratch of
 * tr_cuda_columns_scratch. */
template <int N, int SUMS, typename F>
cudaError_t tr_launch_columns(cudaStream_t stream, int64_t rows, int64_t width, F matrix,
                              float *partial, float *const (&out)[SUMS], bool adds) {
    static_assert(SUMS <= 2, "tr_columns_finish knows two sums");
    const int64_t chunk_rows = tr_cuda_chunk_rows(rows);
    const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
    const int64_t tiles = (width + TR_WARP * N - 1) / (TR_WARP * N);
    tr_columns_out<SUMS> to;
    for (int s = 0; s < SUMS; s++) to.sum[s] = out[s];
    TR_LAUNCH(tr_launch(stream, tr_grid(chunks * tiles, 1), TR_THREADS,
                            tr_columns_partial<N, SUMS, F>, rows, width, matrix, partial));
    return tr_launch(stream, tr_grid(SUMS * ((width + TR_WARP - 1) / TR_WARP), 1), TR_THREADS,
                     tr_columns_finish<SUMS>, chunks, width, partial, to, adds);
}
