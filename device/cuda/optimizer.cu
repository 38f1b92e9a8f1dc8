/* Kernels of SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/cuda/rules.cuh"
#include "device/cuda/sumsq.cuh"
#include "device/elementwise.h"

namespace {

/* A warp takes a block of 4096 elements. partial[blocks]. packs: x starts on 16 bytes. */
template <bool packs, typename T>
__global__ void sumsq_blocks(int64_t count, int64_t blocks, const T *x, double *partial) {
    for (int64_t block = tr_first_row(); block < blocks; block += tr_row_stride()) {
        const int64_t from = block * TR_SUMSQ_BLOCK, left = count - from;
        const double sum =
            tr_warp_sumsq<packs>(x + from, left < TR_SUMSQ_BLOCK ? left : (int64_t)TR_SUMSQ_BLOCK);
        if (tr_lane() == 0) partial[block] = sum;
    }
}

/* One block. */
__global__ void sumsq_finish(int64_t blocks, const double *partial, double *out) {
    const double total = tr_block_total(blocks, partial);
    if (threadIdx.x == 0) *out = total;
}

__global__ void step_finish(tr_step_finish_desc d, const double *losses, const double *norms,
                            tr_step_state *state) {
    if (threadIdx.x == 0) tr_step_finish(losses, d.losses, norms, d.norms, state);
}

/* Computes UPDATE (STEPS) or DIRECTION in FP32: packs of N elements, then the last count % N. value
 * may be NULL, and so may m and v that the rule does not have; u may be grad. */
template <typename T, int N, tr_update_rule RULE, bool STEPS>
__global__ void update(tr_update_desc d, const tr_step_state *state, const float *grad,
                       float *master, float *m, float *v, T *value, float *u) {
    if (state->skip) return;
    constexpr bool HAS_M = RULE != TR_UPDATE_SGD, HAS_V = RULE == TR_UPDATE_ADAMW;
    const tr_update_scalars scalars = tr_update_round(&d, state);
    const int64_t packs = d.count / N;
    for (int64_t i = tr_first_item(); i < packs; i += tr_item_stride()) {
        float g[N], w[N], m1[N], v1[N];
        tr_load(grad + i * N, g);
        tr_load(master + i * N, w);
        if (HAS_M) tr_load(m + i * N, m1);
        if (HAS_V) tr_load(v + i * N, v1);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if (STEPS) tr_update_element(&scalars, RULE, g[j], &w[j], &m1[j], &v1[j]);
            else g[j] = tr_update_direction(&scalars, RULE, g[j], w[j], &m1[j], &v1[j]);
        }
        if (HAS_M) tr_store(m + i * N, m1);
        if (HAS_V) tr_store(v + i * N, v1);
        if (STEPS) tr_store(master + i * N, w);
        else tr_store(u + i * N, g);
        if (STEPS && value) tr_store(value + i * N, w);
    }
    for (int64_t i = packs * N + tr_first_item(); i < d.count; i += tr_item_stride()) {
        float *mi = HAS_M ? m + i : nullptr, *vi = HAS_V ? v + i : nullptr;
        if (STEPS) tr_update_element(&scalars, RULE, grad[i], master + i, mi, vi);
        else u[i] = tr_update_direction(&scalars, RULE, grad[i], master[i], mi, vi);
        if (STEPS && value) tr_store_one(value + i, master[i]);
    }
}

template <typename T, bool STEPS>
cudaError_t launch_update(cudaStream_t stream, const tr_update_desc &d, const tr_step_state *state,
                          const tr_cuda_update &o) {
    const bool packs = tr_aligned(o.grad, o.master, o.m, o.v, o.value, o.u);
    return tr_dispatch_rule(d.rule, [=](auto constant) {
        constexpr tr_update_rule RULE = decltype(constant)::rule;
        return tr_launch(stream, tr_grid(d.count, 4 * TR_THREADS), TR_THREADS,
                         packs ? update<T, 4, RULE, STEPS> : update<T, 1, RULE, STEPS>, d, state,
                         o.grad, o.master, o.m, o.v, o.value, o.u);
    });
}

/* Packs of N elements, then the last count % N. value may be NULL. Every thread adds the few parts'
 * norms. */
template <typename T, int N>
__global__ void descend(tr_descend_desc d, const tr_step_state *state, const float *u,
                        const double *norms, float *master, T *value) {
    if (state->skip) return;
    const tr_descend_scalars scalars = tr_descend_round(&d, state, norms);
    const int64_t packs = d.count / N;
    for (int64_t i = tr_first_item(); i < packs; i += tr_item_stride()) {
        float g[N], w[N];
        tr_load(u + i * N, g);
        tr_load(master + i * N, w);
#pragma unroll
        for (int j = 0; j < N; j++) w[j] = tr_descend_element(&scalars, g[j], w[j]);
        tr_store(master + i * N, w);
        if (value) tr_store(value + i * N, w);
    }
    for (int64_t i = packs * N + tr_first_item(); i < d.count; i += tr_item_stride()) {
        master[i] = tr_descend_element(&scalars, u[i], master[i]);
        if (value) tr_store_one(value + i, master[i]);
    }
}

template <typename T>
cudaError_t launch_descend(cudaStream_t stream, const tr_descend_desc &d,
                           const tr_step_state *state, const float *u, const double *norms,
                           float *master, void *memory) {
    const unsigned blocks = tr_grid(d.count, 4 * TR_THREADS);
    T *value = static_cast<T *>(memory);
    return tr_aligned(u, master, value) ? tr_launch(stream, blocks, TR_THREADS, descend<T, 4>, d,
                                                    state, u, norms, master, value)
                                        : tr_launch(stream, blocks, TR_THREADS, descend<T, 1>, d,
                                                    state, u, norms, master, value);
}

template <int N> __global__ void rescale(tr_rescale_desc d, float *x, const double *norms) {
    const float factor = (float)tr_rescale_factor(norms, d.parts);
    const int64_t packs = d.count / N;
    for (int64_t i = tr_first_item(); i < packs; i += tr_item_stride()) {
        float v[N];
        tr_load(x + i * N, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] *= factor;
        tr_store(x + i * N, v);
    }
    for (int64_t i = packs * N + tr_first_item(); i < d.count; i += tr_item_stride())
        x[i] *= factor;
}

bool is_narrow(const tr_update_desc *d) {
    return d->bf16_grad || d->state_dtype != TR_F32 || d->bf16_master;
}

} // namespace

cudaError_t tr_cuda_launch_sumsq(cudaStream_t stream, const tr_sumsq_desc *d, const void *x,
                                 double *out, double *sums) {
    const bool total = d->part == TR_SUMSQ_TOTAL;
    const int64_t blocks = total ? d->count : tr_sumsq_blocks(d->count);
    const unsigned grid = tr_grid(blocks, TR_WARPS);
    if (!total)
        TR_LAUNCH(tr_dispatch_type(d->dtype, [=](auto storage) {
            using T = typename decltype(storage)::type;
            return tr_launch(stream, grid, TR_THREADS,
                             tr_aligned(x) ? sumsq_blocks<true, T> : sumsq_blocks<false, T>,
                             d->count, blocks, x, sums);
        }));
    if (d->part == TR_SUMSQ_BLOCKS) return cudaSuccess;
    return tr_launch(stream, 1, TR_SUMSQ_LANES, sumsq_finish, blocks, sums, out);
}

cudaError_t tr_cuda_launch_step_finish(cudaStream_t stream, const tr_step_finish_desc *d,
                                       const double *losses, const double *norms,
                                       tr_step_state *state) {
    return tr_launch(stream, 1, TR_WARP, step_finish, *d, losses, norms, state);
}

cudaError_t tr_cuda_launch_update(cudaStream_t stream, const tr_update_desc *d,
                                  const tr_step_state *state, const tr_cuda_update *o) {
    if (is_narrow(d)) return tr_cuda_launch_update_narrow(stream, d, state, o, true);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return launch_update<typename decltype(storage)::type, true>(stream, *d, state, *o);
    });
}

cudaError_t tr_cuda_launch_direction(cudaStream_t stream, const tr_update_desc *d,
                                     const tr_step_state *state, const tr_cuda_update *o) {
    if (is_narrow(d)) return tr_cuda_launch_update_narrow(stream, d, state, o, false);
    return launch_update<float, false>(stream, *d, state, *o);
}

cudaError_t tr_cuda_launch_descend(cudaStream_t stream, const tr_descend_desc *d,
                                   const tr_step_state *state, const double *norms,
                                   const tr_cuda_update *o) {
    if (d->bf16_master) return tr_cuda_launch_descend_bf16(stream, d, state, norms, o);
    const float *u = static_cast<const float *>(o->u);
    float *master = static_cast<float *>(o->master);
    void *value = o->value;
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return launch_descend<typename decltype(storage)::type>(stream, *d, state, u, norms, master,
                                                                value);
    });
}

cudaError_t tr_cuda_launch_rescale(cudaStream_t stream, const tr_rescale_desc *d, float *x,
                                   const double *norms) {
    const unsigned blocks = tr_grid(d->count, 4 * TR_THREADS);
    return tr_aligned(x) ? tr_launch(stream, blocks, TR_THREADS, rescale<4>, *d, x, norms)
                         : tr_launch(stream, blocks, TR_THREADS, rescale<1>, *d, x, norms);
}
