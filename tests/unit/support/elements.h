/* Access to single elements of a parameter. */
#pragma once

#include "layers/param.h"

/* Calls visit with the global row-major index of every element of the tensor's boxes, and with its
 * place in the parameter's local memory. */
typedef void (*tr_element_fn)(void *context, int64_t global, int64_t local);
static inline void tr_each_element(const tr_global *tensor, tr_element_fn visit, void *context) {
    for (int b = 0; b < tensor->boxes; b++) {
        const tr_box *box = &tensor->box[b];
        int64_t count = 1;
        for (int d = 0; d < tensor->rank; d++) count *= box->extent[d];
        for (int64_t i = 0; i < count; i++) {
            int64_t at[TR_PARAM_RANK] = {0}, left = i, global = 0, local = box->local_offset;
            for (int d = tensor->rank - 1; d >= 0; left /= box->extent[d--])
                at[d] = left % box->extent[d];
            for (int d = 0; d < tensor->rank; d++) {
                global = global * tensor->shape[d] + box->offset[d] + at[d];
                local += at[d] * box->local_stride[d];
            }
            visit(context, global, local);
        }
    }
}
