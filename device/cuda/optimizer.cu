/* Kernels of SUMSQ, STEP_FINISH, UPDATE, DIRECTION and DESCEND. */
#include "device/cuda/eight.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/cuda/rounding.cuh"
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

template <tr_update_rule RULE> struct rule_constant {
    static constexpr tr_update_rule rule = RULE;
};

/* Calls launch(constant) with the rule as a constant. */
template <typename F> cudaError_t dispatch_rule(tr_update_rule rule, F launch) {
    switch (rule) {
    case TR_UPDATE_SGD: return launch(rule_constant<TR_UPDATE_SGD>{});
    case TR_UPDATE_MOMENTUM: return launch(rule_constant<TR_UPDATE_MOMENTUM>{});
    case TR_UPDATE_LION: return launch(rule_constant<TR_UPDATE_LION>{});
    case TR_UPDATE_ROOT: return launch(rule_constant<TR_UPDATE_ROOT>{});
    default: return launch(rule_constant<TR_UPDATE_ADAMW>{});
    }
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
    return dispatch_rule(d.rule, [=](auto constant) {
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

__device__ void load_either(const tr_eight &e, bool bf16, const void *from, float (&to)[8]) {
    if (bf16) tr_load_eight(e, static_cast<const tr_bf16 *>(from), to);
    else tr_load_eight(e, static_cast<const float *>(from), to);
}

/* Stores numbers, rounded by these half-words if they are to be BF16, and changes them to what is
 * stored. */
__device__ void store_either(const uint32_t (&half)[8], int use, const tr_eight &e, bool bf16,
                             float (&x)[8], void *to) {
    if (!bf16) {
        tr_store_eight(e, x, static_cast<float *>(to));
        return;
    }
    for (int i = 0; i < 8; i++)
        x[i] = tr_bf16_to_f32(tr_round_bf16(x[i], tr_rounding_draw(half[i], use)));
    tr_store_eight(e, x, static_cast<tr_bf16 *>(to));
}

__device__ void store_value(tr_dtype dtype, const tr_eight &e, const float (&x)[8], void *to) {
    if (dtype == TR_BF16) tr_store_eight(e, x, static_cast<tr_bf16 *>(to));
    else if (dtype == TR_F16) tr_store_eight(e, x, static_cast<tr_f16 *>(to));
    else tr_store_eight(e, x, static_cast<float *>(to));
}

/* States in memory: FP32, BF16, or codes with the scales of their blocks. */
struct state_memory {
    tr_dtype dtype;
    tr_code8 code;
    void *data;
    float *scales;
    int use;
};

/* Loads eight codes. */
__device__ void load_codes(const tr_eight &e, const uint8_t *from, uint8_t (&to)[8]) {
    if (e.packs && e.n == 8) {
        const tr_pack_words<2> pack = *reinterpret_cast<const tr_pack_words<2> *>(from + e.at);
        memcpy(to, &pack, sizeof to);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = i < e.n ? from[e.at + i] : 0;
}

/* Stores eight codes. */
__device__ void store_codes(const tr_eight &e, const uint8_t (&from)[8], uint8_t *to) {
    if (e.packs && e.n == 8) {
        tr_pack_words<2> pack;
        memcpy(&pack, from, sizeof pack);
        *reinterpret_cast<tr_pack_words<2> *>(to + e.at) = pack;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < e.n) to[e.at + i] = from[i];
}

static_assert(8 * TR_WARP == TR_CODE8_BLOCK, "a warp steps a block of codes");

/* Loads eight states. A warp has a block of codes. */
__device__ void load_states(const tr_eight &e, const state_memory &s, float (&x)[8]) {
    if (s.dtype != TR_U8) {
        load_either(e, s.dtype == TR_BF16, s.data, x);
        return;
    }
    uint8_t code[8];
    load_codes(e, static_cast<const uint8_t *>(s.data), code);
    const float scale = e.n > 0 ? s.scales[e.at / TR_CODE8_BLOCK] : 0.0f;
    for (int i = 0; i < 8; i++) x[i] = tr_code8_decode(code[i], scale, s.code);
}

/* Encodes a block of which each lane of the warp has eight numbers. */
__device__ void encode(const uint32_t (&half)[8], const tr_eight &e, const float (&x)[8],
                       const state_memory &s) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < e.n) largest = fmaxf(largest, fabsf(x[i]));
    const float scale = tr_code8_scale(tr_warp_max(largest));
    if (e.n <= 0) return;
    uint8_t code[8];
    for (int i = 0; i < 8; i++)
        code[i] =
            tr_code8_encode(x[i], scale, s.code, tr_code8_draw(tr_rounding_draw(half[i], s.use)));
    store_codes(e, code, static_cast<uint8_t *>(s.data));
    if (tr_lane() == 0) s.scales[e.at / TR_CODE8_BLOCK] = scale;
}

__device__ void store_states(const uint32_t (&half)[8], const tr_eight &e, float (&x)[8],
                             const state_memory &s) {
    if (s.dtype == TR_U8) encode(half, e, x, s);
    else if (e.n > 0) store_either(half, s.use, e, s.dtype == TR_BF16, x, s.data);
}

/* UPDATE, or else DIRECTION, of operands in fewer bits than FP32. A thread steps eight elements, as
 * many as share a Philox call, so a warp steps a block of codes. All its lanes take part, because
 * they find the block's largest number together. */
template <tr_update_rule RULE>
__global__ void update_narrow(tr_update_desc d, const tr_step_state *state, tr_cuda_update o,
                              bool steps, bool packs) {
    constexpr bool HAS_M = RULE != TR_UPDATE_SGD, HAS_V = RULE == TR_UPDATE_ADAMW;
    if (state->skip) return;
    const tr_update_scalars scalars = tr_update_round(&d, state);
    const state_memory mean = {d.state_dtype, d.code[0], o.m, o.m_scales, 0};
    const state_memory square = {d.state_dtype, d.code[1], o.v, o.v_scales, 1};
    const int64_t end = tr_code8_blocks(d.count) * TR_CODE8_BLOCK;
    for (int64_t at = 8 * tr_first_item(); at < end; at += 8 * tr_item_stride()) {
        const int64_t left = d.count - at;
        const tr_eight e = {at, left < 8 ? left : 8, packs};
        float g[8], w[8], m[8], v[8];
        uint32_t half[8] = {};
        if (d.rounding.boxes > 0 && e.n > 0)
            tr_draw_bits(d.rounding, state, o.sample, o.element + at, half);
        load_either(e, d.bf16_grad, o.grad, g);
        load_either(e, d.bf16_master, o.master, w);
        if (HAS_M) load_states(e, mean, m);
        if (HAS_V) load_states(e, square, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (steps) tr_update_element(&scalars, RULE, g[i], &w[i], &m[i], &v[i]);
            else g[i] = tr_update_direction(&scalars, RULE, g[i], w[i], &m[i], &v[i]);
        }
        if (HAS_M) store_states(half, e, m, mean);
        if (HAS_V) store_states(half, e, v, square);
        if (e.n <= 0) continue; /* after the shuffles, which all lanes must reach */
        if (!steps) {
            tr_store_eight(e, g, static_cast<float *>(o.u));
            continue;
        }
        store_either(half, TR_UPDATE_USE_MASTER, e, d.bf16_master, w, o.master);
        if (o.value) store_value(d.dtype, e, w, o.value);
    }
}

__global__ void descend_bf16(tr_descend_desc d, const tr_step_state *state, const double *norms,
                             tr_cuda_update o, bool packs) {
    if (state->skip) return;
    const tr_descend_scalars scalars = tr_descend_round(&d, state, norms);
    for (int64_t at = 8 * tr_first_item(); at < d.count; at += 8 * tr_item_stride()) {
        const tr_eight e = {at, d.count - at < 8 ? d.count - at : 8, packs};
        float u[8], w[8];
        uint32_t half[8];
        tr_draw_bits(d.rounding, state, o.sample, o.element + at, half);
        tr_load_eight(e, static_cast<const float *>(o.u), u);
        load_either(e, true, o.master, w);
        for (int i = 0; i < 8; i++) w[i] = tr_descend_element(&scalars, u[i], w[i]);
        store_either(half, TR_UPDATE_USE_MASTER, e, true, w, o.master);
    }
}

cudaError_t launch_update_narrow(cudaStream_t stream, const tr_update_desc &d,
                                 const tr_step_state *state, const tr_cuda_update &o, bool steps) {
    const bool packs = tr_aligned(o.grad, o.master, o.m, o.v, o.value, o.u);
    return dispatch_rule(d.rule, [=](auto constant) {
        return tr_launch(stream, tr_grid(d.count, 8 * TR_THREADS), TR_THREADS,
                         update_narrow<decltype(constant)::rule>, d, state, o, steps, packs);
    });
}

cudaError_t launch_descend_bf16(cudaStream_t stream, const tr_descend_desc *d,
                                const tr_step_state *state, const double *norms,
                                const tr_cuda_update *o) {
    return tr_launch(stream, tr_grid(d->count, 8 * TR_THREADS), TR_THREADS, descend_bf16, *d, state,
                     norms, *o, tr_aligned(o->master, o->u));
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
    if (is_narrow(d)) return launch_update_narrow(stream, *d, state, *o, true);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return launch_update<typename decltype(storage)::type, true>(stream, *d, state, *o);
    });
}

cudaError_t tr_cuda_launch_direction(cudaStream_t stream, const tr_update_desc *d,
                                     const tr_step_state *state, const tr_cuda_update *o) {
    if (is_narrow(d)) return launch_update_narrow(stream, *d, state, *o, false);
    return launch_update<float, false>(stream, *d, state, *o);
}

cudaError_t tr_cuda_launch_descend(cudaStream_t stream, const tr_descend_desc *d,
                                   const tr_step_state *state, const double *norms,
                                   const tr_cuda_update *o) {
    if (d->bf16_master) return launch_descend_bf16(stream, d, state, norms, o);
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
