/* Boxes of global tensors: intersection, and copies between a dense part and a rank's memory. */
#include "ckpt/ckpt_impl.h"

#include "base/code8.h"
#include "base/minmax.h"

#include <string.h>

tr_box4 tr_box4_make(int64_t rank, const int64_t *from, const int64_t *extent) {
    tr_box4 box = {{0, 0, 0, 0}, {1, 1, 1, 1}};
    for (int64_t d = 0; d < rank; d++) {
        box.from[4 - rank + d] = from[d];
        box.extent[4 - rank + d] = extent[d];
    }
    return box;
}

int64_t tr_box4_volume(const tr_box4 *box) {
    return box->extent[0] * box->extent[1] * box->extent[2] * box->extent[3];
}

bool tr_box4_intersects(const tr_box4 *a, const tr_box4 *b) {
    for (int d = 0; d < 4; d++)
        if (a->from[d] >= b->from[d] + b->extent[d] || b->from[d] >= a->from[d] + a->extent[d])
            return false;
    return true;
}

int64_t tr_box4_run(const tr_box4 *part, const int64_t whole[4]) {
    int64_t run = part->extent[3];
    for (int d = 3; d > 0 && part->extent[d] == whole[d]; d--) run *= part->extent[d - 1];
    return run;
}

int64_t tr_box4_place(const tr_box4 *part, const int64_t whole[4], int64_t element) {
    int64_t index[4], at = 0;
    for (int d = 3; d >= 0; d--) {
        index[d] = part->from[d] + element % part->extent[d];
        element /= part->extent[d];
    }
    for (int d = 0; d < 4; d++) at = at * whole[d] + index[d];
    return at;
}

/* Copies a row of an FP64 tensor: the file has FP32, so saving rounds and loading widens. */
static void copy_row_f64(float *dense, double *local, int64_t stride, int64_t count, bool gather) {
    for (int64_t i = 0; i < count; i++) {
        if (gather) dense[i] = (float)local[i * stride];
        else local[i * stride] = (double)dense[i];
    }
}

/* Copies a row of a BF16 or FP16 tensor: loading rounds, saving is exact. */
static void copy_row_narrow(tr_dtype dtype, float *dense, uint16_t *local, int64_t stride,
                            int64_t count, bool gather) {
    for (int64_t i = 0; i < count; i++) {
        if (gather) dense[i] = tr_narrow_load(dtype, local[i * stride]);
        else local[i * stride] = tr_narrow_round(dtype, dense[i]);
    }
}

/* Decodes a row of a tensor in 8 bits, from element `local` on. */
static void decode_row(const tr_ckpt_tensor *tensor, float *dense, int64_t local, int64_t stride,
                       int64_t count) {
    const uint8_t *codes = tensor->local;
    const float *scales = (const float *)(const void *)(codes + tr_code8_scales(tensor->count));
    for (int64_t i = 0; i < count; i++, local += stride)
        dense[i] = tr_code8_decode(codes[local], scales[local / TR_CODE8_BLOCK], tensor->code);
}

static void copy_row(float *dense, float *local, int64_t stride, int64_t count, bool gather) {
    if (stride == 1) {
        if (gather) memcpy(dense, local, (size_t)count * sizeof *dense);
        else memcpy(local, dense, (size_t)count * sizeof *dense);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (gather) dense[i] = local[i * stride];
        else local[i * stride] = dense[i];
    }
}

int64_t tr_box4_copy(const tr_box4 *part, int64_t first, int64_t count, float *dense,
                     const tr_ckpt_tensor *tensor, const tr_box *held, bool gather) {
    tr_box4 box = tr_box4_make(tensor->rank, held->offset, held->extent);
    int64_t stride[4] = {0, 0, 0, 1};
    for (int d = 0; d < tensor->rank; d++) stride[4 - tensor->rank + d] = held->local_stride[d];

    const int64_t row = part->extent[3], end = first + count;
    int64_t copied = 0;
    for (int64_t r = first / row; r * row < end; r++) {
        /* global coordinates of this row of the part, relative to the box */
        int64_t at[3] = {r / part->extent[2] / part->extent[1],
                         r / part->extent[2] % part->extent[1], r % part->extent[2]};
        bool inside = true;
        int64_t local = held->local_offset;
        for (int d = 0; d < 3; d++) {
            at[d] += part->from[d] - box.from[d];
            inside = inside && at[d] >= 0 && at[d] < box.extent[d];
            local += at[d] * stride[d];
        }
        if (!inside) continue;
        int64_t shift = part->from[3] - box.from[3]; /* box column = part column + shift */
        int64_t low = tr_max_i64(tr_max_i64(first - r * row, 0), -shift);
        int64_t high = tr_min_i64(tr_min_i64(end - r * row, row), box.extent[3] - shift);
        if (low >= high) continue;
        copied += high - low;
        if (!dense) continue;
        float *to = dense + (r * row + low - first);
        local += (low + shift) * stride[3];
        if (tensor->dtype == TR_U8) decode_row(tensor, to, local, stride[3], high - low);
        else if (tensor->dtype == TR_F64)
            copy_row_f64(to, (double *)tensor->local + local, stride[3], high - low, gather);
        else if (tensor->dtype == TR_BF16 || tensor->dtype == TR_F16)
            copy_row_narrow(tensor->dtype, to, (uint16_t *)tensor->local + local, stride[3],
                            high - low, gather);
        else copy_row(to, (float *)tensor->local + local, stride[3], high - low, gather);
    }
    return copied;
}
