/* Kernels of cross entropy: a block takes a row of logits, which may be a whole vocabulary long. */
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

enum { LOSS_THREADS = 512, SUM_THREADS = 1024 };

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

/* The first packs of a block's row in shared memory, or none. Every thread copies the packs that it
 * reads later, so no barrier stands between copy and passes. */
struct row_copy {
    tr_pack_words<4> *pack;
    int64_t packs;
};

/* Makes the copy, all packs at once. */
template <typename T> __device__ void copy_row(const T *row, int64_t width, row_copy copy) {
    const row_packs<T> parts(row, width);
    const int64_t packs = parts.packs < copy.packs ? parts.packs : copy.packs;
    for (int64_t i = threadIdx.x; i < packs; i += LOSS_THREADS)
        tr_copy_start(copy.pack + i, row + parts.pack(i));
    tr_copy_wait();
}

/* Loads the i-th pack of a row from `from`, or from the copy if it has the pack. */
template <bool COPIED, typename T, int N>
__device__ void load_pack(const T *from, row_copy copy, int64_t i, float (&v)[N]) {
    tr_pack_words<4> pack;
    if (COPIED && i < copy.packs) pack = copy.pack[i];
    else pack = *reinterpret_cast<const tr_pack_words<4> *>(from);
    tr_load(reinterpret_cast<const T *>(&pack), v);
}

/* f(x) of every element of a row, each by one thread of the block. */
template <bool COPIED, typename T, typename F>
__device__ void for_row(const T *row, int64_t width, row_copy copy, F f) {
    constexpr int n = row_packs<T>::size;
    const row_packs<T> parts(row, width);
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < parts.packs; i += LOSS_THREADS) {
        float v[n];
        load_pack<COPIED>(row + parts.pack(i), copy, i, v);
#pragma unroll
        for (int j = 0; j < n; j++) f(v[j]);
    }
    for (int64_t i = threadIdx.x; i < parts.singles; i += LOSS_THREADS)
        f(tr_load_one(row + parts.single(i)));
}

/* Every thread gets the row's largest logit. */
template <bool COPIED, typename T>
__device__ float take_max(const T *row, int64_t width, row_copy copy) {
    float largest = -INFINITY;
    for_row<COPIED>(row, width, copy, [&](float x) { largest = fmaxf(largest, x); });
    return tr_block_max<LOSS_THREADS>(largest);
}

/* Every thread gets sums[0]. The label's logit has been read before any thread returns. */
template <bool COPIED, typename T>
__device__ float take_sums(const tr_xent_desc &d, const T *row, row_copy copy, int32_t label,
                           float largest, float *sums) {
    if (threadIdx.x == 0) {
        const int64_t column = tr_xent_column(&d, label);
        sums[1] = column >= 0 ? tr_load_one(row + column) - largest : 0.0f;
    }
    float sum = 0;
    for_row<COPIED>(row, d.vocab, copy, [&](float x) { sum += expf(x - largest); });
    sum = tr_block_sum<LOSS_THREADS>(sum);
    if (threadIdx.x == 0) sums[0] = sum;
    return sum;
}

/* row = (softmax - onehot) * loss_scale in place; each element is read and written by one thread
 * alone. */
template <bool COPIED, typename T>
__device__ void take_gradient(const tr_xent_desc &d, T *row, row_copy copy, int32_t label,
                              float largest, float sum, float loss_scale) {
    constexpr int n = row_packs<T>::size;
    const row_packs<T> parts(row, d.vocab);
    const float factor = loss_scale / sum;
    const bool counts = label >= 0;
    const int64_t of_label = tr_xent_column(&d, label);
    auto scaled = [&](float x) { return counts ? expf(x - largest) * factor : 0.0f; };
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < parts.packs; i += LOSS_THREADS) {
        const int64_t column = parts.pack(i);
        float v[n];
        load_pack<COPIED>(row + column, copy, i, v);
#pragma unroll
        for (int j = 0; j < n; j++) v[j] = scaled(v[j]);
        if (of_label >= column && of_label < column + n) {
#pragma unroll
            for (int j = 0; j < n; j++)
                if (column + j == of_label) v[j] -= loss_scale;
        }
        tr_store(row + column, v);
    }
    for (int64_t i = threadIdx.x; i < parts.singles; i += LOSS_THREADS) {
        const int64_t column = parts.single(i);
        const float softmax = scaled(tr_load_one(row + column));
        tr_store_one(row + column, column == of_label ? softmax - loss_scale : softmax);
    }
}

template <typename T> __global__ void row_max(tr_xent_desc d, const T *logits, float *maxima) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        const float largest = take_max<false>(logits + r * tr_xent_ld(&d), d.vocab, {});
        if (threadIdx.x == 0) maxima[r] = largest;
    }
}

template <typename T>
__global__ void row_sum(tr_xent_desc d, const T *logits, const int32_t *labels, const float *maxima,
                        float *sums) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x)
        take_sums<false>(d, logits + r * tr_xent_ld(&d), {}, labels[r], maxima[r], &sums[2 * r]);
}

template <typename T>
__global__ void row_gradient(tr_xent_desc d, const tr_step_state *state, const int32_t *labels,
                             const float *maxima, const float *sums, T *logits) {
    const float loss_scale = (float)state->loss_scale;
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x)
        take_gradient<false>(d, logits + r * tr_xent_ld(&d), {}, labels[r], maxima[r], sums[2 * r],
                             loss_scale);
}

/* The three of them for one row after the other. The row is read from memory once, except for packs
 * beyond the first `copied`. */
template <typename T>
__global__ void __launch_bounds__(LOSS_THREADS, 2)
    row_xent(tr_xent_desc d, int64_t copied, const tr_step_state *state, const int32_t *labels,
             float *maxima, float *sums, T *logits) {
    const row_copy copy = {static_cast<tr_pack_words<4> *>(tr_block_memory()), copied};
    const float loss_scale = (float)state->loss_scale;
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        T *row = logits + r * tr_xent_ld(&d);
        const int32_t label = labels[r];
        copy_row(row, d.vocab, copy);
        const float largest = take_max<true>(row, d.vocab, copy);
        if (threadIdx.x == 0) maxima[r] = largest;
        const float sum = take_sums<true>(d, row, copy, label, largest, &sums[2 * r]);
        take_gradient<true>(d, row, copy, label, largest, sum, loss_scale);
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

cudaError_t tr_cuda_launch_xent(cudaStream_t stream, const tr_xent_desc *d, int64_t copied,
                                const tr_step_state *state, void *logits, const int32_t *labels,
                                float *maxima, float *sums) {
    const unsigned blocks = tr_grid(d->rows, 1);
    const int64_t row = d->vocab * (int64_t)tr_dtype_size(d->dtype);
    const int64_t packs = (row < copied ? row : copied) / 16;
    return tr_dispatch_type(d->dtype, [=](auto storage) {
        return tr_launch_with_memory(stream, blocks, LOSS_THREADS, (size_t)packs * 16,
                                     row_xent<typename decltype(storage)::type>, *d, packs, state,
                                     labels, maxima, sums, logits);
    });
}
