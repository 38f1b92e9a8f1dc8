/* Kernels of UPDATE, DIRECTION and DESCEND of operands in fewer bits than FP32. They take the
 * types as constants: at the rates of memory an element of few bytes leaves time for few
 * instructions. */
#include "device/cuda/eight.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/rounding.cuh"
#include "device/cuda/rules.cuh"

#include <type_traits>

namespace {

/* Codes of base/code8.h in memory. */
struct tr_codes {
    uint8_t bits;
};

/* Where a state is, how it is coded, and by which use it is rounded. */
struct state_memory {
    void *data;
    float *scales;
    tr_code8 code;
    int use;
};

/* Calls work(constant) with the rule as a constant, of those with so many states. */
template <int STATES, typename F> __device__ void with_rule(tr_update_rule rule, F work) {
    if (STATES == 0) work(tr_rule_constant<TR_UPDATE_SGD>{});
    else if (STATES == 2) work(tr_rule_constant<TR_UPDATE_ADAMW>{});
    else if (rule == TR_UPDATE_MOMENTUM) work(tr_rule_constant<TR_UPDATE_MOMENTUM>{});
    else if (rule == TR_UPDATE_LION) work(tr_rule_constant<TR_UPDATE_LION>{});
    else work(tr_rule_constant<TR_UPDATE_ROOT>{});
}

template <tr_code8 CODE> struct code_constant { static constexpr tr_code8 code = CODE; };

/* Calls work(constant) with the code as a constant, of those that rules with so many states have.
 */
template <int STATES, typename F> __device__ void with_code(tr_code8 code, F work) {
    if (code == TR_CODE8_SQUARES) work(code_constant<TR_CODE8_SQUARES>{});
    else if (STATES == 1 && code == TR_CODE8_EVEN) work(code_constant<TR_CODE8_EVEN>{});
    else work(code_constant<TR_CODE8_SIGNED>{});
}

static_assert(8 * TR_WARP == TR_CODE8_BLOCK, "a warp steps a block of codes");

/* Loads eight codes. */
template <bool WHOLE>
__device__ tr_pack_words<2> load_codes(const tr_eight<WHOLE> &e, const tr_codes *from) {
    if constexpr (WHOLE) return *reinterpret_cast<const tr_pack_words<2> *>(from + e.at);
    tr_pack_words<2> pack = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < e.n) pack.word[i / 4] |= (uint32_t)from[e.at + i].bits << 8 * (i % 4);
    return pack;
}

/* Stores eight codes. */
template <bool WHOLE>
__device__ void store_codes(const tr_eight<WHOLE> &e, const tr_pack_words<2> &pack, tr_codes *to) {
    if constexpr (WHOLE) {
        tr_store_raw(to + e.at, pack);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < e.n) to[e.at + i].bits = (uint8_t)(pack.word[i / 4] >> 8 * (i % 4));
    }
}

/* Loads eight states. A warp has a block of codes. */
template <int STATES, typename S, bool WHOLE>
__device__ void load_states(const tr_eight<WHOLE> &e, const state_memory &s, float (&x)[8]) {
    const S *from = static_cast<const S *>(s.data);
    if constexpr (!std::is_same<S, tr_codes>::value) {
        tr_load_eight(e, from, x);
    } else {
        const tr_pack_words<2> pack = load_codes(e, from);
        const float scale = e.n > 0 ? s.scales[e.at / TR_CODE8_BLOCK] : 0.0f;
        with_code<STATES>(s.code, [&](auto constant) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = tr_code8_decode((uint8_t)(pack.word[i / 4] >> 8 * (i % 4)), scale,
                                       decltype(constant)::code);
        });
    }
}

/* Encodes a block of which each lane of the warp has eight numbers. */
template <int STATES, bool WHOLE>
__device__ void encode(const tr_eight<WHOLE> &e, const float (&x)[8], tr_philox half,
                       const state_memory &s) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < e.n) largest = fmaxf(largest, fabsf(x[i]));
    const float scale = tr_code8_scale(tr_warp_max(largest));
    if (e.n <= 0) return;
    uint32_t code[8];
    with_code<STATES>(s.code, [&](auto constant) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            code[i] = tr_code8_encode_high(x[i], scale, decltype(constant)::code,
                                           tr_code8_draw(tr_draw_of(half, i, s.use)));
    });
    const tr_pack_words<2> pack = {{tr_upper_bytes(code[0], code[1], code[2], code[3]),
                                    tr_upper_bytes(code[4], code[5], code[6], code[7])}};
    store_codes(e, pack, static_cast<tr_codes *>(s.data));
    if (tr_lane() == 0) s.scales[e.at / TR_CODE8_BLOCK] = scale;
}

/* Stores numbers, rounded if they are to be BF16. */
template <typename T, bool WHOLE>
__device__ void store_rounded(const tr_eight<WHOLE> &e, const float (&x)[8], tr_philox half,
                              int use, T *to) {
    if (e.n <= 0) return;
    if constexpr (std::is_same<T, tr_bf16>::value) tr_round_eight(e, x, half, use, to);
    else tr_store_eight(e, x, to);
}

/* Stores eight states, for which all lanes of the warp must take part. */
template <int STATES, typename S, bool WHOLE>
__device__ void store_states(const tr_eight<WHOLE> &e, const float (&x)[8], tr_philox half,
                             const state_memory &s) {
    if constexpr (std::is_same<S, tr_codes>::value) encode<STATES>(e, x, half, s);
    else store_rounded(e, x, half, s.use, static_cast<S *>(s.data));
}

template <bool WHOLE>
__device__ void store_value(tr_dtype dtype, const tr_eight<WHOLE> &e, const float (&x)[8],
                            void *to) {
    if (dtype == TR_BF16) tr_store_eight(e, x, static_cast<tr_bf16 *>(to));
    else if (dtype == TR_F16) tr_store_eight(e, x, static_cast<tr_f16 *>(to));
    else tr_store_eight(e, x, static_cast<float *>(to));
}

/* Changes gradients to those that the rules see. Mostly that is one product, which is then all that
 * an element takes. */
__device__ void see(const tr_update_scalars &s, const float (&w)[8], float (&g)[8]) {
    if (s.clamps || s.regular) {
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = tr_update_gradient(&s, g[i], w[i]);
    } else {
        tr_update_scalars plain = s;
        plain.clamps = plain.regular = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = tr_update_gradient(&plain, g[i], w[i]);
    }
}

/* UPDATE, or else DIRECTION, of gradients G, masters W and STATES states S. A thread steps eight
 * elements, as many as share a Philox call, so a warp steps a block of codes. All its lanes take
 * part, because they find the block's largest number together. */
template <int STATES, typename G, typename W, typename S>
__global__ void __launch_bounds__(TR_THREADS, 3)
    update_narrow(tr_update_desc d, const tr_step_state *state, tr_cuda_update o, bool steps,
                  bool packs) {
    constexpr bool HAS_M = STATES > 0, HAS_V = STATES > 1;
    if (state->skip) return;
    const tr_update_scalars scalars = tr_update_round(&d, state);
    const state_memory mean = {o.m, o.m_scales, d.code[0], 0},
                       square = {o.v, o.v_scales, TR_CODE8_SQUARES, 1};
    const bool rounds =
        (HAS_M && !std::is_same<S, float>::value) || (steps && std::is_same<W, tr_bf16>::value);
    tr_draws draws = tr_draws_begin(d.rounding, state, o.sample);
    tr_each_eight(d.count, packs, [&](auto e) {
        float g[8], w[8], m[8], v[8], u[8];
        tr_philox half = {};
        tr_load_eight(e, static_cast<const G *>(o.grad), g);
        tr_load_eight(e, static_cast<const W *>(o.master), w);
        if (HAS_M) load_states<STATES, S>(e, mean, m);
        if (HAS_V) load_states<STATES, S>(e, square, v);
        if (rounds && e.n > 0) half = tr_draws_of(draws, o.element + e.at);
        see(scalars, w, g);
        with_rule<STATES>(d.rule, [&](auto constant) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                u[i] =
                    tr_update_follow(&scalars, decltype(constant)::rule, g[i], w[i], &m[i], &v[i]);
        });
        if (HAS_M) store_states<STATES, S>(e, m, half, mean);
        if (HAS_V) store_states<STATES, S>(e, v, half, square);
        if (e.n <= 0) return; /* after the shuffles, which all lanes must reach */
        if (!steps) {
            tr_store_eight(e, u, static_cast<float *>(o.u));
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = tr_update_step(&scalars, w[i], u[i]);
        store_rounded(e, w, half, TR_UPDATE_USE_MASTER, static_cast<W *>(o.master));
        if (std::is_same<W, float>::value && o.value) store_value(d.dtype, e, w, o.value);
    });
}

__global__ void descend_bf16(tr_descend_desc d, const tr_step_state *state, const double *norms,
                             tr_cuda_update o, bool packs) {
    if (state->skip) return;
    const tr_descend_scalars scalars = tr_descend_round(&d, state, norms);
    tr_bf16 *master = static_cast<tr_bf16 *>(o.master);
    tr_draws draws = tr_draws_begin(d.rounding, state, o.sample);
    tr_each_eight(d.count, packs, [&](auto e) {
        if (e.n <= 0) return;
        float u[8], w[8];
        tr_load_eight(e, static_cast<const float *>(o.u), u);
        tr_load_eight(e, master, w);
        const tr_philox half = tr_draws_of(draws, o.element + e.at);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = tr_descend_element(&scalars, u[i], w[i]);
        tr_round_eight(e, w, half, TR_UPDATE_USE_MASTER, master);
    });
}

template <typename T> struct type_constant { using type = T; };

/* Calls launch(constant) with FP32 or BF16 as a constant. */
template <typename F> cudaError_t dispatch_bf16(bool bf16, F launch) {
    return bf16 ? launch(type_constant<tr_bf16>{}) : launch(type_constant<float>{});
}

/* Calls launch(constant) with the type of the states as a constant. */
template <typename F> cudaError_t dispatch_states(tr_dtype dtype, F launch) {
    if (dtype == TR_U8) return launch(type_constant<tr_codes>{});
    return dispatch_bf16(dtype == TR_BF16, launch);
}

template <int STATES, typename S>
cudaError_t launch_update(cudaStream_t stream, const tr_update_desc &d, const tr_step_state *state,
                          const tr_cuda_update &o, bool steps) {
    const bool packs = tr_aligned(o.grad, o.master, o.m, o.v, o.value, o.u);
    return dispatch_bf16(d.bf16_grad, [=](auto grad) {
        using G = typename decltype(grad)::type;
        return dispatch_bf16(d.bf16_master, [=](auto master) {
            using W = typename decltype(master)::type;
            constexpr bool NARROW =
                STATES == 0 || !(std::is_same<G, float>::value && std::is_same<W, float>::value &&
                                 std::is_same<S, float>::value);
            if constexpr (NARROW)
                return tr_launch(stream, tr_grid_eight(d.count), TR_THREADS,
                                 update_narrow<STATES, G, W, S>, d, state, o, steps, packs);
            return cudaErrorInvalidConfiguration; /* the caller has FP32 kernels for these */
        });
    });
}

} // namespace

cudaError_t tr_cuda_launch_update_narrow(cudaStream_t stream, const tr_update_desc *d,
                                         const tr_step_state *state, const tr_cuda_update *o,
                                         bool steps) {
    if (d->rule == TR_UPDATE_SGD) return launch_update<0, float>(stream, *d, state, *o, steps);
    return dispatch_states(d->state_dtype, [=](auto states) {
        using S = typename decltype(states)::type;
        return d->rule == TR_UPDATE_ADAMW ? launch_update<2, S>(stream, *d, state, *o, steps)
                                          : launch_update<1, S>(stream, *d, state, *o, steps);
    });
}

cudaError_t tr_cuda_launch_descend_bf16(cudaStream_t stream, const tr_descend_desc *d,
                                        const tr_step_state *state, const double *norms,
                                        const tr_cuda_update *o) {
    return tr_launch(stream, tr_grid_eight(d->count), TR_THREADS, descend_bf16, *d, state, norms,
                     *o, tr_aligned(o->master, o->u));
}
