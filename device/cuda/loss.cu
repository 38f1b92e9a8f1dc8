/* Kernels of cross entropy: a block takes a row of logits, which may be a whole vocabulary long. */
#include "device/cuda/exponential.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

/* Packs that a thread of XENT holds in registers when the row is long: with 227 KiB of shared
 * memory a block holds 155,648 logits in 16 bits. */
enum { LOSS_THREADS = 512, SUM_THREADS = 1024, HELD_PACKS = 10 };

/* A row in packs of 16 bytes wherever it starts: columns 0 .. head one by one, then packs, then the
 * rest one by one. */
template <typename T> struct row_packs {
    static constexpr int size = 16 / sizeof(T);
    int64_t head, packs, singles;

    __device__ row_packs(const T *row, int64_t width) {
        const int64_t past = (int64_t)(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
        head = past == 0 ? 0 : size - past;
        if (head > width) head = width;
        packs = (width - head) / size;
        singles = width - packs * size;
    }
    /* Column of the i-th pack, and of the i-th single element. */
    __device__ int64_t pack(int64_t i) const {
        return head + i * size;
    }
    __device__ int64_t single(int64_t i) const {
        return i < head ? i : i + packs * size;
    }
};

/* A block's row. Its first `copied` packs are in shared memory, HELD * LOSS_THREADS more are in
 * registers, and each pass reads the rest again. A thread holds the packs that it uses, so no
 * barrier stands between copy and passes. */
template <typename T, int HELD> struct block_row {
    const T *row;
    row_packs<T> parts;
    tr_pack_words<4> *copy;
    int64_t copied; /* a multiple of LOSS_THREADS */
    tr_pack_words<4> held[HELD > 0 ? HELD : 1];

    __device__ block_row(const T *row, int64_t width, int64_t copied)
        : row(row), parts(row, width), copy(static_cast<tr_pack_words<4> *>(tr_block_memory())),
          copied(copied) {}

    /* Starts to read the i-th pack of `from` to its place; k: it is the thread's k-th in registers.
     * A wait for copies comes before the first use. */
    __device__ void start_copied(int64_t i, const T *from, const row_packs<T> &of) {
        if (i < of.packs) tr_copy_start(copy + i, from + of.pack(i));
    }
    __device__ void start_held(int k, int64_t i, const T *from, const row_packs<T> &of) {
        if (i < of.packs) held[k] = tr_load_raw<row_packs<T>::size>(from + of.pack(i));
    }
    __device__ void start() {
        for (int64_t i = threadIdx.x; i < copied; i += LOSS_THREADS) start_copied(i, row, parts);
#pragma unroll
        for (int k = 0; k < HELD; k++)
            start_held(k, copied + threadIdx.x + k * LOSS_THREADS, row, parts);
    }

    /* Calls f(i, pack) for the thread's packs in ascending order. If there is a next row, then
     * starts to read its pack to the place that is free. */
    template <typename F> __device__ void for_packs(F f, const T *next = nullptr) {
        const row_packs<T> next_parts = next ? row_packs<T>(next, width()) : parts;
        int64_t i = threadIdx.x;
#pragma unroll 2
        for (; i < copied; i += LOSS_THREADS) {
            if (i < parts.packs) f(i, copy[i]);
            if (next) start_copied(i, next, next_parts);
        }
#pragma unroll
        for (int k = 0; k < HELD; k++, i += LOSS_THREADS) {
            if (i < parts.packs) f(i, held[k]);
            if (next) start_held(k, i, next, next_parts);
        }
#pragma unroll 2
        for (; i < parts.packs; i += LOSS_THREADS)
            f(i, tr_load_raw<row_packs<T>::size>(row + parts.pack(i)));
    }
    /* Calls f(column) for the thread's single elements. */
    template <typename F> __device__ void for_singles(F f) const {
        for (int64_t i = threadIdx.x; i < parts.singles; i += LOSS_THREADS) f(parts.single(i));
    }
    __device__ int64_t width() const {
        return parts.packs * parts.size + parts.singles;
    }
    /* True for the thread that has the column. */
    __device__ bool has(int64_t column) const {
        const int64_t past = column - parts.head, packed = parts.packs * parts.size;
        const int64_t index = past < 0        ? column
                              : past < packed ? past / parts.size
                                              : column - packed;
        return column >= 0 && index % LOSS_THREADS == threadIdx.x;
    }
};

/* Every thread gets the row's largest logit. Elements of 16 bits are compared in pairs. */
template <typename T, int HELD> __device__ float take_max(block_row<T, HELD> &r) {
    float largest = -INFINITY;
    if constexpr (sizeof(T) == 4) {
        r.for_packs([&](int64_t, const tr_pack_words<4> &pack) {
            float v[4];
            tr_unpack<T>(pack, v);
#pragma unroll
            for (int j = 0; j < 4; j++) largest = fmaxf(largest, v[j]);
        });
    } else {
        uint32_t pair = T::pair(-INFINITY, -INFINITY);
        r.for_packs([&](int64_t, const tr_pack_words<4> &pack) {
#pragma unroll
            for (int j = 0; j < 4; j++) pair = T::larger(pair, pack.word[j]);
        });
        largest = fmaxf(T::widen((uint16_t)pair), T::widen((uint16_t)(pair >> 16)));
    }
    r.for_singles([&](int64_t column) { largest = fmaxf(largest, tr_load_one(r.row + column)); });
    return tr_block_max<LOSS_THREADS>(largest);
}

/* Every thread gets sums[0]. The label's logit has been read before any thread returns. */
template <typename T, int HELD>
__device__ float take_sums(const tr_xent_desc &d, block_row<T, HELD> &r, int32_t label,
                           float largest, float *sums) {
    constexpr int n = row_packs<T>::size;
    if (threadIdx.x == 0) {
        const int64_t column = tr_xent_column(&d, label);
        sums[1] = column >= 0 ? tr_load_one(r.row + column) - largest : 0.0f;
    }
    float sum = 0;
    r.for_packs([&](int64_t, const tr_pack_words<4> &pack) {
        float v[n];
        tr_unpack<T>(pack, v);
#pragma unroll
        for (int j = 0; j < n; j++) sum += tr_exp(v[j] - largest);
    });
    r.for_singles([&](int64_t column) { sum += tr_exp(tr_load_one(r.row + column) - largest); });
    sum = tr_block_sum<LOSS_THREADS>(sum);
    if (threadIdx.x == 0) sums[0] = sum;
    return sum;
}

/* to = (softmax - onehot) * loss_scale, where `to` is the row; each element is read and written by
 * one thread alone, which writes the label's again. Meanwhile starts to read the row `next`, unless
 * that is NULL. */
template <typename T, int HELD>
__device__ void take_gradient(const tr_xent_desc &d, block_row<T, HELD> &r, int32_t label,
                              float largest, float sum, float loss_scale, T *to, const T *next) {
    constexpr int n = row_packs<T>::size;
    const float factor = loss_scale / sum;
    const bool counts = label >= 0;
    const int64_t of_label = tr_xent_column(&d, label);
    const bool has_label = r.has(of_label);
    auto scaled = [&](float x) { return counts ? tr_exp(x - largest) * factor : 0.0f; };
    const float at_label = has_label ? scaled(tr_load_one(r.row + of_label)) - loss_scale : 0.0f;
    r.for_packs(
        [&](int64_t i, const tr_pack_words<4> &pack) {
            float v[n];
            tr_unpack<T>(pack, v);
#pragma unroll
            for (int j = 0; j < n; j++) v[j] = scaled(v[j]);
            tr_store(to + r.parts.pack(i), v);
        },
        next);
    r.for_singles(
        [&](int64_t column) { tr_store_one(to + column, scaled(tr_load_one(r.row + column))); });
    if (has_label) tr_store_one(to + of_label, at_label);
}

/* The row of a kernel that takes one pass. */
template <typename T>
__device__ block_row<T, 0> row_of(const tr_xent_desc &d, const T *logits, int64_t r) {
    return {logits + r * tr_xent_ld(&d), d.vocab, 0};
}

template <typename T> __global__ void row_max(tr_xent_desc d, const T *logits, float *maxima) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        block_row<T, 0> row = row_of(d, logits, r);
        const float largest = take_max(row);
        if (threadIdx.x == 0) maxima[r] = largest;
    }
}

template <typename T>
__global__ void row_sum(tr_xent_desc d, const T *logits, const int32_t *labels, const float *maxima,
                        float *sums) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        block_row<T, 0> row = row_of(d, logits, r);
        take_sums(d, row, labels[r], maxima[r], &sums[2 * r]);
    }
}

template <typename T>
__global__ void row_gradient(tr_xent_desc d, const tr_step_state *state, const int32_t *labels,
                             const float *maxima, const float *sums, T *logits) {
    const float loss_scale = (float)state->loss_scale;
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        T *to = logits + r * tr_xent_ld(&d);
        block_row<T, 0> row(to, d.vocab, 0);
        take_gradient<T>(d, row, labels[r], maxima[r], sums[2 * r], loss_scale, to, nullptr);
    }
}

/* The three of them for one row after the other. While a block writes a row's gradient, it reads
 * its next row. */
template <typename T, int HELD, int BLOCKS>
__global__ void __launch_bounds__(LOSS_THREADS, BLOCKS)
    row_xent(tr_xent_desc d, int64_t copied, const tr_step_state *state, const int32_t *labels,
             float *maxima, float *sums, T *logits) {
    const float loss_scale = (float)state->loss_scale;
    const int64_t stride = gridDim.x * tr_xent_ld(&d);
    T *to = logits + blockIdx.x * tr_xent_ld(&d);
    block_row<T, HELD> row(to, d.vocab, copied);
    row.start();
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        const T *next = r + gridDim.x < d.rows ? to + stride : nullptr;
        const int32_t label = labels[r];
        tr_copy_wait();
        const float largest = take_max(row);
        if (threadIdx.x == 0) maxima[r] = largest;
        const float sum = take_sums(d, row, label, largest, &sums[2 * r]);
        take_gradient(d, row, label, largest, sum, loss_scale, to, next);
        row.row = to += stride;
        row.parts = row_packs<T>(to, d.vocab);
    }
}

/* loss[2]: one block adds the rows' losses and counts them, in FP64. */
__global__ void loss_sum(int64_t rows, const int32_t *labels, const float *sums, double *loss) {
    double sum = 0, count = 0;
    for (int64_t r = threadIdx.x; r < rows; r += SUM_THREADS) {
        if (labels[r] < 0) continue;
        sum += tr_xent_row_loss(sums[2 * r], sums[2 * r + 1]);
        count += 1;
    }
    sum = tr_block_sum<SUM_THREADS>(sum);
    count = tr_block_sum<SUM_THREADS>(count);
    if (threadIdx.x == 0) {
        loss[0] = sum;
        loss[1] = count;
    }
}

} // namespace

cudaError_t tr_cuda_launch_xent_max(cudaStream_t stream, const tr_xent_desc *d, const void *logits,
                                    float *maxima) {
    const unsigned blocks = tr_grid(d->rows, 1);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return tr_launch(stream, blocks, LOSS_THREADS, row_max<typename decltype(storage)::type>,
                         *d, logits, maxima);
    });
}

cudaError_t tr_cuda_launch_xent_sum(cudaStream_t stream, const tr_xent_desc *d, const void *logits,
                                    const int32_t *labels, const float *maxima, float *sums) {
    const unsigned blocks = tr_grid(d->rows, 1);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return tr_launch(stream, blocks, LOSS_THREADS, row_sum<typename decltype(storage)::type>,
                         *d, logits, labels, maxima, sums);
    });
}

cudaError_t tr_cuda_launch_xent_loss(cudaStream_t stream, const tr_xent_desc *d,
                                     const int32_t *labels, const float *sums, double *loss) {
    return tr_launch(stream, 1, SUM_THREADS, loss_sum, d->rows, labels, sums, loss);
}

cudaError_t tr_cuda_launch_xent_dgrad(cudaStream_t stream, const tr_xent_desc *d,
                                      const tr_step_state *state, void *logits,
                                      const int32_t *labels, const float *maxima,
                                      const float *sums) {
    const unsigned blocks = tr_grid(d->rows, 1);
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return tr_launch(stream, blocks, LOSS_THREADS,
                         row_gradient<typename decltype(storage)::type>, *d, state, labels, maxima,
                         sums, logits);
    });
}

cudaError_t tr_cuda_launch_xent(cudaStream_t stream, const tr_xent_desc *d, int units,
                                int64_t shared, const tr_step_state *state, void *logits,
                                const int32_t *labels, float *maxima, float *sums) {
    const int64_t packs = d->vocab * (int64_t)tr_dtype_size(d->dtype) / 16;
    /* Packs that a block holds in shared memory. Two blocks share a multiprocessor if they hold
     * whole rows, so that one computes while the other waits. Of a block's memory 1 KiB is the
     * driver's, and the reductions have theirs. */
    const auto places = [=](int64_t blocks) {
        const int64_t most = (shared / blocks - 2048) / 16 / LOSS_THREADS;
        const int64_t needed = (packs + LOSS_THREADS - 1) / LOSS_THREADS;
        return (needed < most ? needed : most) * LOSS_THREADS;
    };
    const auto launch = [=](auto kernel, int64_t blocks) {
        const unsigned grid = tr_grid(d->rows < units * blocks ? d->rows : units * blocks, 1);
        return tr_launch_with_memory(stream, grid, LOSS_THREADS, (size_t)places(blocks) * 16,
                                     kernel, *d, places(blocks), state, labels, maxima, sums,
                                     logits);
    };
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        using T = typename decltype(storage)::type;
        return packs <= places(2) ? launch(row_xent<T, 0, 2>, 2)
                                  : launch(row_xent<T, HELD_PACKS, 1>, 1);
    });
}
