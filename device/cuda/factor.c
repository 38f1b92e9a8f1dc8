/* FACTOR_SUMS and FACTOR. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static tr_status run_factor_sums(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_factor_sums(tr_cuda_stream_of(stream), &op->desc.factor, args->state,
                                       args->t[TR_FACTOR_X].data, args->t[TR_FACTOR_ROWS].data,
                                       args->t[TR_FACTOR_COLS].data, args->scratch));
    return TR_OK;
}

static tr_status run_factor(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_factor(tr_cuda_stream_of(stream), &op->desc.factor, args->state,
                                  args->t[TR_FACTOR_X].data, args->t[TR_FACTOR_ROWS].data,
                                  args->t[TR_FACTOR_COLS].data, args->t[TR_FACTOR_R].data,
                                  args->t[TR_FACTOR_C].data, args->t[TR_FACTOR_NORM].data,
                                  args->t[TR_FACTOR_U].data, args->scratch));
    return TR_OK;
}

tr_status tr_cuda_prepare_factor_sums(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out) {
    const int64_t partial = tr_cuda_factor_partial(desc->factor.rows, desc->factor.cols);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), (size_t)partial * sizeof(double),
                             run_factor_sums, out);
}
tr_status tr_cuda_prepare_factor(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    const size_t factors = (size_t)(desc->factor.rows + desc->factor.cols) * sizeof(float);
    const size_t sums = (size_t)(1 + desc->factor.rows) * sizeof(double);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), sums + factors, run_factor, out);
}
