#include "layers/piece.h"

#include <stdlib.h>

tr_status tr_plan_prepare(tr_plan *plan, tr_device *device, size_t *scratch) {
    tr_plan_release(plan);
    TR_TRY(tr_op_prepare(device, &plan->desc, &plan->op));
    if (plan->op->scratch_bytes > *scratch) *scratch = plan->op->scratch_bytes;
    return TR_OK;
}

void tr_plan_release(tr_plan *plan) {
    tr_op_release(plan->op);
    plan->op = NULL;
}

tr_status tr_plan_run(const tr_plan *plan, const tr_layer_io *io, void *scratch, tr_op_args args) {
    args.scratch = scratch;
    args.state = io->state;
    args.sample = io->sample;
    TR_TRY(tr_op_run(plan->op, io->stream, &args));
    return TR_OK;
}

tr_usage tr_usage_train(const tr_model_shape *shape) {
    return (tr_usage){.batch = shape->batch,
                      .seq = shape->seq,
                      .rows = shape->batch * shape->seq,
                      .dtype = shape->dtype};
}

tr_usage tr_usage_env(const tr_layer_env *env) {
    return (tr_usage){.batch = env->batch,
                      .seq = env->seq,
                      .rows = env->decode ? env->batch : env->batch * env->seq,
                      .dtype = env->dtype,
                      .decode = env->decode};
}

tr_flow tr_usage_flow(const tr_usage *usage, const char *name, int64_t width) {
    int64_t shape[] = {usage->batch, usage->decode ? 1 : usage->seq, width};
    return tr_flow_make(name, usage->dtype, 3, shape);
}

tr_flow tr_usage_tokens(const tr_usage *usage, const char *name) {
    int64_t shape[] = {usage->batch, usage->decode ? 1 : usage->seq};
    return tr_flow_make(name, TR_I32, 2, shape);
}

void tr_layer_reset(tr_layer *layer) {
    for (int life = 0; life < TR_LIFE_COUNT; life++) layer->bytes[life] = 0;
    layer->pieces = 0;
    layer->flops_f = layer->flops_i = layer->flops_w = 0;
    layer->reduce_bytes_f = layer->reduce_bytes_i = 0;
}

void tr_layer_free(tr_layer *layer) {
    free(layer->piece);
    free(layer);
}

tr_status tr_layer_check(const tr_layer *layer, const tr_usage *created, const tr_layer_env *env) {
    if (env->decode) {
        if (tr_group_size(env->tp) > 1)
            return TR_FAIL(TR_ERR_CONFIG,
                           "decoding needs the whole model on one rank, but parallel.tp is %d; "
                           "sample with parallel.tp=1, a checkpoint of any layout will do",
                           tr_group_size(env->tp));
        return TR_OK;
    }
    if (env->batch != created->batch || env->seq != created->seq || env->dtype != created->dtype)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "layer %s was made for %lld x %lld %s and is prepared for %lld x %lld %s",
                       layer->name, (long long)created->batch, (long long)created->seq,
                       tr_dtype_name(created->dtype), (long long)env->batch, (long long)env->seq,
                       tr_dtype_name(env->dtype));
    return TR_OK;
}

tr_buffer tr_buffer_place(tr_layer *layer, const tr_usage *usage, tr_lifetime life, int64_t width,
                          tr_dtype dtype) {
    tr_buffer place = {.life = usage->decode ? TR_LIFE_SCRATCH : life,
                       .rows = usage->rows,
                       .width = width,
                       .dtype = dtype};
    size_t bytes = tr_align_up((size_t)(usage->rows * width) * tr_dtype_size(dtype));
    place.offset = layer->bytes[place.life];
    layer->bytes[place.life] += bytes;
    if (place.life == TR_LIFE_SCRATCH) return place;
    place.piece = layer->pieces;
    tr_status status = tr_grow(&layer->piece, &layer->piece_capacity, (size_t)layer->pieces + 1,
                               sizeof *layer->piece);
    if (status != TR_OK) layer->described = status;
    else layer->piece[layer->pieces++] = (tr_piece){.life = life, .bytes = bytes};
    return place;
}

static const char *place_of(const tr_layer_io *io, const tr_buffer *buffer) {
    if (buffer->life == TR_LIFE_SCRATCH) return io->scratch + buffer->offset;
    if (buffer->life == TR_LIFE_IW && io->backward) return io->backward + buffer->offset;
    return io->piece[buffer->piece];
}

tr_tensor tr_buffer_at(const tr_layer_io *io, tr_buffer buffer) {
    return tr_tensor_matrix(place_of(io, &buffer), buffer.dtype, buffer.rows, buffer.width);
}

tr_tensor tr_usage_tensor(const tr_usage *usage, const void *data, int64_t width) {
    return tr_tensor_matrix(data, usage->dtype, usage->rows, width);
}
