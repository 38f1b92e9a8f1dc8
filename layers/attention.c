#include "layers/attention.h"

/* --- parameters ------------------------------------------------------------------------------- */

/* Creates the projection to this rank's queries, keys and values, head by head, from one fused
 * tensor or three, which are stored [out, in]. */
static tr_status create_qkv(tr_attention_part *a) {
    const tr_attention_part_desc *d = &a->desc;
    const int64_t D = d->head_size, tp = a->layer->shape.tp_size;
    const int64_t Q = d->heads * D, K = d->kv_heads * D;
    const int copies = tp > d->kv_heads ? (int)(tp / d->kv_heads) : 1;
    const tr_range q = tr_model_shape_part(&a->layer->shape, Q, 1);
    const tr_range k = tr_model_shape_part(&a->layer->shape, K, copies);
    tr_linear_desc desc = {.in = d->width,
                           .inputs = {.extent = d->width},
                           .split = TR_SPLIT_COLUMNS,
                           .bias = d->qkv_bias,
                           .conv1d = d->conv1d && !d->k,
                           .init = d->init,
                           .std = d->std};
    if (!d->k) {
        desc.tensors = 1;
        desc.tensor[0] =
            (tr_linear_tensor){.name = d->q,
                               .out = Q + 2 * K,
                               .part = {q, {Q + k.begin, k.extent}, {Q + K + k.begin, k.extent}},
                               .parts = 3,
                               .copies = 1};
    } else {
        desc.tensors = 3;
        desc.tensor[0] =
            (tr_linear_tensor){.name = d->q, .out = Q, .part = {q}, .parts = 1, .copies = 1};
        desc.tensor[1] =
            (tr_linear_tensor){.name = d->k, .out = K, .part = {k}, .parts = 1, .copies = copies};
        desc.tensor[2] =
            (tr_linear_tensor){.name = d->v, .out = K, .part = {k}, .parts = 1, .copies = copies};
    }
    return tr_linear_create(&a->qkv, a->layer, &desc);
}

static tr_status create_norm(tr_attention_part *a, tr_head_norm *n, const char *name, int64_t at,
                             int64_t heads) {
    *n = (tr_head_norm){.at = at, .heads = heads};
    if (!name) return TR_OK;
    TR_TRY(tr_built_param(a->layer, &n->gamma));
    TR_TRY(tr_param_describe(n->gamma, 1, &a->desc.head_size, TR_INIT_ONE, 0, "%s.%s.weight",
                             a->layer->layer.name, name));
    /* Every tensor rank computes its heads' part of the gradient. */
    n->gamma->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    return TR_OK;
}

tr_status tr_attention_create(tr_attention_part *a, tr_built_layer *layer,
                              const tr_attention_part_desc *d) {
    const int tp = layer->shape.tp_size;
    *a = (tr_attention_part){.layer = layer, .desc = *d};
    a->heads = d->heads / tp;
    a->kv_heads = d->kv_heads > tp ? d->kv_heads / tp : 1;
    TR_TRY(create_qkv(a));
    TR_TRY(create_norm(a, &a->q_norm, d->q_norm, 0, a->heads));
    TR_TRY(create_norm(a, &a->k_norm, d->k_norm, a->heads, a->kv_heads));
    const tr_linear_desc out = {
        .tensor = {{.name = d->out, .out = d->width, .part = {{.extent = d->width}}, .parts = 1}},
        .tensors = 1,
        .in = d->heads * d->head_size,
        .inputs = tr_built_part(layer, d->heads * d->head_size),
        .split = TR_SPLIT_ROWS,
        .bias = d->out_bias,
        .conv1d = d->conv1d,
        .init = d->init,
        .std = d->out_std};
    return tr_linear_create(&a->out, layer, &out);
}

/* --- description ------------------------------------------------------------------------------ */

/* Returns the elements of a row of qkv. */
static int64_t row(const tr_attention_part *a) {
    return (a->heads + 2 * a->kv_heads) * a->desc.head_size;
}

/* Returns true when I applies norms and positions again, to the projection's output. */
static bool rebuilds(const tr_attention_part *a) {
    return a->q_norm.gamma && a->layer->recompute == TR_RECOMPUTE_SELECTIVE;
}

/* Describes the rotary positions of `heads` heads of every row. */
static tr_rope_desc rope_of(const tr_attention_part *a, int64_t heads) {
    const tr_model_shape *shape = &a->layer->shape;
    return (tr_rope_desc){.rows = shape->rows,
                          .seq = shape->seq,
                          .heads = heads,
                          .head_size = a->desc.head_size,
                          .ld = row(a),
                          .theta = a->desc.theta,
                          .scaling = a->desc.scaling,
                          .decode = shape->decode,
                          .documents = shape->documents,
                          .dtype = shape->dtype};
}

/* A norm, with the positions of its heads. */
static void describe_norm(tr_attention_part *a, tr_head_norm *n) {
    tr_built_layer *layer = a->layer;
    const tr_model_shape *shape = &layer->shape;
    const int64_t D = a->desc.head_size;
    tr_op_desc turned = {.kind = TR_OP_NORM_ROPE,
                         .norm_rope = {.rope = rope_of(a, n->heads), .eps = a->desc.eps}};
    tr_built_op(layer, &n->forward, TR_PHASE_F, turned);
    if (rebuilds(a)) tr_built_op(layer, &n->again, TR_PHASE_I, turned);
    n->rstd = tr_built_save(layer, TR_LIFE_FW, TR_RECOMPUTE_SELECTIVE, TR_LIFE_IW, n->heads,
                            tr_dtype_acc(shape->dtype));
    if (shape->decode) return;
    n->kept = tr_built_save(layer, TR_LIFE_FW, TR_RECOMPUTE_SELECTIVE, TR_LIFE_IW, n->heads * D,
                            shape->dtype);
    turned.kind = TR_OP_NORM_ROPE_DGRAD;
    tr_built_op(layer, &n->grad_input, TR_PHASE_I, turned);
    const tr_rmsnorm_desc weight = {
        .rows = shape->rows * n->heads, .width = D, .eps = a->desc.eps, .dtype = shape->dtype};
    if (n->gamma->has_grad)
        tr_built_op(layer, &n->grad_weight, TR_PHASE_W,
                    (tr_op_desc){.kind = TR_OP_RMSNORM_WGRAD, .rmsnorm = weight});
    n->dnormed = tr_built_place(layer, TR_LIFE_IW, n->heads * D, shape->dtype);
}

/* Positions without norms: of all heads at once. */
static void describe_rope(tr_attention_part *a) {
    tr_rope_desc desc = rope_of(a, a->heads + a->kv_heads);
    tr_built_op(a->layer, &a->rope, TR_PHASE_F, (tr_op_desc){.kind = TR_OP_ROPE, .rope = desc});
    desc.inverse = true;
    tr_built_op(a->layer, &a->rope_back, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_ROPE, .rope = desc});
}

static void describe_positions(tr_attention_part *a) {
    if (a->q_norm.gamma) {
        describe_norm(a, &a->q_norm);
        describe_norm(a, &a->k_norm);
    } else if (a->desc.rotary) {
        describe_rope(a);
    }
}

static void describe_ops(tr_attention_part *a) {
    tr_built_layer *layer = a->layer;
    const tr_model_shape *shape = &layer->shape;
    const tr_attention_desc desc = {.batch = shape->batch,
                                    .seq = shape->seq,
                                    .heads = a->heads,
                                    .kv_heads = a->kv_heads,
                                    .head_size = a->desc.head_size,
                                    .window = a->desc.window,
                                    .decode = shape->decode,
                                    .documents = shape->documents,
                                    .dtype = shape->dtype};
    tr_op_desc op = {.kind = shape->decode ? TR_OP_ATTENTION_DECODE : TR_OP_ATTENTION,
                     .attention = desc};
    tr_built_op(layer, &a->attend, TR_PHASE_F, op);
    op.kind = TR_OP_ATTENTION_DGRAD;
    tr_built_op(layer, &a->attend_back, TR_PHASE_I, op);
}

/* Returns the bytes of the keys, and also of the values, of a decoding cache. */
static size_t cache_part(const tr_attention_part *a) {
    const tr_model_shape *shape = &a->layer->shape;
    return tr_align_up((size_t)(shape->batch * shape->seq * a->kv_heads * a->desc.head_size) *
                       tr_dtype_size(shape->dtype));
}

void tr_attention_describe(tr_attention_part *a) {
    tr_built_layer *layer = a->layer;
    const tr_dtype dtype = layer->shape.dtype;
    const int64_t D = a->desc.head_size;
    tr_built_asks_starts(layer);
    tr_linear_describe(&a->qkv);
    describe_positions(a);
    describe_ops(a);
    tr_linear_describe(&a->out);
    const tr_recompute from = rebuilds(a) ? TR_RECOMPUTE_SELECTIVE : TR_RECOMPUTE_FULL;
    a->packed = tr_built_save(layer, TR_LIFE_FI, from, TR_LIFE_SCRATCH, row(a), dtype);
    if (rebuilds(a)) a->raw = tr_built_place(layer, TR_LIFE_FI, row(a), dtype);
    a->y = tr_built_save(layer, TR_LIFE_FW, TR_RECOMPUTE_FULL, TR_LIFE_IW, a->heads * D, dtype);
    if (layer->shape.decode) {
        layer->layer.cache_bytes = 2 * cache_part(a);
        return;
    }
    a->lse = tr_built_save(layer, TR_LIFE_FI, TR_RECOMPUTE_FULL, TR_LIFE_SCRATCH, a->heads,
                           tr_dtype_acc(dtype));
    a->dpacked = tr_built_place(layer, TR_LIFE_IW, row(a), dtype);
    a->dy = tr_built_place(layer, TR_LIFE_SCRATCH, a->heads * D, dtype);
}

/* --- F ---------------------------------------------------------------------------------------- */

/* Returns the norm's heads within qkv: (R, heads * D), with qkv's distance between rows. */
static tr_tensor heads_of(const tr_attention_part *a, const tr_head_norm *n, tr_tensor qkv) {
    qkv.data = (char *)qkv.data + (size_t)(n->at * a->desc.head_size) * tr_dtype_size(qkv.dtype);
    return tr_tensor_narrow(qkv, n->heads * a->desc.head_size);
}

/* Returns a buffer that has one row for each of the norm's heads: (R heads, D). */
static tr_tensor by_head(const tr_attention_part *a, const tr_head_norm *n, const tr_layer_io *io,
                         tr_buffer buffer) {
    const int64_t shape[] = {buffer.rows * n->heads, a->desc.head_size};
    return tr_tensor_reshape(tr_buffer_at(io, buffer), 2, shape);
}

/* Runs the norm's op, `forward` or `again`, in place. */
static tr_status run_norm(const tr_attention_part *a, const tr_head_norm *n, const tr_layer_op *op,
                          const tr_layer_io *io, tr_tensor qkv) {
    tr_op_args args = {.t = {[TR_NORM_ROPE_X] = heads_of(a, n, qkv),
                             [TR_NORM_ROPE_GAMMA] = tr_param_value(n->gamma),
                             [TR_NORM_ROPE_RSTD] = tr_buffer_at(io, n->rstd),
                             [TR_NORM_ROPE_STARTS] = tr_built_starts(a->layer, io)}};
    if (!a->layer->shape.decode) args.t[TR_NORM_ROPE_KEPT] = by_head(a, n, io, n->kept);
    return tr_layer_op_run(op, io, args);
}

/* Returns the keys, or the values, of the decoding cache. */
static tr_tensor cache_at(const tr_attention_part *a, const char *data) {
    const tr_model_shape *shape = &a->layer->shape;
    return tr_tensor_matrix(data, shape->dtype, shape->batch * shape->seq,
                            a->kv_heads * a->desc.head_size);
}

static tr_status attend_cache(const tr_attention_part *a, const tr_layer_io *io, tr_tensor qkv) {
    const char *keys = io->cache;
    tr_op_args args = {.t = {[TR_DECODE_QKV] = qkv,
                             [TR_DECODE_KCACHE] = cache_at(a, keys),
                             [TR_DECODE_VCACHE] = cache_at(a, keys + cache_part(a)),
                             [TR_DECODE_Y] = tr_buffer_at(io, a->y)}};
    return tr_layer_op_run(&a->attend, io, args);
}

static tr_tensor lse_at(const tr_attention_part *a, const tr_layer_io *io) {
    const tr_model_shape *shape = &a->layer->shape;
    const int64_t extent[] = {shape->batch, a->heads, shape->seq};
    return tr_tensor_reshape(tr_buffer_at(io, a->lse), 3, extent);
}

static tr_status attend(const tr_attention_part *a, const tr_layer_io *io, tr_tensor qkv) {
    if (a->layer->shape.decode) return attend_cache(a, io, qkv);
    tr_op_args args = {.t = {[TR_ATTENTION_QKV] = qkv,
                             [TR_ATTENTION_Y] = tr_buffer_at(io, a->y),
                             [TR_ATTENTION_LSE] = lse_at(a, io),
                             [TR_ATTENTION_STARTS] = tr_built_starts(a->layer, io)}};
    return tr_layer_op_run(&a->attend, io, args);
}

/* Rotates the query and key heads of every row. */
static tr_status rotate(const tr_attention_part *a, const tr_layer_op *rope, const tr_layer_io *io,
                        tr_tensor qkv) {
    const tr_rope_desc *d = &rope->desc.rope;
    const tr_tensor heads = tr_tensor_narrow(qkv, d->heads * d->head_size);
    tr_op_args args = {
        .t = {[TR_ROPE_X] = heads, [TR_ROPE_STARTS] = tr_built_starts(a->layer, io)}};
    return tr_layer_op_run(rope, io, args);
}

/* Applies norms and positions, positions alone, or neither, to query and key heads of every row. */
static tr_status position_forward(const tr_attention_part *a, const tr_layer_io *io,
                                  tr_tensor qkv) {
    if (!a->q_norm.gamma) return a->desc.rotary ? rotate(a, &a->rope, io, qkv) : TR_OK;
    TR_TRY(run_norm(a, &a->q_norm, &a->q_norm.forward, io, qkv));
    return run_norm(a, &a->k_norm, &a->k_norm.forward, io, qkv);
}

/* Copies the projection's output to where the norms work. */
static tr_status copy_raw(const tr_attention_part *a, const tr_layer_io *io, tr_tensor qkv) {
    return tr_stream_copy(io->stream, qkv.data, tr_buffer_at(io, a->raw).data,
                          tr_tensor_bytes(&qkv));
}

/* Makes again what attention and the norms' gradients read, and F did not keep. */
static tr_status rebuild(const tr_attention_part *a, const tr_layer_io *io) {
    const tr_tensor qkv = tr_buffer_at(io, a->packed);
    if (!rebuilds(a)) return TR_OK;
    TR_TRY(copy_raw(a, io, qkv));
    TR_TRY(run_norm(a, &a->q_norm, &a->q_norm.again, io, qkv));
    return run_norm(a, &a->k_norm, &a->k_norm.again, io, qkv);
}

tr_status tr_attention_forward(const tr_attention_part *a, const tr_layer_io *io, tr_tensor x,
                               tr_tensor residual, tr_tensor y) {
    const tr_tensor none = {0}, qkv = tr_buffer_at(io, a->packed);
    const tr_tensor made = rebuilds(a) ? tr_buffer_at(io, a->raw) : qkv;
    TR_TRY(tr_linear_forward(&a->qkv, io, x, none, none, made));
    if (rebuilds(a)) TR_TRY(copy_raw(a, io, qkv));
    TR_TRY(position_forward(a, io, qkv));
    TR_TRY(attend(a, io, qkv));
    return tr_linear_forward(&a->out, io, tr_buffer_at(io, a->y), none, residual, y);
}

/* --- I ---------------------------------------------------------------------------------------- */

static tr_status norm_grad_input(const tr_attention_part *a, const tr_head_norm *n,
                                 const tr_layer_io *io, tr_tensor dqkv) {
    tr_op_args args = {.t = {[TR_NORM_ROPE_DGRAD_DX] = heads_of(a, n, dqkv),
                             [TR_NORM_ROPE_DGRAD_X] = by_head(a, n, io, n->kept),
                             [TR_NORM_ROPE_DGRAD_GAMMA] = tr_param_value(n->gamma),
                             [TR_NORM_ROPE_DGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                             [TR_NORM_ROPE_DGRAD_DNORMED] = by_head(a, n, io, n->dnormed),
                             [TR_NORM_ROPE_DGRAD_STARTS] = tr_built_starts(a->layer, io)}};
    return tr_layer_op_run(&n->grad_input, io, args);
}

/* Computes the gradient through what position_forward did, in place. */
static tr_status position_grad_input(const tr_attention_part *a, const tr_layer_io *io,
                                     tr_tensor dqkv) {
    if (!a->q_norm.gamma) return a->desc.rotary ? rotate(a, &a->rope_back, io, dqkv) : TR_OK;
    TR_TRY(norm_grad_input(a, &a->q_norm, io, dqkv));
    return norm_grad_input(a, &a->k_norm, io, dqkv);
}

tr_status tr_attention_grad_input(const tr_attention_part *a, const tr_layer_io *io, tr_tensor dy,
                                  tr_tensor dx) {
    const tr_tensor none = {0}, dqkv = tr_buffer_at(io, a->dpacked);
    const tr_tensor dheads = tr_buffer_at(io, a->dy);
    TR_TRY(rebuild(a, io));
    TR_TRY(tr_linear_grad_input(&a->out, io, dy, none, dheads));
    tr_op_args back = {.t = {[TR_ATTENTION_DGRAD_DY] = dheads,
                             [TR_ATTENTION_DGRAD_QKV] = tr_buffer_at(io, a->packed),
                             [TR_ATTENTION_DGRAD_Y] = tr_buffer_at(io, a->y),
                             [TR_ATTENTION_DGRAD_LSE] = lse_at(a, io),
                             [TR_ATTENTION_DGRAD_DQKV] = dqkv,
                             [TR_ATTENTION_DGRAD_STARTS] = tr_built_starts(a->layer, io)}};
    TR_TRY(tr_layer_op_run(&a->attend_back, io, back));
    TR_TRY(position_grad_input(a, io, dqkv));
    return tr_linear_grad_input(&a->qkv, io, dqkv, none, dx);
}

/* --- W ---------------------------------------------------------------------------------------- */

static tr_status norm_grad_weight(const tr_attention_part *a, const tr_head_norm *n,
                                  const tr_layer_io *io) {
    if (!n->gamma || !n->gamma->has_grad) return TR_OK;
    tr_op_args args = {.t = {[TR_RMS_WGRAD_DY] = by_head(a, n, io, n->dnormed),
                             [TR_RMS_WGRAD_X] = by_head(a, n, io, n->kept),
                             [TR_RMS_WGRAD_RSTD] = tr_buffer_at(io, n->rstd),
                             [TR_RMS_WGRAD_DGAMMA] = tr_param_grad(n->gamma)}};
    return tr_layer_op_run(&n->grad_weight, io, args);
}

tr_status tr_attention_grad_weight(const tr_attention_part *a, const tr_layer_io *io, tr_tensor x,
                                   tr_tensor dy) {
    TR_TRY(tr_linear_grad_weight(&a->out, io, tr_buffer_at(io, a->y), dy));
    TR_TRY(norm_grad_weight(a, &a->q_norm, io));
    TR_TRY(norm_grad_weight(a, &a->k_norm, io));
    return tr_linear_grad_weight(&a->qkv, io, x, tr_buffer_at(io, a->dpacked));
}
