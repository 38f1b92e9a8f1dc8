/* Element-wise operators (ACTIVATION, ADD, CAST), the sum of each column (BIAS_GRAD), and that of
 * rows in their order (ADD_ROWS). */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

static int64_t count_of(const tr_op *op) {
    return op->desc.rows.rows * op->desc.rows.width;
}

static tr_status run_add(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_add(tr_cuda_stream_of(stream), op->desc.rows.dtype, count_of(op),
                               args->t[TR_ADD_A].data, args->t[TR_ADD_B].data,
                               args->t[TR_ADD_Y].data));
    return TR_OK;
}

static tr_status run_cast(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    TR_CUDA(tr_cuda_launch_cast(tr_cuda_stream_of(stream), d->dtype, d->to, count_of(op),
                                args->t[TR_CAST_X].data, args->t[TR_CAST_Y].data));
    return TR_OK;
}

static tr_status run_add_rows(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    TR_CUDA(tr_cuda_launch_add_rows(tr_cuda_stream_of(stream), d->dtype, d->rows, d->width,
                                    args->t[TR_ADD_ROWS_X].data, args->t[TR_ADD_ROWS_Y].data));
    return TR_OK;
}

static tr_status run_activation(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_activation(tr_cuda_stream_of(stream), &op->desc.rows,
                                      args->t[TR_ACTIVATION_X].data,
                                      args->t[TR_ACTIVATION_Y].data));
    return TR_OK;
}

static tr_status run_activation_dgrad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(tr_cuda_launch_activation_dgrad(
        tr_cuda_stream_of(stream), &op->desc.rows, args->t[TR_ACTIVATION_DGRAD_DY].data,
        args->t[TR_ACTIVATION_DGRAD_X].data, args->t[TR_ACTIVATION_DGRAD_DX].data));
    return TR_OK;
}

static tr_status run_bias_grad(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    const tr_rows_desc *d = &op->desc.rows;
    TR_CUDA(tr_cuda_launch_bias_grad(tr_cuda_stream_of(stream), d->dtype, d->rows, d->width,
                                     args->t[TR_BIAS_GRAD_DY].data,
                                     args->t[TR_BIAS_GRAD_DBIAS].data, args->scratch, args->adds));
    return TR_OK;
}

tr_status tr_cuda_prepare_add(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_add, out);
}
tr_status tr_cuda_prepare_cast(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_cast, out);
}
tr_status tr_cuda_prepare_add_rows(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_add_rows, out);
}
tr_status tr_cuda_prepare_activation(const tr_op_context *context, const tr_op_desc *desc,
                                     tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_activation, out);
}
tr_status tr_cuda_prepare_activation_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                           tr_op **out) {
    return tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_activation_dgrad, out);
}
tr_status tr_cuda_prepare_bias_grad(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    size_t scratch = tr_cuda_columns_scratch(desc->rows.rows, desc->rows.width, 1);
    return tr_cuda_op_create(context, desc, sizeof(tr_op), scratch, run_bias_grad, out);
}
