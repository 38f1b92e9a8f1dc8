/* The kernel of ATTENTION_DECODE: a block takes one head of one token. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* There are few blocks, so each has many threads, and a warp has several keys in flight. */
enum { THREADS = 1024, WARPS = THREADS / TR_WARP, KEYS = 4 };

/* scores[batch, decode, heads, seq]. The tokens' own keys and values are read from qkv, because
 * other blocks write them to the caches meanwhile. For a position outside the cache it only writes
 * NaN to y, because a kernel cannot fail. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode(tr_attention_desc d, const tr_step_state *state, const T *qkv, T *kcache, T *vcache,
           T *y, float *all_scores) {
    __shared__ float part[WARPS][TR_WARP];
    const int64_t dim = d.head_size, width = d.kv_heads * dim;
    const int64_t step = tr_attention_row(&d);
    const float scale = tr_attention_scale(&d);
    for (int64_t head = blockIdx.x; head < d.batch * d.decode * d.heads; head += gridDim.x) {
        const int64_t row = head / d.heads, b = row / d.decode;
        const int64_t begin = state->position[b], position = begin + row % d.decode;
        const int64_t h = head % d.heads, key = tr_attention_kv_head(&d, h);
        const T *q = qkv + row * step + h * dim;
        const T *k = qkv + b * d.decode * step + (d.heads + key) * dim, *v = k + width;
        T *keys = kcache + b * d.seq * width + key * dim;
        T *values = vcache + b * d.seq * width + key * dim;
        T *to = y + head * dim;
        float *scores = all_scores + head * d.seq;
        if (begin < 0 || begin > d.seq - d.decode) {
            for (int64_t c = threadIdx.x; c < dim; c += THREADS) tr_store_one(to + c, NAN);
            continue;
        }
        const int64_t first = tr_attention_first(&d, position, 0);
        /* Blocks of query heads that share the key write the same. */
        for (int64_t c = threadIdx.x; c < dim; c += THREADS) {
            keys[position * width + c] = k[(position - begin) * step + c];
            values[position * width + c] = v[(position - begin) * step + c];
        }
        float largest = -INFINITY;
        for (int64_t j = first + tr_warp(); j <= position; j += KEYS * WARPS) {
            const T *other[KEYS];
            float dot[KEYS] = {};
#pragma unroll
            for (int i = 0; i < KEYS; i++) { /* past the last key: the last one again */
                const int64_t at = j + i * WARPS < position ? j + i * WARPS : position;
                other[i] = at < begin ? keys + at * width : k + (at - begin) * step;
            }
            for (int64_t c = tr_lane(); c < dim; c += TR_WARP) {
                const float of_query = tr_load_one(q + c);
#pragma unroll
                for (int i = 0; i < KEYS; i++) dot[i] += of_query * tr_load_one(other[i] + c);
            }
#pragma unroll
            for (int i = 0; i < KEYS; i++) {
                dot[i] = tr_warp_sum(dot[i]) * scale;
                if (tr_lane() == 0 && j + i * WARPS <= position) scores[j + i * WARPS] = dot[i];
                largest = fmaxf(largest, dot[i]);
            }
        }
        largest = tr_block_max<THREADS>(largest); /* and all scores are written */
        float sum = 0;
        for (int64_t j = first + threadIdx.x; j <= position; j += THREADS) {
            scores[j] = expf(scores[j] - largest);
            sum += scores[j];
        }
        sum = tr_block_sum<THREADS>(sum);
        for (int64_t column = 0; column < dim; column += TR_WARP) {
            const int64_t c = column + tr_lane();
            float value = 0;
            if (c < dim) {
#pragma unroll 4
                for (int64_t j = first + tr_warp(); j <= position; j += WARPS)
                    value +=
                        scores[j] *
                        tr_load_one((j < begin ? values + j * width : v + (j - begin) * step) + c);
            }
            part[tr_warp()][tr_lane()] = value;
            __syncthreads();
            if (tr_warp() == 0 && c < dim) {
                for (int w = 1; w < WARPS; w++) value += part[w][tr_lane()];
                tr_store_one(to + c, value / sum);
            }
            __syncthreads();
        }
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
