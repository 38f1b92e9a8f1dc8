#include "device/finite.h"

#include "base/minmax.h"
#include "device/op_table.h"

#include <math.h>

static bool all_finite(const void *data, tr_dtype dtype, int64_t count) {
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TR_F64) finite = finite && isfinite(((const double *)data)[i]);
        else if (dtype == TR_F32) finite = finite && isfinite(((const float *)data)[i]);
        else finite = finite && isfinite(tr_narrow_load(dtype, ((const uint16_t *)data)[i]));
    }
    return finite;
}

/* Examines adjacent elements; `staging` is NULL on a host device. */
static tr_status examine_run(tr_stream *stream, const char *data, tr_dtype dtype, int64_t count,
                             void *staging, bool *finite) {
    const int64_t size = (int64_t)tr_dtype_size(dtype);
    if (!staging) {
        *finite = *finite && all_finite(data, dtype, count);
        return TR_OK;
    }
    for (int64_t done = 0; done < count && *finite;) {
        const int64_t n = tr_min_i64(TR_FINITE_STAGING / size, count - done);
        TR_TRY(tr_stream_copy(stream, staging, data + done * size, (size_t)(n * size)));
        TR_TRY(tr_stream_sync(stream));
        *finite = all_finite(staging, dtype, n);
        done += n;
    }
    return TR_OK;
}

/* Examines a tensor row by row; the rows of a dense one are one row. */
static tr_status examine(tr_stream *stream, const tr_tensor *t, void *staging, bool *finite) {
    int rank = t->rank;
    int64_t row = 1, rows = 1;
    while (rank > 0 && (t->stride[rank - 1] == row || t->shape[rank - 1] == 1))
        row *= t->shape[--rank];
    for (int d = 0; d < rank; d++) rows *= t->shape[d];
    for (int64_t r = 0; r < rows && *finite; r++) {
        int64_t at = 0, rest = r;
        for (int d = rank - 1; d >= 0; d--) {
            at += rest % t->shape[d] * t->stride[d];
            rest /= t->shape[d];
        }
        TR_TRY(examine_run(stream, (const char *)t->data + at * (int64_t)tr_dtype_size(t->dtype),
                           t->dtype, row, staging, finite));
    }
    return TR_OK;
}

static bool is_examined(const tr_op_slot *slot, const tr_tensor *t, bool written) {
    if (!t->data || !(TR_TYPES_STORAGE & 1u << t->dtype)) return false;
    if (written) return slot->use & TR_SLOT_OUT;
    return (slot->use & TR_SLOT_IN) && !(slot->use & TR_SLOT_ONCE);
}

tr_status tr_op_find_not_finite(const tr_op *op, tr_stream *stream, const tr_op_args *args,
                                bool written, void *staging, const char **name) {
    const tr_op_row *row = tr_op_row_of(op->desc.kind);
    *name = NULL;
    TR_TRY(tr_stream_sync(stream));
    for (int i = 0; i < TR_OP_MAX_TENSORS && !*name; i++) {
        bool finite = true;
        if (!is_examined(&row->slot[i], &args->t[i], written)) continue;
        TR_TRY(examine(stream, &args->t[i], staging, &finite));
        if (!finite) *name = row->slot[i].name;
    }
    return TR_OK;
}
