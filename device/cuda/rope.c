/* ROPE. */
#include "device/rope.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

typedef struct cuda_rope {
    tr_op base;
    tr_cuda_rope_table table;
} cuda_rope;

static tr_status run_rope(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_rope(
        tr_cuda_stream_of(stream), &op->desc.rope, &((const cuda_rope *)op)->table, args->state,
        op->desc.rope.documents ? args->t[TR_ROPE_STARTS].data : NULL, args->t[TR_ROPE_X].data));
    return TR_OK;
}

tr_status tr_cuda_prepare_rope(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_rope_desc *d = &desc->rope;
    if (d->head_size / 2 > TR_CUDA_ROPE_PAIRS)
        return TR_FAIL(TR_ERR_DEVICE,
                       "heads of %lld are too wide for the cuda device: use more heads, of %d at "
                       "most",
                       (long long)d->head_size, 2 * (int)TR_CUDA_ROPE_PAIRS);
    TR_TRY(tr_cuda_op_create(context, desc, sizeof(cuda_rope), 0, run_rope, out));
    tr_cuda_rope_table *table = &((cuda_rope *)*out)->table;
    table->magnitude = (float)tr_rope_magnitude(d);
    tr_rope_turns(d, table->turns);
    return TR_OK;
}
