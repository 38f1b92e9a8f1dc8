/* Tensors: where elements lie and what they are. An operator's operands are tensors; a device reads
 * their addresses, and what it was prepared for tells the rest, which debug builds compare. */
#pragma once

#include "base/dtype.h"

#include <stdbool.h>

enum { TR_TENSOR_RANK = 5 };

/* Element (i, j, ...) is i * stride[0] + j * stride[1] + ... elements behind `data`. A tensor whose
 * data is NULL is absent. */
typedef struct tr_tensor {
    void *data;
    tr_dtype dtype;
    int rank;
    int64_t shape[TR_TENSOR_RANK], stride[TR_TENSOR_RANK];
    float *scale, *amax; /* device memory, or NULL: a factor of all elements, and the largest |x| */
} tr_tensor;

/* A dense, row-major tensor. An operator that takes it as an input does not write through it,
 * though the data may be const. */
tr_tensor tr_tensor_dense(const void *data, tr_dtype dtype, int rank, const int64_t *shape);
/* Dense tensors of one and of two dimensions. */
tr_tensor tr_tensor_vector(const void *data, tr_dtype dtype, int64_t count);
tr_tensor tr_tensor_matrix(const void *data, tr_dtype dtype, int64_t rows, int64_t columns);
/* The elements of a dense tensor in another shape. */
tr_tensor tr_tensor_reshape(tr_tensor tensor, int rank, const int64_t *shape);
/* Rows [begin, begin + count) of the first dimension. */
tr_tensor tr_tensor_rows(tr_tensor tensor, int64_t begin, int64_t count);
/* The first `count` elements of every row: of the last dimension. */
tr_tensor tr_tensor_narrow(tr_tensor tensor, int64_t count);

int64_t tr_tensor_count(const tr_tensor *tensor);
/* Bytes of all elements, without those between rows that lie apart. */
size_t tr_tensor_bytes(const tr_tensor *tensor);

/* True when both have the same elements in the same places: dtype, shape and strides are equal, or
 * neighbouring dimensions of one are one dimension of the other, as in (batch * seq, width) and
 * (batch, seq, heads, head_size). Dimensions of one element do not count. The data are not
 * compared.
 */
bool tr_tensor_alike(const tr_tensor *a, const tr_tensor *b);

/* "bf16 (8, 32)", with strides where the rows lie apart, in text[size]; returns text. */
const char *tr_tensor_text(const tr_tensor *tensor, char *text, size_t size);
