#include "device/tensor.h"

#include "base/text.h"

#include <inttypes.h>

tr_tensor tr_tensor_dense(const void *data, tr_dtype dtype, int rank, const int64_t *shape) {
    tr_tensor t = {.data = (void *)data, .dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        t.shape[d] = shape[d];
        t.stride[d] = stride;
        stride *= shape[d];
    }
    return t;
}

tr_tensor tr_tensor_vector(const void *data, tr_dtype dtype, int64_t count) {
    return (tr_tensor){
        .data = (void *)data, .dtype = dtype, .rank = 1, .shape = {count}, .stride = {1}};
}

tr_tensor tr_tensor_matrix(const void *data, tr_dtype dtype, int64_t rows, int64_t columns) {
    return (tr_tensor){.data = (void *)data,
                       .dtype = dtype,
                       .rank = 2,
                       .shape = {rows, columns},
                       .stride = {columns, 1}};
}

tr_tensor tr_tensor_reshape(tr_tensor tensor, int rank, const int64_t *shape) {
    return tr_tensor_dense(tensor.data, tensor.dtype, rank, shape);
}

tr_tensor tr_tensor_rows(tr_tensor tensor, int64_t begin, int64_t count) {
    if (tensor.data)
        tensor.data =
            (char *)tensor.data + (size_t)(begin * tensor.stride[0]) * tr_dtype_size(tensor.dtype);
    tensor.shape[0] = count;
    return tensor;
}

tr_tensor tr_tensor_narrow(tr_tensor tensor, int64_t count) {
    tensor.shape[tensor.rank - 1] = count;
    return tensor;
}

int64_t tr_tensor_count(const tr_tensor *tensor) {
    int64_t count = 1;
    for (int d = 0; d < tensor->rank; d++) count *= tensor->shape[d];
    return count;
}

size_t tr_tensor_bytes(const tr_tensor *tensor) {
    return (size_t)tr_tensor_count(tensor) * tr_dtype_size(tensor->dtype);
}

size_t tr_tensor_extent(const tr_tensor *tensor) {
    if (tr_tensor_count(tensor) == 0) return 0;
    int64_t last = 0;
    for (int d = 0; d < tensor->rank; d++) last += (tensor->shape[d] - 1) * tensor->stride[d];
    return (size_t)(last + 1) * tr_dtype_size(tensor->dtype);
}

/* Returns the tensor without dimensions of one element. Does not merge adjacent dimensions. */
static tr_tensor squeeze(const tr_tensor *tensor) {
    tr_tensor t = {.dtype = tensor->dtype};
    for (int d = 0; d < tensor->rank; d++) {
        if (tensor->shape[d] == 1) continue;
        t.shape[t.rank] = tensor->shape[d];
        t.stride[t.rank++] = tensor->stride[d];
    }
    return t;
}

/* Merges dimensions of t from *d on until they have `count` elements, and sets *d to the last one.
 * Returns false when they never do, or are not dense. */
static bool merge(const tr_tensor *t, int64_t count, int *d) {
    int64_t have = t->shape[*d];
    while (have < count) {
        if (++*d == t->rank || t->stride[*d - 1] != t->shape[*d] * t->stride[*d]) return false;
        have *= t->shape[*d];
    }
    return have == count;
}

bool tr_tensor_alike(const tr_tensor *a, const tr_tensor *b) {
    if (a->dtype != b->dtype) return false;
    if (tr_tensor_count(a) == 0) return tr_tensor_count(b) == 0;
    const tr_tensor x = squeeze(a), y = squeeze(b);
    int i = 0, j = 0;
    for (; i < x.rank && j < y.rank; i++, j++) {
        bool fits = x.shape[i] < y.shape[j] ? merge(&x, y.shape[j], &i) : merge(&y, x.shape[i], &j);
        if (!fits || x.stride[i] != y.stride[j]) return false;
    }
    return i == x.rank && j == y.rank;
}

const char *tr_tensor_text(const tr_tensor *tensor, char *text, size_t size) {
    const tr_tensor dense = tr_tensor_dense(NULL, tensor->dtype, tensor->rank, tensor->shape);
    if (size > 0) text[0] = '\0';
    tr_text_add(text, size, "%s (", tr_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->rank; d++)
        tr_text_add(text, size, "%s%" PRId64, d ? ", " : "", tensor->shape[d]);
    tr_text_add(text, size, ")");
    if (tr_tensor_alike(tensor, &dense)) return text;
    for (int d = 0; d < tensor->rank; d++)
        tr_text_add(text, size, "%s%" PRId64, d ? ", " : " with strides ", tensor->stride[d]);
    return text;
}
