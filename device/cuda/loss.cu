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

/* f(x) of every element of a row, each by one thread of the block. */
template <typename T, typename F> __device__ void for_row(const T *row, int64_t width, F f) {
    constexpr int n = row_packs<T>::size;
    const row_packs<T> parts(row, width);
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < parts.packs; i += LOSS_THREADS) {
        float v[n];
        tr_load(row + parts.pack(i), v);
#pragma unroll
        for (int j = 0; j < n; j++) f(v[j]);
    }
    for (int64_t i = threadIdx.x; i < parts.singles; i += LOSS_THREADS)
        f(tr_load_one(row + parts.single(i)));
}

template <typename T> __global__ void row_max(tr_xent_desc d, const T *logits, float *maxima) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        float largest = -INFINITY;
        for_row(logits + r * tr_xent_ld(&d), d.vocab,
                [&](float x) { largest = fmaxf(largest, x); });
        largest = tr_block_max<LOSS_THREADS>(largest);
        if (threadIdx.x == 0) maxima[r] = largest;
    }
}

template <typename T>
__global__ void row_sum(tr_xent_desc d, const T *logits, const int32_t *labels, const float *maxima,
                        float *sums) {
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        const T *row = logits + r * tr_xent_ld(&d);
        const float largest = maxima[r];
        float sum = 0;
        for_row(row, d.vocab, [&](float x) { sum += expf(x - largest); });
        sum = tr_block_sum<LOSS_THREADS>(sum);
        if (threadIdx.x == 0) {
            const int64_t column = tr_xent_column(&d, labels[r]);
            const float of_label = column >= 0 ? tr_load_one(row + column) - largest : 0.0f;
            sums[2 * r] = sum;
            sums[2 * r + 1] = of_label;
        }
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

/* logits = (softmax - onehot) * loss_scale in place; each element is read and written by one thread
 * alone. */
template <typename T>
__global__ void row_gradient(tr_xent_desc d, const tr_step_state *state, const int32_t *labels,
                             const float *maxima, const float *sums, T *logits) {
    constexpr int n = row_packs<T>::size;
    const float loss_scale = (float)state->loss_scale;
    for (int64_t r = blockIdx.x; r < d.rows; r += gridDim.x) {
        T *row = logits + r * tr_xent_ld(&d);
        const row_packs<T> parts(row, d.vocab);
        const float largest = maxima[r], factor = loss_scale / sums[2 * r];
        const bool counts = labels[r] >= 0;
        const int64_t of_label = tr_xent_column(&d, labels[r]);
        auto gradient = [&](int64_t column, float x) {
            const float softmax = expf(x - largest) * factor;
            return !counts ? 0.0f : column == of_label ? softmax - loss_scale : softmax;
        };
#pragma unroll 2
        for (int64_t i = threadIdx.x; i < parts.packs; i += LOSS_THREADS) {
            const int64_t column = parts.pack(i);
            float v[n];
            tr_load(row + column, v);
#pragma unroll
            for (int j = 0; j < n; j++) v[j] = gradient(column + j, v[j]);
            tr_store(row + column, v);
        }
        for (int64_t i = threadIdx.x; i < parts.singles; i += LOSS_THREADS) {
            const int64_t column = parts.single(i);
            tr_store_one(row + column, gradient(column, tr_load_one(row + column)));
        }
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
