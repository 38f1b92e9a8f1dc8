#include "layers/part.h"

#include "layers/tuning.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* --- a layer's life --------------------------------------------------------------------------- */

void tr_built_begin(tr_built_layer *layer, const tr_layer_ops *ops,
                    void (*describe)(tr_built_layer *), const tr_model_shape *shape,
                    const char *name_format, ...) {
    va_list arguments;
    layer->layer.ops = ops;
    layer->layer.params = layer->param;
    layer->describe = describe;
    layer->shape = *shape;
    va_start(arguments, name_format);
    (void)vsnprintf(layer->layer.name, sizeof layer->layer.name, name_format, arguments);
    va_end(arguments);
}

tr_status tr_built_finish(tr_built_layer *layer) {
    for (int i = 0; i < layer->layer.params_count; i++)
        TR_TRY(tr_tuning_apply(layer->shape.tuning, &layer->param[i]));
    layer->describe(layer);
    layer->operators_at = layer->layer.bytes[TR_LIFE_SCRATCH];
    return layer->layer.described;
}

tr_status tr_built_param(tr_built_layer *layer, tr_param **out) {
    if (layer->layer.params_count == TR_LAYER_PARAMS)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "layer %s has more than %d parameters: raise TR_LAYER_PARAMS",
                       layer->layer.name, TR_LAYER_PARAMS);
    *out = &layer->param[layer->layer.params_count++];
    return TR_OK;
}

void tr_built_reads(tr_built_layer *layer, tr_lifetime life) {
    layer->layer.inputs = 1;
    layer->layer.input[0] = (tr_layer_input){.layer = TR_LAYER_BEFORE, .life = life};
}

void tr_built_writes(tr_built_layer *layer, int64_t width) {
    const tr_model_shape *shape = &layer->shape;
    const int64_t slice[] = {1, shape->slice.extent, width};
    const int64_t whole[] = {shape->batch, shape->decode ? shape->decode : shape->seq, width};
    const int64_t *extent = shape->sequence ? slice : whole;
    layer->layer.outputs = 1;
    layer->layer.output[0] = tr_flow_make("hidden", shape->dtype, 3, extent);
}

void tr_built_asks(tr_built_layer *layer, const char *name) {
    const tr_model_shape *shape = &layer->shape;
    const int64_t extent[] = {shape->batch, shape->decode ? shape->decode : shape->seq};
    tr_layer *l = &layer->layer;
    if (l->step_inputs == TR_LAYER_FLOWS)
        l->described = TR_FAIL(TR_ERR_INTERNAL,
                               "layer %s asks for more than %d step inputs: raise TR_LAYER_FLOWS",
                               l->name, TR_LAYER_FLOWS);
    else l->step_input[l->step_inputs++] = tr_flow_make(name, TR_I32, 2, extent);
}

void tr_built_asks_starts(tr_built_layer *layer) {
    layer->starts = layer->layer.step_inputs;
    if (layer->shape.documents) tr_built_asks(layer, TR_STEP_INPUT_DOCUMENT_STARTS);
}

void tr_built_sums_slices(const tr_built_layer *layer, tr_param *param) {
    if (layer->shape.sequence) param->partial |= TR_AXIS_BIT(TR_AXIS_TP);
}

tr_range tr_built_part(const tr_built_layer *layer, int64_t total) {
    return tr_model_shape_part(&layer->shape, total, 1);
}

tr_status tr_built_prepare(tr_layer *base, const tr_layer_env *env) {
    tr_built_layer *layer = (tr_built_layer *)base;
    size_t scratch = 0;
    layer->tp = env->tp;
    for (tr_layer_op *op = layer->first_op; op; op = op->next) {
        if (layer->shape.decode && op->phase != TR_PHASE_F) continue;
        tr_op_release(op->op);
        op->op = NULL;
        TR_TRY(tr_op_prepare(&env->context, &op->desc, &op->op));
        if (op->op->scratch_bytes > scratch) scratch = op->op->scratch_bytes;
    }
    base->bytes[TR_LIFE_SCRATCH] = layer->operators_at + tr_align_up(scratch);
    return TR_OK;
}

void tr_built_destroy(tr_layer *base) {
    tr_built_layer *layer = (tr_built_layer *)base;
    for (tr_layer_op *op = layer->first_op; op; op = op->next) tr_op_release(op->op);
    tr_params_release(base->params, base->params_count);
    free(base->piece);
    free(layer);
}

/* --- description ------------------------------------------------------------------------------ */

void tr_built_op(tr_built_layer *layer, tr_layer_op *op, tr_phase phase, tr_op_desc desc) {
    *op = (tr_layer_op){.desc = desc, .phase = phase, .layer = layer, .next = layer->first_op};
    layer->first_op = op;
    double flops = tr_op_flops(&desc);
    if (phase == TR_PHASE_F) layer->layer.flops_f += flops;
    if (phase == TR_PHASE_I) layer->layer.flops_i += flops;
    if (phase == TR_PHASE_W) layer->layer.flops_w += flops;
}

tr_buffer tr_built_place(tr_built_layer *layer, tr_lifetime life, int64_t width, tr_dtype dtype) {
    return tr_built_place_rows(layer, life, layer->shape.rows, width, dtype);
}

tr_buffer tr_built_place_rows(tr_built_layer *layer, tr_lifetime life, int64_t rows, int64_t width,
                              tr_dtype dtype) {
    tr_layer *l = &layer->layer;
    tr_buffer place = {.life = layer->shape.decode ? TR_LIFE_SCRATCH : life,
                       .rows = rows,
                       .width = width,
                       .dtype = dtype};
    size_t bytes = tr_align_up((size_t)(rows * width) * tr_dtype_size(dtype));
    place.offset = l->bytes[place.life];
    l->bytes[place.life] += bytes;
    if (place.life == TR_LIFE_SCRATCH) return place;
    place.piece = l->pieces;
    tr_status status =
        tr_grow(&l->piece, &l->piece_capacity, (size_t)l->pieces + 1, sizeof *l->piece);
    if (status != TR_OK) l->described = status;
    else l->piece[l->pieces++] = (tr_piece){.life = life, .bytes = bytes};
    return place;
}

tr_buffer tr_built_place_slice(tr_built_layer *layer, tr_lifetime life, int64_t width,
                               tr_dtype dtype) {
    return tr_built_place_rows(layer, life, layer->shape.slice.extent, width, dtype);
}

tr_buffer tr_built_place_all(tr_built_layer *layer, int64_t width) {
    if (!layer->shape.sequence) return (tr_buffer){.life = TR_LIFE_SCRATCH};
    return tr_built_place(layer, TR_LIFE_SCRATCH, width, layer->shape.dtype);
}

static tr_buffer save_rows(tr_built_layer *layer, tr_lifetime life, tr_recompute from,
                           tr_lifetime again, int64_t rows, int64_t width, tr_dtype dtype) {
    if (layer->recompute < from) return tr_built_place_rows(layer, life, rows, width, dtype);
    tr_buffer place = tr_built_place_rows(layer, again, rows, width, dtype);
    place.rebuilt = true;
    place.unkept = layer->layer.unkept;
    layer->layer.unkept +=
        tr_align_up((size_t)(place.rows * place.width) * tr_dtype_size(place.dtype));
    return place;
}

tr_buffer tr_built_save(tr_built_layer *layer, tr_lifetime life, tr_recompute from,
                        tr_lifetime again, int64_t width, tr_dtype dtype) {
    return save_rows(layer, life, from, again, layer->shape.rows, width, dtype);
}

tr_buffer tr_built_save_slice(tr_built_layer *layer, tr_lifetime life, tr_recompute from,
                              tr_lifetime again, int64_t width, tr_dtype dtype) {
    return save_rows(layer, life, from, again, layer->shape.slice.extent, width, dtype);
}

static void add_sum(tr_layer *l, tr_layer_sum sum) {
    if (l->sums == TR_LAYER_SUMS)
        l->described =
            TR_FAIL(TR_ERR_INTERNAL,
                    "layer %s makes more than %d kinds of sums over the tensor ranks: raise "
                    "TR_LAYER_SUMS",
                    l->name, TR_LAYER_SUMS);
    else l->sum[l->sums++] = sum;
}

void tr_built_sums_in_f(tr_built_layer *layer, int count, int64_t rows, int64_t width,
                        tr_dtype dtype) {
    if (count == 0 || rows == 0) return;
    add_sum(&layer->layer, (tr_layer_sum){.count = count,
                                          .bytes = (size_t)(rows * width) * tr_dtype_size(dtype),
                                          .when = TR_LAYER_SUM_F});
}

void tr_built_slice_sums(tr_built_layer *layer, tr_layer_sum_when when, int count, int64_t width,
                         double hides) {
    const tr_model_shape *shape = &layer->shape;
    add_sum(&layer->layer,
            (tr_layer_sum){.count = count,
                           .bytes = (size_t)(shape->rows * width) * tr_dtype_size(shape->dtype),
                           .when = when,
                           .half = shape->sequence,
                           .hides = hides});
}

void tr_built_slice_gathers(tr_built_layer *layer, tr_layer_sum_when when, int count, int64_t width,
                            double hides) {
    if (layer->shape.sequence && count > 0) tr_built_slice_sums(layer, when, count, width, hides);
}

/* --- running ---------------------------------------------------------------------------------- */

tr_status tr_layer_op_run(const tr_layer_op *op, const tr_layer_io *io, tr_op_args args) {
    args.scratch = io->scratch + op->layer->operators_at;
    args.state = io->state;
    args.sample = io->sample;
    args.adds |= io->adds;
    if (io->probe) TR_TRY(io->probe->call(io->probe->context, op, io, &args, true));
    TR_TRY(tr_op_run(op->op, io->stream, &args));
    return io->probe ? io->probe->call(io->probe->context, op, io, &args, false) : TR_OK;
}

tr_tensor tr_buffer_at(const tr_layer_io *io, tr_buffer buffer) {
    const char *data;
    if (buffer.rebuilt && io->unkept) data = io->unkept + buffer.unkept;
    else if (buffer.life == TR_LIFE_SCRATCH) data = io->scratch + buffer.offset;
    else if (buffer.life == TR_LIFE_IW && io->backward) data = io->backward + buffer.offset;
    else data = io->piece[buffer.piece];
    return tr_tensor_matrix(data, buffer.dtype, buffer.rows, buffer.width);
}

tr_tensor tr_built_starts(const tr_built_layer *layer, const tr_layer_io *io) {
    const tr_tensor none = {0};
    return layer->shape.documents ? io->step[layer->starts] : none;
}

static tr_status start_sum(const tr_built_layer *layer, const tr_layer_io *io, tr_tensor x,
                           int64_t *ticket) {
    return tr_group_start(layer->tp, io->stream, x.data, tr_tensor_count(&x), x.dtype,
                          TR_REDUCE_SUM, ticket);
}

tr_status tr_built_sum(const tr_built_layer *layer, const tr_layer_io *io, tr_tensor x) {
    int64_t ticket;
    TR_TRY(start_sum(layer, io, x, &ticket));
    return tr_built_wait(layer, io, ticket);
}

tr_status tr_built_wait(const tr_built_layer *layer, const tr_layer_io *io, int64_t ticket) {
    return tr_group_wait(layer->tp, io->stream, ticket);
}

tr_tensor tr_built_all(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                       tr_tensor slice) {
    return layer->shape.sequence ? tr_buffer_at(io, all) : slice;
}

tr_status tr_built_gather_start(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                                tr_tensor slice, int64_t *ticket) {
    *ticket = TR_GROUP_NO_TICKET;
    if (!layer->shape.sequence) return TR_OK;
    const tr_tensor to = tr_buffer_at(io, all);
    const tr_range own = layer->shape.slice;
    TR_TRY(tr_stream_copy(io->stream, tr_tensor_rows(to, own.begin, own.extent).data, slice.data,
                          tr_tensor_bytes(&slice)));
    return tr_group_gather_parts(layer->tp, io->stream, to.data, tr_tensor_count(&slice), to.dtype,
                                 ticket);
}

tr_status tr_built_gather(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                          tr_tensor slice) {
    int64_t ticket;
    TR_TRY(tr_built_gather_start(layer, io, all, slice, &ticket));
    return tr_built_wait(layer, io, ticket);
}

tr_status tr_built_sum_slice_start(const tr_built_layer *layer, const tr_layer_io *io,
                                   tr_buffer all, tr_tensor slice, int64_t *ticket) {
    if (!layer->shape.sequence) return start_sum(layer, io, slice, ticket);
    return tr_group_scatter(layer->tp, io->stream, tr_buffer_at(io, all).data, slice.data,
                            tr_tensor_count(&slice), slice.dtype, ticket);
}

tr_status tr_built_sum_slice(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                             tr_tensor slice) {
    int64_t ticket;
    TR_TRY(tr_built_sum_slice_start(layer, io, all, slice, &ticket));
    return tr_built_wait(layer, io, ticket);
}
