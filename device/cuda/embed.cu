/* Kernels of the token and position embeddings. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"

namespace {

/* --- forward: a warp takes a row -------------------------------------------------------------- */

template <typename T, int N>
__global__ void embed(tr_embed_desc d, const int32_t *tokens, const T *table, T *y) {
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride()) {
        const int64_t entry = (int64_t)tokens[r] - d.vocab_begin;
        const bool here = entry >= 0 && entry < d.vocab;
        for (int64_t c = tr_lane() * N; c < d.width; c += TR_WARP * N) {
            float v[N] = {};
            if (here) tr_load(table + entry * d.width + c, v);
            tr_store(y + r * d.width + c, v);
        }
    }
}

/* y may be x. A decoding position outside the table gives NaN, because a kernel cannot fail. */
template <typename T, int N>
__global__ void position(tr_embed_desc d, const tr_step_state *state, const T *x, const T *table,
                         const int32_t *starts, T *y) {
    for (int64_t r = tr_first_row(); r < d.rows; r += tr_row_stride()) {
        const int64_t entry =
            tr_token_position(d.decode, d.seq, state, d.first + r) - (starts ? starts[r] : 0);
        const bool here = entry >= 0 && entry < d.seq;
        for (int64_t c = tr_lane() * N; c < d.width; c += TR_WARP * N) {
            float v[N], e[N];
            tr_load(x + r * d.width + c, v);
            if (here) tr_load(table + entry * d.width + c, e);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = here ? v[i] + e[i] : NAN;
            tr_store(y + r * d.width + c, v);
        }
    }
}

/* --- POSITION_WGRAD without documents: a thread takes a pack of the table, adds in row order -- */

template <typename T, int N>
__global__ void position_wgrad(int64_t batch, int64_t count, const T *dy, float *table) {
    for (int64_t i = tr_first_item() * N; i < count; i += tr_item_stride() * N) {
        float sum[N], v[N];
        tr_load(table + i, sum);
#pragma unroll 4
        for (int64_t b = 0; b < batch; b++) {
            tr_load(dy + b * count + i, v);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += v[j];
        }
        tr_store(table + i, sum);
    }
}

/* --- EMBED_WGRAD, and POSITION_WGRAD with documents -------------------------------------------- *
 * Rows are sorted by (entry, row): keys that all differ, so their order is unique whatever sorts
 * them. Then the first row of each entry adds up the rows of that entry, in row order. */

constexpr int64_t SORT_THREADS = 1024, SORT_KEYS = 2 * SORT_THREADS;

__device__ int64_t key_entry(uint64_t key) {
    return (int64_t)(key >> 32);
}
__device__ int64_t key_row(uint64_t key) {
    return (int64_t)(key & 0xffffffffu);
}

/* keys[padded] of the rows' tokens, or of their positions after `starts`: rows of other ranks'
 * tokens and the padding come last. */
__global__ void make_keys(tr_embed_desc d, int64_t padded, const int32_t *tokens,
                          const int32_t *starts, uint64_t *keys) {
    const int64_t entries = tokens ? d.vocab : d.seq;
    for (int64_t r = tr_first_item(); r < padded; r += tr_item_stride()) {
        int64_t entry = -1;
        if (r < d.rows) entry = tokens ? (int64_t)tokens[r] - d.vocab_begin : r % d.seq - starts[r];
        keys[r] = entry >= 0 && entry < entries ? (uint64_t)entry << 32 | (uint64_t)r : UINT64_MAX;
    }
}

/* Puts keys[low] and keys[low + away] into the order of the run of `run` keys that holds them:
 * ascending in even runs, descending in odd ones. `at` is the place of keys[0] among all. */
__device__ void compare_exchange(uint64_t *keys, int64_t at, int64_t low, int64_t away,
                                 int64_t run) {
    const uint64_t a = keys[low], b = keys[low + away];
    const bool ascending = ((at + low) & run) == 0;
    if ((a > b) == ascending) {
        keys[low] = b;
        keys[low + away] = a;
    }
}

/* Batcher's bitonic sort (1968) of 2^k keys, where thread i handles the pair with the i-th index
 * without the bit `away` as its first key. Stages with pairs within SORT_KEYS keys run in shared
 * memory, a block at a time: those of all runs up to SORT_KEYS (first_run = 2), or the last stages
 * of one longer run. */
__device__ int64_t pair_low(int64_t i, int64_t away) {
    return 2 * i - (i & (away - 1));
}

__global__ void sort_shared(int64_t padded, int64_t first_run, int64_t last_run, uint64_t *keys) {
    __shared__ uint64_t block[SORT_KEYS];
    for (int64_t at = (int64_t)blockIdx.x * SORT_KEYS; at < padded;
         at += (int64_t)gridDim.x * SORT_KEYS) {
        for (int k = 0; k < 2; k++) {
            const int64_t i = threadIdx.x + k * SORT_THREADS;
            block[i] = at + i < padded ? keys[at + i] : UINT64_MAX;
        }
        __syncthreads();
        for (int64_t run = first_run; run <= last_run; run *= 2)
            for (int64_t away = run / 2 < SORT_THREADS ? run / 2 : SORT_THREADS; away > 0;
                 away /= 2) {
                compare_exchange(block, at, pair_low(threadIdx.x, away), away, run);
                __syncthreads();
            }
        for (int k = 0; k < 2; k++) {
            const int64_t i = threadIdx.x + k * SORT_THREADS;
            if (at + i < padded) keys[at + i] = block[i];
        }
        __syncthreads();
    }
}

__global__ void sort_stage(int64_t padded, int64_t away, int64_t run, uint64_t *keys) {
    for (int64_t i = tr_first_item(); i < padded / 2; i += tr_item_stride())
        compare_exchange(keys, 0, pair_low(i, away), away, run);
}

cudaError_t sort_keys(cudaStream_t stream, int64_t padded, uint64_t *keys) {
    const unsigned blocks = tr_grid(padded, SORT_KEYS), stage_blocks = tr_grid(padded, 512);
    const int64_t within = padded < SORT_KEYS ? padded : SORT_KEYS;
    TR_LAUNCH(
        tr_launch(stream, blocks, SORT_THREADS, sort_shared, padded, (int64_t)2, within, keys));
    for (int64_t run = 2 * SORT_KEYS; run <= padded; run *= 2) {
        for (int64_t away = run / 2; away >= SORT_KEYS; away /= 2)
            TR_LAUNCH(
                tr_launch(stream, stage_blocks, TR_THREADS, sort_stage, padded, away, run, keys));
        TR_LAUNCH(tr_launch(stream, blocks, SORT_THREADS, sort_shared, padded, run, run, keys));
    }
    return cudaSuccess;
}

/* Returns the index after the last key of keys[i]'s entry. Most entries have few keys, so it
 * searches with growing steps first: every reading waits for the one before. */
__device__ int64_t entry_end(const uint64_t *keys, int64_t i, int64_t rows) {
    const int64_t entry = key_entry(keys[i]);
    int64_t low = i + 1, high = low; /* keys before low are of this entry, from high on are not */
    for (int64_t step = 1; high < rows && key_entry(keys[high]) == entry; step *= 2) {
        low = high + 1;
        high = low + step < rows ? low + step : rows;
    }
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (key_entry(keys[middle]) == entry) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* A warp takes a sorted key and 32 packs of columns; all but the first key of an entry are done at
 * once. The table starts the sum, so that each row's gradient is added to it in turn. */
template <typename T, int N>
__global__ void add_rows(int64_t rows, int64_t width, const uint64_t *keys, const T *dy,
                         float *table) {
    const int64_t tiles = (width + TR_WARP * N - 1) / (TR_WARP * N);
    for (int64_t task = tr_first_row(); task < rows * tiles; task += tr_row_stride()) {
        const int64_t i = task % rows, column = (task / rows * TR_WARP + tr_lane()) * N;
        if (column >= width || keys[i] == UINT64_MAX) continue;
        const int64_t entry = key_entry(keys[i]);
        if (i > 0 && key_entry(keys[i - 1]) == entry) continue;
        const int64_t end = entry_end(keys, i, rows);
        float *to = table + entry * width + column;
        float sum[N], v[N];
        tr_load(to, sum);
#pragma unroll 4
        for (int64_t k = i; k < end; k++) {
            tr_load(dy + key_row(keys[k]) * width + column, v);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += v[j];
        }
        tr_store(to, sum);
    }
}

/* Adds the rows of dy to the table's entries by tokens or starts; the other one is NULL. */
cudaError_t add_sorted(cudaStream_t stream, const tr_embed_desc *d, const void *dy,
                       const int32_t *tokens, const int32_t *starts, float *table, uint64_t *keys) {
    const int64_t rows = d->rows, width = d->width, padded = tr_cuda_sort_keys(rows);
    TR_LAUNCH(tr_launch(stream, tr_grid(padded, TR_THREADS), TR_THREADS, make_keys, *d, padded,
                        tokens, starts, keys));
    TR_LAUNCH(sort_keys(stream, padded, keys));
    return tr_dispatch(d->dtype, tr_rows_aligned(d->dtype, width, dy, table), [=](auto storage) {
        using S = decltype(storage);
        const int64_t tiles = (width + TR_WARP * S::pack - 1) / (TR_WARP * S::pack);
        return tr_launch(stream, tr_grid(rows * tiles, TR_WARPS), TR_THREADS,
                         add_rows<typename S::type, S::pack>, rows, width, keys, dy, table);
    });
}

} // namespace

cudaError_t tr_cuda_launch_embed(cudaStream_t stream, const tr_embed_desc *d, const int32_t *tokens,
                                 const void *table, void *y) {
    const tr_embed_desc desc = *d;
    return tr_dispatch(d->dtype, tr_rows_aligned(d->dtype, d->width, table, y), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(desc.rows, TR_WARPS), TR_THREADS,
                         embed<typename S::type, S::pack>, desc, tokens, table, y);
    });
}

cudaError_t tr_cuda_launch_position(cudaStream_t stream, const tr_embed_desc *d,
                                    const tr_step_state *state, const void *x, const void *table,
                                    const int32_t *starts, void *y) {
    const tr_embed_desc desc = *d;
    bool packs = tr_rows_aligned(d->dtype, d->width, x, table, y);
    return tr_dispatch(d->dtype, packs, [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(desc.rows, TR_WARPS), TR_THREADS,
                         position<typename S::type, S::pack>, desc, state, x, table, starts, y);
    });
}

cudaError_t tr_cuda_launch_position_wgrad(cudaStream_t stream, const tr_embed_desc *d,
                                          const void *dy, const int32_t *starts, float *table,
                                          uint64_t *keys) {
    if (starts) return add_sorted(stream, d, dy, NULL, starts, table, keys);
    const int64_t batch = d->rows / d->seq, count = d->seq * d->width;
    return tr_dispatch(d->dtype, tr_rows_aligned(d->dtype, count, dy, table), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(count, S::pack * TR_THREADS), TR_THREADS,
                         position_wgrad<typename S::type, S::pack>, batch, count, dy, table);
    });
}

cudaError_t tr_cuda_launch_embed_wgrad(cudaStream_t stream, const tr_embed_desc *d, const void *dy,
                                       const int32_t *tokens, float *table, uint64_t *keys) {
    return add_sorted(stream, d, dy, tokens, NULL, table, keys);
}
