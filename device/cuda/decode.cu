/* The kernel of ATTENTION_DECODE: a block takes one head of one token. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* There are few blocks, so each has many threads, and a warp has several keys in flight. */
enum { THREADS = 1024, WARPS = THREADS / TR_WARP, KEYS = 4 };

/* The keys, or the values, of one head: those before position `begin` from the cache, and those of
 * this call's tokens from qkv, because other blocks write them to the cache meanwhile. */
template <typename T> struct head_rows {
    T *cache;
    const T *own;
    int64_t width, step, begin; /* elements of a position in the cache, and of a token in qkv */

    __device__ const T *at(int64_t position) const {
        return position < begin ? cache + position * width : own + (position - begin) * step;
    }
    __device__ void keep(int64_t position, int64_t c) const {
        cache[position * width + c] = own[(position - begin) * step + c];
    }
};

/* Writes the scores of the positions first to last. Every thread gets the largest one, after all
 * are written. */
template <typename T>
__device__ float take_scores(const head_rows<T> &keys, const T *q, int64_t dim, float scale,
                             int64_t first, int64_t last, float *scores) {
    float largest = -INFINITY;
    for (int64_t j = first + tr_warp(); j <= last; j += KEYS * WARPS) {
        const T *key[KEYS];
        float dot[KEYS] = {};
#pragma unroll
        for (int i = 0; i < KEYS; i++) /* past the last key: the last one again */
            key[i] = keys.at(j + i * WARPS < last ? j + i * WARPS : last);
        for (int64_t c = tr_lane(); c < dim; c += TR_WARP) {
            const float of_query = tr_load_one(q + c);
#pragma unroll
            for (int i = 0; i < KEYS; i++) dot[i] += of_query * tr_load_one(key[i] + c);
        }
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            dot[i] = tr_warp_sum(dot[i]) * scale;
            if (tr_lane() == 0 && j + i * WARPS <= last) scores[j + i * WARPS] = dot[i];
            largest = fmaxf(largest, dot[i]);
        }
    }
    return tr_block_max<THREADS>(largest);
}

/* y[dim] = the mean of the values with the weights exp(score - largest); overwrites the scores. */
template <typename T>
__device__ void take_mean(const head_rows<T> &values, int64_t dim, int64_t first, int64_t last,
                          float largest, float *scores, T *y) {
    __shared__ float part[WARPS][TR_WARP];
    float sum = 0;
    for (int64_t j = first + threadIdx.x; j <= last; j += THREADS) {
        scores[j] = expf(scores[j] - largest);
        sum += scores[j];
    }
    sum = tr_block_sum<THREADS>(sum);
    for (int64_t column = 0; column < dim; column += TR_WARP) {
        const int64_t c = column + tr_lane();
        float value = 0;
        if (c < dim) {
#pragma unroll 4
            for (int64_t j = first + tr_warp(); j <= last; j += WARPS)
                value += scores[j] * tr_load_one(values.at(j) + c);
        }
        part[tr_warp()][tr_lane()] = value;
        __syncthreads();
        if (tr_warp() == 0 && c < dim) {
            for (int w = 1; w < WARPS; w++) value += part[w][tr_lane()];
            tr_store_one(y + c, value / sum);
        }
        __syncthreads();
    }
}

/* scores[batch, decode, heads, seq]. For a position outside the cache it only writes NaN to y,
 * because a kernel cannot fail. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode(tr_attention_desc d, const tr_step_state *state, const T *qkv, T *kcache, T *vcache,
           T *y, float *all_scores) {
    const int64_t dim = d.head_size, width = d.kv_heads * dim;
    const int64_t step = tr_attention_row(&d);
    for (int64_t head = blockIdx.x; head < d.batch * d.decode * d.heads; head += gridDim.x) {
        const int64_t row = head / d.heads, b = row / d.decode;
        const int64_t begin = state->position[b], position = begin + row % d.decode;
        const int64_t h = head % d.heads, key = tr_attention_kv_head(&d, h);
        const int64_t at = b * d.seq * width + key * dim;
        const T *own = qkv + b * d.decode * step + (d.heads + key) * dim;
        const head_rows<T> keys = {kcache + at, own, width, step, begin};
        const head_rows<T> values = {vcache + at, own + width, width, step, begin};
        T *to = y + head * dim;
        float *scores = all_scores + head * d.seq;
        if (begin < 0 || begin > d.seq - d.decode) {
            for (int64_t c = threadIdx.x; c < dim; c += THREADS) tr_store_one(to + c, NAN);
            continue;
        }
        const int64_t first = tr_attention_first(&d, position, 0);
        /* Blocks of query heads that share the key write the same. */
        for (int64_t c = threadIdx.x; c < dim; c += THREADS) {
            keys.keep(position, c);
            values.keep(position, c);
        }
        const float largest = take_scores(keys, qkv + row * step + h * dim, dim,
                                          tr_attention_scale(&d), first, position, scores);
        take_mean(values, dim, first, position, largest, scores, to);
    }
}

} // namespace

cudaError_t tr_cuda_launch_attention_decode(cudaStream_t stream, const tr_attention_desc *d,
                                            const tr_step_state *state, const void *qkv,
                                            void *kcache, void *vcache, void *y, float *scores) {
    const unsigned blocks = tr_grid(d->batch * d->decode * d->heads, 1);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return tr_launch(stream, blocks, THREADS, decode<typename decltype(storage)::type>, *d,
                         state, qkv, kcache, vcache, y, scores);
    });
}
