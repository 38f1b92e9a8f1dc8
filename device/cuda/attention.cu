/* The program's own attention: heads up to 256, either storage, FP32 arithmetic, every sum in one
 * order. It is the reference on the device and runs shapes that cuDNN does not support; it does not
 * use tensor cores.
 *
 * A warp owns a row (a query forward and for dQ, a key for dK and dV) and walks over tiles of TILE
 * rows of the other side, which the block's warps share: lane j scores the tile's row j, and lane c
 * sums column c, c + 32, ... of the weighted rows. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

#include <math.h>

namespace {

enum { WARP = TR_WARP, WARPS = 4, THREADS = WARP * WARPS, TILE = WARP };
enum { MAX_DIM = TR_ATTENTION_MAX_DIM, COLUMNS = MAX_DIM / WARP };

/* Memory shared by a block. Rows of the tile are dim + 1 apart, so that lanes use different
 * banks. */
struct block_rows {
    float tile[TILE * (MAX_DIM + 1)];
    float own[2][WARPS][MAX_DIM];
    float weight[2][WARPS][TILE];
};

/* The place of a block's work: WARPS rows from first_row on of head h (of `heads`) of sequence
 * b. */
struct place {
    int64_t first_row, b, h;
};
__device__ place place_of(const tr_attention_desc &d, int64_t heads, int64_t item) {
    int64_t blocks = (d.seq + WARPS - 1) / WARPS, head = item / blocks;
    return place{item % blocks * WARPS, head / heads, head % heads};
}
__host__ __device__ int64_t items_of(const tr_attention_desc &d, int64_t heads) {
    return (d.seq + WARPS - 1) / WARPS * d.batch * heads;
}

/* Rows of dim elements, `stride` apart: of a head of packed QKV, or of y. */
template <typename T> struct head_rows {
    T *first;
    int64_t stride;
};
template <typename T>
__device__ head_rows<T> packed(const tr_attention_desc &d, int64_t b, int64_t head, T *qkv) {
    int64_t row = tr_attention_row(&d);
    return {qkv + b * d.seq * row + head * d.head_size, row};
}
template <typename T>
__device__ head_rows<T> query_of(const tr_attention_desc &d, const place &at, T *qkv) {
    return packed(d, at.b, at.h, qkv);
}
template <typename T>
__device__ head_rows<T> key_of(const tr_attention_desc &d, const place &at, T *qkv) {
    return packed(d, at.b, d.heads + tr_attention_kv_head(&d, at.h), qkv);
}
template <typename T>
__device__ head_rows<T> value_of(const tr_attention_desc &d, const place &at, T *qkv) {
    return packed(d, at.b, d.heads + d.kv_heads + tr_attention_kv_head(&d, at.h), qkv);
}
template <typename T>
__device__ head_rows<T> plain(const tr_attention_desc &d, const place &at, T *y) {
    int64_t width = d.heads * d.head_size;
    return {y + at.b * d.seq * width + at.h * d.head_size, width};
}

/* Returns the first token that token t of sequence b sees; starts may be NULL. */
__device__ int64_t first_of(const tr_attention_desc &d, const int32_t *starts, int64_t b,
                            int64_t t) {
    return tr_attention_first(&d, t, starts ? starts[b * d.seq + t] : 0);
}

/* Returns the tile with the first token that any of the block's rows sees. */
__device__ int64_t first_tile(const tr_attention_desc &d, const int32_t *starts, const place &at) {
    int64_t least = at.first_row;
    for (int64_t t = at.first_row; t < at.first_row + WARPS && t < d.seq; t++) {
        int64_t first = first_of(d, starts, at.b, t);
        least = first < least ? first : least;
    }
    return least / TILE * TILE;
}

/* Loads rows first.. of x into the tile, with zeros past the sequence. Called by all threads. */
template <typename T>
__device__ void load_tile(const tr_attention_desc &d, head_rows<const T> x, int64_t first,
                          block_rows &s) {
    const int dim = (int)d.head_size;
    for (int r = tr_warp(); r < TILE; r += WARPS)
        for (int c = tr_lane(); c < dim; c += WARP)
            s.tile[r * (dim + 1) + c] =
                first + r < d.seq ? tr_load_one(x.first + (first + r) * x.stride + c) : 0.0f;
}

/* Loads row `row` of x into the warp's own row. */
template <typename T>
__device__ void load_own(const tr_attention_desc &d, head_rows<const T> x, int64_t row,
                         float *own) {
    for (int c = tr_lane(); c < (int)d.head_size; c += WARP)
        own[c] = tr_load_one(x.first + row * x.stride + c);
}

/* Returns the product of the warp's own row and the tile's row `lane`. */
__device__ float dot(const tr_attention_desc &d, const float *own, const block_rows &s) {
    const int dim = (int)d.head_size;
    const float *row = s.tile + tr_lane() * (dim + 1);
    float sum = 0;
    for (int c = 0; c < dim; c++) sum = fmaf(own[c], row[c], sum);
    return sum;
}

/* sums[i] += the weighted sum over the tile of column lane + 32 i. */
__device__ void accumulate(const tr_attention_desc &d, const float *weight, const block_rows &s,
                           float (&sums)[COLUMNS]) {
    const int dim = (int)d.head_size;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        int c = tr_lane() + WARP * i;
        if (c < dim)
#pragma unroll 4
            for (int j = 0; j < TILE; j++)
                sums[i] = fmaf(weight[j], s.tile[j * (dim + 1) + c], sums[i]);
    }
}

template <typename T>
__device__ void store_row(const tr_attention_desc &d, head_rows<T> y, int64_t row,
                          const float (&sums)[COLUMNS], float factor) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        int c = tr_lane() + WARP * i;
        if (c < (int)d.head_size) tr_store_one(y.first + row * y.stride + c, sums[i] * factor);
    }
}

/* Softmax over the tiles in turn (Milakov & Gimelshein 2018): sums under a smaller maximum are
 * scaled down. */
template <typename T>
__global__ void __launch_bounds__(THREADS) forward(tr_attention_desc d, float scale, const T *qkv,
                                                   const int32_t *starts, T *y, float *lse) {
    __shared__ block_rows s;
    for (int64_t item = blockIdx.x; item < items_of(d, d.heads); item += gridDim.x) {
        const place at = place_of(d, d.heads, item);
        const int64_t i = at.first_row + tr_warp(), row = i < d.seq ? i : d.seq - 1;
        const int64_t visible = first_of(d, starts, at.b, row);
        float largest = -INFINITY, sum = 0, sums[COLUMNS] = {0};
        load_own(d, query_of(d, at, qkv), row, s.own[0][tr_warp()]);
        for (int64_t first = first_tile(d, starts, at);
             first < at.first_row + WARPS && first < d.seq; first += TILE) {
            load_tile(d, key_of(d, at, qkv), first, s);
            __syncthreads();
            const int64_t key = first + tr_lane();
            s.weight[0][tr_warp()][tr_lane()] =
                key >= visible && key <= row ? scale * dot(d, s.own[0][tr_warp()], s) : -INFINITY;
            __syncthreads(); /* the scores are written, the keys have been read */
            load_tile(d, value_of(d, at, qkv), first, s);
            float before = largest;
            for (int j = 0; j < TILE; j++) largest = fmaxf(largest, s.weight[0][tr_warp()][j]);
            /* Other rows of the block may see tokens before this row's first. */
            const float top = largest == -INFINITY ? 0.0f : largest;
            s.weight[1][tr_warp()][tr_lane()] = expf(s.weight[0][tr_warp()][tr_lane()] - top);
            __syncthreads();
            float shrink = expf(before - top);
            sum *= shrink;
            for (int j = 0; j < TILE; j++) sum += s.weight[1][tr_warp()][j];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sums[c] *= shrink;
            accumulate(d, s.weight[1][tr_warp()], s, sums);
            __syncthreads(); /* before the tile is filled again */
        }
        if (i < d.seq) {
            store_row(d, plain(d, at, y), i, sums, 1 / sum);
            if (tr_lane() == 0) lse[(at.b * d.heads + at.h) * d.seq + i] = largest + logf(sum);
        }
        __syncthreads(); /* before the own rows are filled again */
    }
}

/* The mean of dP under P of a row, in two parts: dy.y, and the mean of what is left, since y is
 * rounded and P adds up to 1 only up to the rounding of the log-sum-exp. All keys of the row would
 * share that error. */
struct row_mean {
    float near, rest;
};

/* dQ, and means[batch, heads, seq] for the kernel of dK and dV. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    backward_queries(tr_attention_desc d, float scale, const T *dy, const T *qkv, const T *y,
                     const float *lse, const int32_t *starts, T *dqkv, row_mean *means) {
    __shared__ block_rows s;
    for (int64_t item = blockIdx.x; item < items_of(d, d.heads); item += gridDim.x) {
        const place at = place_of(d, d.heads, item);
        const int64_t i = at.first_row + tr_warp(), row = i < d.seq ? i : d.seq - 1;
        const int64_t visible = first_of(d, starts, at.b, row);
        const int64_t statistic = (at.b * d.heads + at.h) * d.seq + row;
        const head_rows<const T> out = plain(d, at, y);
        float part = 0, near = 0, rest = 0, weights = 0, sums[COLUMNS] = {0}, keys[COLUMNS] = {0};
        load_own(d, query_of(d, at, qkv), row, s.own[0][tr_warp()]);
        load_own(d, plain(d, at, dy), row, s.own[1][tr_warp()]);
        for (int c = tr_lane(); c < (int)d.head_size; c += WARP)
            part += s.own[1][tr_warp()][c] * tr_load_one(out.first + row * out.stride + c);
        s.weight[0][tr_warp()][tr_lane()] = part;
        __syncthreads();
        for (int j = 0; j < WARP; j++) near += s.weight[0][tr_warp()][j];
        for (int64_t first = first_tile(d, starts, at);
             first < at.first_row + WARPS && first < d.seq; first += TILE) {
            load_tile(d, value_of(d, at, qkv), first, s);
            __syncthreads();
            float dp = dot(d, s.own[1][tr_warp()], s);
            __syncthreads();
            load_tile(d, key_of(d, at, qkv), first, s);
            __syncthreads();
            const int64_t key = first + tr_lane();
            float p = key >= visible && key <= row
                          ? expf(scale * dot(d, s.own[0][tr_warp()], s) - lse[statistic])
                          : 0.0f;
            rest = fmaf(p, dp - near, rest);
            weights += p;
            s.weight[0][tr_warp()][tr_lane()] = p * (dp - near) * scale;
            s.weight[1][tr_warp()][tr_lane()] = p * scale;
            __syncthreads();
            accumulate(d, s.weight[0][tr_warp()], s, sums);
            accumulate(d, s.weight[1][tr_warp()], s, keys);
            __syncthreads();
        }
        rest = tr_warp_sum(rest) / tr_warp_sum(weights);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sums[c] = fmaf(-rest, keys[c], sums[c]);
        if (i < d.seq) {
            store_row(d, query_of(d, at, dqkv), i, sums, 1.0f);
            if (tr_lane() == 0) means[statistic] = {near, rest};
        }
        __syncthreads();
    }
}

/* dK and dV: for each query head that shares a warp's key, visits the queries that see it. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    backward_keys(tr_attention_desc d, float scale, const T *dy, const T *qkv, const float *lse,
                  const row_mean *means, const int32_t *starts, T *dqkv) {
    __shared__ block_rows s;
    const int64_t group = d.heads / d.kv_heads;
    for (int64_t item = blockIdx.x; item < items_of(d, d.kv_heads); item += gridDim.x) {
        place at = place_of(d, d.kv_heads, item);
        const int64_t j = at.first_row + tr_warp(), row = j < d.seq ? j : d.seq - 1;
        const int64_t past = at.first_row + WARPS - 1 + d.window; /* sees none of the keys */
        const int64_t end = d.window > 0 && past < d.seq ? past : d.seq;
        float dk[COLUMNS] = {0}, dv[COLUMNS] = {0};
        at.h *= group;
        load_own(d, key_of(d, at, qkv), row, s.own[0][tr_warp()]);
        load_own(d, value_of(d, at, qkv), row, s.own[1][tr_warp()]);
        for (int64_t g = 0; g < group; g++, at.h++) {
            const int64_t head = (at.b * d.heads + at.h) * d.seq;
            for (int64_t first = at.first_row / TILE * TILE; first < end; first += TILE) {
                const int64_t i = first + tr_lane();
                const bool seen = i >= row && i < d.seq && first_of(d, starts, at.b, i) <= row;
                load_tile(d, query_of(d, at, qkv), first, s);
                __syncthreads();
                float p =
                    seen ? expf(scale * dot(d, s.own[0][tr_warp()], s) - lse[head + i]) : 0.0f;
                s.weight[0][tr_warp()][tr_lane()] = p;
                __syncthreads();
                load_tile(d, plain(d, at, dy), first, s);
                __syncthreads();
                float dp = dot(d, s.own[1][tr_warp()], s);
                s.weight[1][tr_warp()][tr_lane()] =
                    seen ? p * (dp - means[head + i].near - means[head + i].rest) * scale : 0.0f;
                accumulate(d, s.weight[0][tr_warp()], s, dv);
                __syncthreads();
                load_tile(d, query_of(d, at, qkv), first, s);
                __syncthreads();
                accumulate(d, s.weight[1][tr_warp()], s, dk);
                __syncthreads();
            }
        }
        at.h -= group;
        if (j < d.seq) {
            store_row(d, key_of(d, at, dqkv), j, dk, 1.0f);
            store_row(d, value_of(d, at, dqkv), j, dv, 1.0f);
        }
        __syncthreads();
    }
}

template <typename T>
cudaError_t launch_forward(cudaStream_t stream, const tr_attention_desc &d, const void *qkv,
                           const int32_t *starts, void *y, float *lse) {
    return tr_launch(stream, tr_grid(items_of(d, d.heads), 1), THREADS, forward<T>, d,
                     tr_attention_scale(&d), qkv, starts, y, lse);
}

template <typename T>
cudaError_t launch_backward(cudaStream_t stream, const tr_attention_desc &d, const void *dy,
                            const void *qkv, const void *y, const float *lse, const int32_t *starts,
                            void *dqkv, void *scratch) {
    static_assert(sizeof(row_mean) == TR_ATTENTION_ROW_BYTES, "a row's scratch");
    row_mean *means = static_cast<row_mean *>(scratch);
    const float scale = tr_attention_scale(&d);
    TR_LAUNCH(tr_launch(stream, tr_grid(items_of(d, d.heads), 1), THREADS, backward_queries<T>, d,
                        scale, dy, qkv, y, lse, starts, dqkv, means));
    return tr_launch(stream, tr_grid(items_of(d, d.kv_heads), 1), THREADS, backward_keys<T>, d,
                     scale, dy, qkv, lse, means, starts, dqkv);
}

/* The kernel of tr_cuda_launch_attention_first: an item is a token. */
__global__ void first_tokens(tr_attention_desc d, const int32_t *starts, int32_t *first) {
    for (int64_t i = tr_first_item(); i < d.batch * d.seq; i += tr_item_stride())
        first[i] = (int32_t)first_of(d, starts, i / d.seq, i % d.seq);
}

} // namespace

cudaError_t tr_cuda_launch_attention(cudaStream_t stream, const tr_attention_desc *d,
                                     const void *qkv, const int32_t *starts, void *y, float *lse) {
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return launch_forward<typename decltype(storage)::type>(stream, *d, qkv, starts, y, lse);
    });
}

cudaError_t tr_cuda_launch_attention_dgrad(cudaStream_t stream, const tr_attention_desc *d,
                                           const void *dy, const void *qkv, const void *y,
                                           const float *lse, const int32_t *starts, void *dqkv,
                                           void *scratch) {
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return launch_backward<typename decltype(storage)::type>(stream, *d, dy, qkv, y, lse,
                                                                 starts, dqkv, scratch);
    });
}

cudaError_t tr_cuda_launch_attention_first(cudaStream_t stream, const tr_attention_desc *d,
                                           const int32_t *starts, int32_t *first) {
    return tr_launch(stream, tr_grid(d->batch * d->seq, TR_THREADS), TR_THREADS, first_tokens, *d,
                     starts, first);
}
