/* The kernel of ROPE: a thread takes a pack of pairs of one row and turns it in all heads, so that
 * cosines and sines are computed once. Those of NORM_ROPE: as many lanes as a half of a head has
 * packs take it; its second reading comes from the first-level cache. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* What turns the N pairs from `pair` on of a row. */
template <int N>
__device__ void rotation(const tr_cuda_rope_table &table, uint64_t position, int64_t pair,
                         bool back, float (&cosine)[N], float (&sine)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        tr_rope_rotation(position * table.turns[pair + i], &cosine[i], &sine[i]);
        cosine[i] *= table.magnitude;
        sine[i] *= back ? -table.magnitude : table.magnitude;
    }
}

template <int N>
__device__ void rotate(const float (&cosine)[N], const float (&sine)[N], float (&a)[N],
                       float (&b)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float first = a[i], second = b[i];
        a[i] = first * cosine[i] - second * sine[i];
        b[i] = second * cosine[i] + first * sine[i];
    }
}

__device__ inline uint64_t position_of(const tr_rope_desc &d, const tr_step_state *state,
                                       const int32_t *starts, int64_t row) {
    const int64_t index = tr_token_position(d.decode, d.seq, state, row);
    return (uint64_t)(index - (starts ? starts[row] : 0));
}

template <typename T, int N>
__global__ void rope(tr_rope_desc d, tr_cuda_rope_table table, const tr_step_state *state,
                     const int32_t *starts, T *x) {
    const int64_t half = d.head_size / 2, packs = half / N;
    for (int64_t item = tr_first_item(); item < d.rows * packs; item += tr_item_stride()) {
        const int64_t row = item / packs, pair = item % packs * N;
        float cosine[N], sine[N];
        rotation(table, position_of(d, state, starts, row), pair, d.inverse, cosine, sine);
        for (int64_t h = 0; h < d.heads; h++) {
            T *a = x + row * d.ld + h * d.head_size + pair, *b = a + half;
            float first[N], second[N];
            tr_load(a, first);
            tr_load(b, second);
            rotate(cosine, sine, first, second);
            tr_store(a, first);
            tr_store(b, second);
        }
    }
}

/* The heads of a warp at a time: each has `lanes` lanes, a power of two. */
struct head_lanes {
    int64_t heads;
    unsigned lanes;

    /* Returns the first head of this thread, and the heads from one to the next. */
    __device__ int64_t first() const {
        return (int64_t)blockIdx.x * (TR_THREADS / lanes) + threadIdx.x / lanes;
    }
    __device__ int64_t stride() const {
        return (int64_t)gridDim.x * (TR_THREADS / lanes);
    }
    /* Returns true while some lane of the warp has a head, since all lanes take part in sums. */
    __device__ bool goes_on(int64_t head) const {
        return head - tr_lane() / lanes < heads;
    }
    __device__ int lane() const {
        return (int)(threadIdx.x % lanes);
    }
    /* Every lane gets the sum over the lanes of its head. */
    __device__ float sum(float value) const {
        for (unsigned away = lanes / 2; away > 0; away /= 2)
            value += __shfl_xor_sync(0xffffffffu, value, (int)away);
        return value;
    }
};

/* a[i] and b[i] of a head are a pair; a lane's packs of pairs start at lane * N, (lane + lanes) *
 * N, ... Lanes past the last head only take part in the sums. */
template <typename T, int N>
__global__ void norm_rope(tr_norm_rope_desc n, head_lanes by, tr_cuda_rope_table table,
                          const tr_step_state *state, const int32_t *starts, T *x, const T *gamma,
                          float *rstds, T *kept) {
    const tr_rope_desc &d = n.rope;
    const int64_t size = d.head_size, half = size / 2;
    const int64_t first = by.lane() * N, step = (int64_t)by.lanes * N;
    for (int64_t at = by.first(); by.goes_on(at); at += by.stride()) {
        const bool own = at < by.heads;
        const int64_t r = own ? at : by.heads - 1;
        T *head = x + r / d.heads * d.ld + r % d.heads * size;
        const uint64_t position = position_of(d, state, starts, r / d.heads);
        float a[N], b[N], squares = 0;
        for (int64_t c = first; c < half && own; c += step) {
            tr_load(head + c, a);
            tr_load(head + half + c, b);
#pragma unroll
            for (int i = 0; i < N; i++) squares += a[i] * a[i] + b[i] * b[i];
        }
        const float rstd = 1.0f / sqrtf(by.sum(squares) / (float)size + (float)n.eps);
        for (int64_t c = first; c < half && own; c += step) {
            float cosine[N], sine[N], scale[N];
            tr_load(head + c, a);
            tr_load(head + half + c, b);
            if (!d.decode) {
                tr_store(kept + r * size + c, a);
                tr_store(kept + r * size + half + c, b);
            }
            tr_load(gamma + c, scale);
#pragma unroll
            for (int i = 0; i < N; i++) a[i] = tr_rmsnorm_element(a[i], rstd, scale[i]);
            tr_load(gamma + half + c, scale);
#pragma unroll
            for (int i = 0; i < N; i++) b[i] = tr_rmsnorm_element(b[i], rstd, scale[i]);
            rotation(table, position, c, false, cosine, sine);
            rotate(cosine, sine, a, b);
            tr_store(head + c, a);
            tr_store(head + half + c, b);
        }
        if (by.lane() == 0 && own) rstds[r] = rstd;
    }
}

/* The gradient of N elements of X from that of the norm's result. */
template <typename T, int N>
__device__ void through_norm(const T *x, const T *gamma, float rstd, float mean, float (&g)[N]) {
    float v[N], scale[N];
    tr_load(x, v);
    tr_load(gamma, scale);
#pragma unroll
    for (int i = 0; i < N; i++) g[i] = tr_rmsnorm_dgrad(g[i] * scale[i], v[i] * rstd, rstd, mean);
}

/* A lane's part of the sum of dy gamma x rstd over a head. */
template <typename T, int N>
__device__ float weigh(const T *x, const T *gamma, float rstd, const float (&g)[N]) {
    float v[N], scale[N], sum = 0;
    tr_load(x, v);
    tr_load(gamma, scale);
#pragma unroll
    for (int i = 0; i < N; i++) sum += g[i] * scale[i] * (v[i] * rstd);
    return sum;
}

/* The second loop reads what the same lane wrote to dnormed in the first. */
template <typename T, int N>
__global__ void norm_rope_dgrad(tr_norm_rope_desc n, head_lanes by, tr_cuda_rope_table table,
                                const int32_t *starts, T *dx, const T *x, const T *gamma,
                                const float *rstds, T *dnormed) {
    const tr_rope_desc &d = n.rope;
    const int64_t size = d.head_size, half = size / 2;
    const int64_t first = by.lane() * N, step = (int64_t)by.lanes * N;
    for (int64_t at = by.first(); by.goes_on(at); at += by.stride()) {
        const bool own = at < by.heads;
        const int64_t r = own ? at : by.heads - 1;
        T *head = dx + r / d.heads * d.ld + r % d.heads * size, *turned = dnormed + r * size;
        const uint64_t position = position_of(d, nullptr, starts, r / d.heads);
        const T *kept = x + r * size;
        const float rstd = rstds[r];
        float a[N], b[N], sum = 0;
        for (int64_t c = first; c < half && own; c += step) {
            float cosine[N], sine[N];
            rotation(table, position, c, true, cosine, sine);
            tr_load(head + c, a);
            tr_load(head + half + c, b);
            rotate(cosine, sine, a, b);
            tr_store(turned + c, a);
            tr_store(turned + half + c, b);
            sum += weigh(kept + c, gamma + c, rstd, a) +
                   weigh(kept + half + c, gamma + half + c, rstd, b);
        }
        const float mean = by.sum(sum) / (float)size;
        for (int64_t c = first; c < half && own; c += step) {
            tr_load(turned + c, a);
            tr_load(turned + half + c, b);
            through_norm(kept + c, gamma + c, rstd, mean, a);
            through_norm(kept + half + c, gamma + half + c, rstd, mean, b);
            tr_store(head + c, a);
            tr_store(head + half + c, b);
        }
    }
}

/* Divides heads among lanes with packs of `pack` pairs: at most a warp takes one. */
head_lanes divide(const tr_rope_desc &d, int pack) {
    unsigned lanes = 1;
    while (lanes < TR_WARP && lanes * pack < d.head_size / 2) lanes *= 2;
    return {d.rows * d.heads, lanes};
}

unsigned grid_of(const head_lanes &by) {
    return tr_grid(by.heads, TR_THREADS / by.lanes);
}

/* True when every half of a head starts on 16 bytes. */
template <typename... P> bool aligned(const tr_rope_desc *d, P... pointers) {
    return tr_rows_aligned(d->dtype, d->head_size / 2, pointers...) &&
           tr_rows_aligned(d->dtype, d->ld);
}

} // namespace

cudaError_t tr_cuda_launch_rope(cudaStream_t stream, const tr_rope_desc *desc,
                                const tr_cuda_rope_table *table, const tr_step_state *state,
                                const int32_t *starts, void *x) {
    const tr_rope_desc d = *desc;
    const tr_cuda_rope_table t = *table;
    return tr_dispatch(d.dtype, aligned(desc, x), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(d.rows * (d.head_size / 2 / S::pack), TR_THREADS),
                         TR_THREADS, rope<typename S::type, S::pack>, d, t, state, starts, x);
    });
}

cudaError_t tr_cuda_launch_norm_rope(cudaStream_t stream, const tr_norm_rope_desc *desc,
                                     const tr_cuda_rope_table *table, const tr_step_state *state,
                                     const int32_t *starts, void *x, const void *gamma,
                                     float *rstds, void *kept) {
    const tr_norm_rope_desc d = *desc;
    const tr_cuda_rope_table t = *table;
    return tr_dispatch(d.rope.dtype, aligned(&desc->rope, x, gamma, kept), [=](auto storage) {
        using S = decltype(storage);
        const head_lanes by = divide(d.rope, S::pack);
        return tr_launch(stream, grid_of(by), TR_THREADS, norm_rope<typename S::type, S::pack>, d,
                         by, t, state, starts, x, gamma, rstds, kept);
    });
}

cudaError_t tr_cuda_launch_norm_rope_dgrad(cudaStream_t stream, const tr_norm_rope_desc *desc,
                                           const tr_cuda_rope_table *table, const int32_t *starts,
                                           void *dx, const void *x, const void *gamma,
                                           const float *rstds, void *dnormed) {
    const tr_norm_rope_desc d = *desc;
    const tr_cuda_rope_table t = *table;
    const bool packs = aligned(&desc->rope, dx, x, gamma, dnormed);
    return tr_dispatch(d.rope.dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        const head_lanes by = divide(d.rope, S::pack);
        return tr_launch(stream, grid_of(by), TR_THREADS,
                         norm_rope_dgrad<typename S::type, S::pack>, d, by, t, starts, dx, x, gamma,
                         rstds, dnormed);
    });
}
