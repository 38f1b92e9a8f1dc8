/* Tensors: address, type, shape and strides of elements. An operator's operands are tensors. A
 * device only reads their addresses and takes the rest from the prepared description; debug builds
 * compare both. */
#pragma once

#include "base/dtype.h"

#include <stdbool.h>

enum { TR_TENSOR_RANK = 5 };

/* Element (i, j, ...) is i * stride[0] + j * stride[1] + ... elements after `data`. A tensor with
 * data NULL is absent. */
typedef struct tr_tensor {
    void *data;
    tr_dtype dtype;
    int rank;
    int64_t shape[TR_TENSOR_RANK], stride[TR_TENSOR_RANK];
} tr_tensor;

/* Returns a dense, row-major tensor. The data may be const, because operators do not write to their
 * inputs. */
tr_tensor tr_tensor_dense(const void *data, tr_dtype dtype, int rank, const int64_t *shape);
/* Return dense tensors of one and of two dimensions. */
tr_tensor tr_tensor_vector(const void *data, tr_dtype dtype, int64_t count);
tr_tensor tr_tensor_matrix(const void *data, tr_dtype dtype, int64_t rows, int64_t columns);
/* Returns a dense tensor with another shape. */
tr_tensor tr_tensor_reshape(tr_tensor tensor, int rank, const int64_t *shape);
/* Returns rows [begin, begin + count) of the first dimension. */
tr_tensor tr_tensor_rows(tr_tensor tensor, int64_t begin, int64_t count);
/* Returns the first `count` elements of the last dimension. */
tr_tensor tr_tensor_narrow(tr_tensor tensor, int64_t count);

int64_t tr_tensor_count(const tr_tensor *tensor);
/* Returns the bytes of all elements, without gaps between rows. */
size_t tr_tensor_bytes(const tr_tensor *tensor);
/* Returns the bytes from the first element to the end of the last, with the gaps between rows. */
size_t tr_tensor_extent(const tr_tensor *tensor);

/* Returns true when both describe the same elements in the same places: dtype, shape and strides
 * are equal, or adjacent dimensions of one are one dimension of the other, as in (batch * seq,
 * width) and (batch, seq, heads, head_size). Ignores dimensions of one element, and does not
 * compare data. */
bool tr_tensor_alike(const tr_tensor *a, const tr_tensor *b);

/* Writes "bf16 (8, 32)", with strides if rows are not adjacent, to text[size]; returns text. */
const char *tr_tensor_text(const tr_tensor *tensor, char *text, size_t size);
