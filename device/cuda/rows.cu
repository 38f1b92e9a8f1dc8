/* Kernels of the element-wise operators, of the sum of each column, and of the sum of rows in
 * order. */
#include "device/cuda/activation.cuh"
#include "device/cuda/columns.cuh"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/pack.cuh"
#include "device/elementwise.h"

namespace {

struct sum {
    __device__ static float of(float a, float b) {
        return a + b;
    }
};
template <typename F> struct slope_of {
    __device__ static float of(float dy, float x) {
        return F::slope(dy, x);
    }
};
struct identity {
    __device__ static float of(float x) {
        return x;
    }
};

/* y = F(x) by packs of N; the last count % N elements one by one. */
template <typename F, int N, typename X, typename Y>
__global__ void map_one(int64_t count, const X *x, Y *y) {
    const int64_t packs = count / N;
    for (int64_t i = tr_first_item(); i < packs; i += tr_item_stride()) {
        float v[N];
        tr_load(x + i * N, v);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = F::of(v[j]);
        tr_store(y + i * N, v);
    }
    for (int64_t i = packs * N + tr_first_item(); i < count; i += tr_item_stride())
        tr_store_one(y + i, F::of(tr_load_one(x + i)));
}

/* y = F(a, b) in the same way; y may be a. */
template <typename F, int N, typename T>
__global__ void map_two(int64_t count, const T *a, const T *b, T *y) {
    const int64_t packs = count / N;
    for (int64_t i = tr_first_item(); i < packs; i += tr_item_stride()) {
        float v[N], w[N];
        tr_load(a + i * N, v);
        tr_load(b + i * N, w);
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = F::of(v[j], w[j]);
        tr_store(y + i * N, v);
    }
    for (int64_t i = packs * N + tr_first_item(); i < count; i += tr_item_stride())
        tr_store_one(y + i, F::of(tr_load_one(a + i), tr_load_one(b + i)));
}

template <typename F>
cudaError_t launch_two(cudaStream_t stream, tr_dtype dtype, int64_t count, const void *a,
                       const void *b, void *y) {
    return tr_dispatch(dtype, tr_aligned(a, b, y), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(count, S::pack * TR_THREADS), TR_THREADS,
                         map_two<F, S::pack, typename S::type>, count, a, b, y);
    });
}

/* A pack holds as many elements as 16 bytes of the wider type. */
template <typename X, typename Y>
cudaError_t launch_cast(cudaStream_t stream, int64_t count, const void *x, void *y) {
    constexpr int n = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
    unsigned blocks = tr_grid(count, n * TR_THREADS);
    return tr_aligned(x, y)
               ? tr_launch(stream, blocks, TR_THREADS, map_one<identity, n, X, Y>, count, x, y)
               : tr_launch(stream, blocks, TR_THREADS, map_one<identity, 1, X, Y>, count, x, y);
}

/* y[i] = x[0][i] + x[1][i] + ..., in this order, by packs of N: with N above 1 every row is whole
 * packs. y may be a row of x. */
template <int N, typename T>
__global__ void add_rows(int64_t rows, int64_t width, const T *x, T *y) {
    for (int64_t i = tr_first_item() * N; i < width; i += tr_item_stride() * N) {
        float sum[N], v[N];
        tr_load(x + i, sum);
        for (int64_t r = 1; r < rows; r++) {
            tr_load(x + r * width + i, v);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += v[j];
        }
        tr_store(y + i, sum);
    }
}

__global__ void add_rows_f64(int64_t rows, int64_t width, const double *x, double *y) {
    for (int64_t i = tr_first_item(); i < width; i += tr_item_stride()) {
        double sum = x[i];
        for (int64_t r = 1; r < rows; r++) sum += x[r * width + i];
        y[i] = sum;
    }
}

/* The column sum of BIAS_GRAD. */
template <typename T> struct bias_rows {
    const T *dy;
    int64_t width;
    template <int N> __device__ void add(int64_t row, int64_t column, float (&total)[1][N]) const {
        float v[N];
        tr_load(dy + row * width + column, v);
#pragma unroll
        for (int i = 0; i < N; i++) total[0][i] += v[i];
    }
};

} // namespace

cudaError_t tr_cuda_launch_add(cudaStream_t stream, tr_dtype dtype, int64_t count, const void *a,
                               const void *b, void *y) {
    return launch_two<sum>(stream, dtype, count, a, b, y);
}

cudaError_t tr_cuda_launch_cast(cudaStream_t stream, tr_dtype from, tr_dtype to, int64_t count,
                                const void *x, void *y) {
    return tr_dispatch_type(from, [=](auto source) {
        return tr_dispatch_type(to, [=](auto target) {
            return launch_cast<typename decltype(source)::type, typename decltype(target)::type>(
                stream, count, x, y);
        });
    });
}

cudaError_t tr_cuda_launch_add_rows(cudaStream_t stream, tr_dtype dtype, int64_t rows,
                                    int64_t width, const void *x, void *y) {
    if (dtype == TR_F64)
        return tr_launch(stream, tr_grid(width, TR_THREADS), TR_THREADS, add_rows_f64, rows, width,
                         x, y);
    return tr_dispatch(dtype, tr_rows_aligned(dtype, width, x, y), [=](auto storage) {
        using S = decltype(storage);
        return tr_launch(stream, tr_grid(width, S::pack * TR_THREADS), TR_THREADS,
                         add_rows<S::pack, typename S::type>, rows, width, x, y);
    });
}

cudaError_t tr_cuda_launch_activation(cudaStream_t stream, const tr_rows_desc *desc, const void *x,
                                      void *y) {
    const int64_t count = desc->rows * desc->width;
    return tr_dispatch_activation(desc->activation, [=](auto function) {
        return tr_dispatch(desc->dtype, tr_aligned(x, y), [=](auto storage) {
            using S = decltype(storage);
            using T = typename S::type;
            return tr_launch(stream, tr_grid(count, S::pack * TR_THREADS), TR_THREADS,
                             map_one<decltype(function), S::pack, T, T>, count, x, y);
        });
    });
}

cudaError_t tr_cuda_launch_activation_dgrad(cudaStream_t stream, const tr_rows_desc *desc,
                                            const void *dy, const void *x, void *dx) {
    return tr_dispatch_activation(desc->activation, [=](auto function) {
        return launch_two<slope_of<decltype(function)>>(stream, desc->dtype,
                                                        desc->rows * desc->width, dy, x, dx);
    });
}

cudaError_t tr_cuda_launch_bias_grad(cudaStream_t stream, tr_dtype dtype, int64_t rows,
                                     int64_t width, const void *dy, float *dbias, float *partial,
                                     bool adds) {
    return tr_dispatch(dtype, tr_rows_aligned(dtype, width, dy), [=](auto storage) {
        using S = decltype(storage);
        using T = typename S::type;
        float *const out[] = {dbias};
        return tr_launch_columns<S::pack, 1>(stream, rows, width,
                                             bias_rows<T>{static_cast<const T *>(dy), width},
                                             partial, out, adds);
    });
}
