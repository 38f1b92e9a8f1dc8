/* GPT-2's embedding: word embedding split over tp by rows of the vocabulary, learned positions, and
 * dropout. R = batch * seq rows, C = width. */
#include "layers/model_impl.h"
#include "layers/param_impl.h"
#include "layers/piece.h"

#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>

enum { WTE, WPE, EMBEDDING_PARAMS };

typedef struct embedding {
    tr_layer layer;
    tr_param params[EMBEDDING_PARAMS];
    tr_usage created, usage;
    int64_t width, context;
    tr_range vocab; /* this rank's rows of wte */
    bool split;
    float dropout;
    uint64_t site;
    tr_group *tp;
    tr_plan embed, embed_wgrad, position, position_wgrad, drop, drop_dgrad;
    tr_buffer dx; /* I..W (R, C): gradient of the sum of word and position */
} embedding;

tr_status tr_gpt2_describe_wte(tr_param *param, const tr_model_config *config,
                               const tr_model_shape *shape, int use) {
    int64_t size[] = {config->vocab, config->width};
    tr_slice own = {.range = tr_range_part(config->vocab, shape->tp_size, shape->tp_rank)};
    TR_TRY(tr_param_describe(param, 2, size, TR_INIT_NORMAL, 0.02f, "transformer.wte.weight"));
    param->use = use;
    return tr_param_keep(param, 0, &own, 1);
}

static tr_status describe_params(embedding *e, const tr_model_config *config,
                                 const tr_model_shape *shape) {
    int64_t positions[] = {config->context, config->width};
    TR_TRY(tr_gpt2_describe_wte(&e->params[WTE], config, shape, 0));
    return tr_param_describe(&e->params[WPE], 2, positions, TR_INIT_NORMAL, 0.01f,
                             "transformer.wpe.weight");
}

static void describe(embedding *e, const tr_usage *usage) {
    tr_layer *layer = &e->layer;
    e->usage = *usage;
    tr_layer_reset(layer);
    layer->output[0] = tr_usage_flow(usage, "hidden", e->width);
    layer->step_input[0] = tr_usage_tokens(usage, TR_INPUT_TOKENS);
    tr_embed_desc embed = {.rows = usage->rows,
                           .width = e->width,
                           .seq = usage->seq,
                           .vocab_begin = e->vocab.begin,
                           .vocab = e->vocab.extent,
                           .decode = usage->decode,
                           .dtype = usage->dtype};
    e->embed.desc = (tr_op_desc){.kind = TR_OP_EMBED, .embed = embed};
    e->embed_wgrad.desc = (tr_op_desc){.kind = TR_OP_EMBED_WGRAD, .embed = embed};
    e->position.desc = (tr_op_desc){.kind = TR_OP_POSITION, .embed = embed};
    e->position_wgrad.desc = (tr_op_desc){.kind = TR_OP_POSITION_WGRAD, .embed = embed};
    tr_dropout_desc drop = {.rows = usage->rows,
                            .width = e->width,
                            .seq = usage->seq,
                            .p = e->dropout,
                            .site = e->site,
                            .dtype = usage->dtype};
    e->drop.desc = (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = drop};
    e->drop_dgrad.desc = (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = drop};
    if (!usage->decode) e->dx = tr_buffer_place(layer, usage, TR_LIFE_IW, e->width, usage->dtype);
    if (e->split)
        layer->reduce_bytes_f =
            (double)usage->rows * (double)e->width * (double)tr_dtype_size(usage->dtype);
}

static tr_status prepare(tr_layer *layer, const tr_layer_env *env) {
    embedding *e = (embedding *)layer;
    TR_TRY(tr_layer_check(layer, &e->created, env));
    if (env->seq > e->context)
        return TR_FAIL(TR_ERR_CONFIG, "%lld positions are asked for, but model.context is %lld",
                       (long long)env->seq, (long long)e->context);
    tr_usage usage = tr_usage_env(env);
    describe(e, &usage);
    e->tp = env->tp;
    size_t scratch = 0;
    TR_TRY(tr_plan_prepare(&e->embed, env->device, &scratch));
    TR_TRY(tr_plan_prepare(&e->position, env->device, &scratch));
    if (!env->decode) {
        TR_TRY(tr_plan_prepare(&e->drop, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&e->drop_dgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&e->embed_wgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&e->position_wgrad, env->device, &scratch));
    }
    layer->bytes[TR_LIFE_SCRATCH] = tr_align_up(scratch);
    return TR_OK;
}

static tr_tensor tokens_of(const embedding *e, const tr_layer_io *io) {
    return tr_flow_tensor(&e->layer.step_input[0], io->step[0]);
}

static tr_tensor output_of(const embedding *e, const void *data) {
    return tr_flow_tensor(&e->layer.output[0], data);
}

/* The positions that are met. */
static tr_tensor met(const embedding *e, tr_tensor table) {
    return tr_tensor_rows(table, 0, e->usage.seq);
}

static tr_status decode(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    void *scratch = io->scratch;
    tr_tensor y = output_of(e, io->y[0]);
    tr_op_args embed = {.t = {[TR_EMBED_TOKENS] = tokens_of(e, io),
                              [TR_EMBED_TABLE] = tr_param_value(&e->params[WTE]),
                              [TR_EMBED_Y] = y}};
    TR_TRY(tr_plan_run(&e->embed, io, scratch, embed));
    /* Every row is zero on all ranks but one. */
    TR_TRY(tr_group_all_reduce(e->tp, io->stream, y.data, tr_tensor_count(&y), y.dtype,
                               TR_REDUCE_SUM));
    tr_op_args position = {.t = {[TR_POSITION_X] = y,
                                 [TR_POSITION_TABLE] = met(e, tr_param_value(&e->params[WPE])),
                                 [TR_POSITION_Y] = y}};
    TR_TRY(tr_plan_run(&e->position, io, scratch, position));
    return TR_OK;
}

static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    TR_TRY(decode(layer, io));
    tr_tensor y = output_of(e, io->y[0]);
    tr_op_args drop = {.t = {[TR_DROPOUT_X] = y, [TR_DROPOUT_Y] = y}};
    TR_TRY(tr_plan_run(&e->drop, io, io->scratch, drop));
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    tr_op_args drop = {.t = {[TR_DROPOUT_DGRAD_DY] = output_of(e, io->dy[0]),
                             [TR_DROPOUT_DGRAD_DX] = tr_buffer_at(io, e->dx)}};
    TR_TRY(tr_plan_run(&e->drop_dgrad, io, io->scratch, drop));
    return TR_OK;
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    void *scratch = io->scratch;
    tr_tensor dx = tr_buffer_at(io, e->dx);
    tr_op_args embed = {.t = {[TR_EMBED_WGRAD_DY] = dx,
                              [TR_EMBED_WGRAD_TOKENS] = tokens_of(e, io),
                              [TR_EMBED_WGRAD_DTABLE] = tr_param_grad(&e->params[WTE])}};
    TR_TRY(tr_plan_run(&e->embed_wgrad, io, scratch, embed));
    /* The gradient of the positions past seq stays as it is. */
    tr_op_args position = {
        .t = {[TR_POSITION_WGRAD_DY] = dx,
              [TR_POSITION_WGRAD_DTABLE] = met(e, tr_param_grad(&e->params[WPE]))}};
    TR_TRY(tr_plan_run(&e->position_wgrad, io, scratch, position));
    return TR_OK;
}

static void destroy(tr_layer *layer) {
    embedding *e = (embedding *)layer;
    tr_plan_release(&e->embed);
    tr_plan_release(&e->embed_wgrad);
    tr_plan_release(&e->position);
    tr_plan_release(&e->position_wgrad);
    tr_plan_release(&e->drop);
    tr_plan_release(&e->drop_dgrad);
    tr_params_release(e->params, EMBEDDING_PARAMS);
    tr_layer_free(&e->layer);
}

static const tr_layer_ops ops = {.kind = "embedding",
                                 .prepare = prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = decode,
                                 .destroy = destroy};

tr_status tr_embedding_create(const tr_model_config *config, const tr_model_shape *shape,
                              tr_layer **out) {
    embedding *e;
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    tr_layer *layer = &e->layer;
    layer->ops = &ops;
    layer->params = e->params;
    layer->params_count = EMBEDDING_PARAMS;
    layer->outputs = layer->step_inputs = 1;
    (void)snprintf(layer->name, sizeof layer->name, "transformer.embedding");
    e->width = config->width;
    e->context = config->context;
    e->vocab = tr_range_part(config->vocab, shape->tp_size, shape->tp_rank);
    e->split = shape->tp_size > 1;
    e->dropout = (float)config->dropout;
    e->site = tr_hash_name("transformer.embedding.drop");
    tr_status status = describe_params(e, config, shape);
    if (status != TR_OK) {
        destroy(layer);
        return status;
    }
    e->created = tr_usage_train(shape);
    describe(e, &e->created);
    *out = layer;
    return TR_OK;
}
