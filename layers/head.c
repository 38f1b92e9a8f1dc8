/* GPT-2's head: the last LayerNorm, logits through the tied word embedding, and cross entropy over
 * a vocabulary split over tp (Shoeybi et al. 2019, section 3): no rank holds whole rows of logits.
 * R = batch * seq rows, C = width, v = this rank's part of the vocabulary. */
#include "layers/model_impl.h"
#include "layers/param_impl.h"
#include "layers/piece.h"

#include <stdio.h>
#include <stdlib.h>

enum { LN_F_WEIGHT, LN_F_BIAS, TIED_WTE, HEAD_PARAMS };

typedef struct head {
    tr_layer layer;
    tr_param params[HEAD_PARAMS];
    tr_usage created, usage;
    int64_t width;
    tr_range vocab;
    bool split;
    tr_group *tp;
    tr_norm ln_f;
    tr_plan project, project_dgrad, project_wgrad, xent_max, xent_sum, xent_loss, cast;
    tr_buffer logits;    /* F..W (R, v): logits, from the end of F their gradient */
    tr_buffer max;       /* scratch f32 (R) */
    tr_buffer sums;      /* scratch f32 (R, 2) */
    size_t operators_at; /* scratch of operators begins here */
} head;

static void *scratch_of(const head *h, const tr_layer_io *io) {
    return io->block[TR_LIFE_SCRATCH] + h->operators_at;
}

/* logits[R, v] = ln[R, C] wte[v, C]^T, and its two gradients. */
static void describe_projection(head *h, const tr_usage *usage) {
    tr_dtype dtype = usage->dtype;
    int64_t R = usage->rows, C = h->width, v = h->vocab.extent;
    tr_matmul_desc forward = {
        .m = R, .n = v, .k = C, .a = dtype, .b = dtype, .c = dtype, .trans_b = true};
    tr_matmul_desc dgrad = {.m = R, .n = C, .k = v, .a = dtype, .b = dtype, .c = dtype};
    tr_matmul_desc wgrad = {.m = v,
                            .n = C,
                            .k = R,
                            .a = dtype,
                            .b = dtype,
                            .c = TR_F32,
                            .trans_a = true,
                            .accumulate = true};
    h->project.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = forward};
    h->project_dgrad.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = dgrad};
    h->project_wgrad.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = wgrad};
    h->layer.flops_f += tr_op_flops(&h->project.desc);
    h->layer.flops_i += tr_op_flops(&h->project_dgrad.desc);
    h->layer.flops_w += tr_op_flops(&h->project_wgrad.desc);
}

static void describe(head *h, const tr_usage *usage) {
    tr_layer *layer = &h->layer;
    tr_dtype dtype = usage->dtype;
    int64_t v = h->vocab.extent;
    h->usage = *usage;
    tr_layer_reset(layer);
    tr_norm_describe(&h->ln_f, layer, usage, h->width);
    describe_projection(h, usage);
    tr_xent_desc xent = {
        .rows = usage->rows, .vocab = v, .vocab_begin = h->vocab.begin, .dtype = dtype};
    h->xent_max.desc = (tr_op_desc){.kind = TR_OP_XENT_MAX, .xent = xent};
    h->xent_sum.desc = (tr_op_desc){.kind = TR_OP_XENT_SUM, .xent = xent};
    h->xent_loss.desc = (tr_op_desc){.kind = TR_OP_XENT_LOSS, .xent = xent};
    tr_rows_desc cast = {.rows = usage->rows, .width = v, .dtype = dtype, .to = TR_F32};
    h->cast.desc = (tr_op_desc){.kind = TR_OP_CAST, .rows = cast};

    h->logits = tr_buffer_place(layer, usage, TR_LIFE_FW, v, dtype);
    if (!usage->decode) {
        h->max = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, 1, TR_F32);
        h->sums = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, 2, TR_F32);
    }
    h->operators_at = layer->bytes[TR_LIFE_SCRATCH];
    if (h->split) {
        double rows = (double)usage->rows;
        layer->reduce_bytes_f = rows * 3 * (double)sizeof(float);
        layer->reduce_bytes_i = rows * (double)h->width * (double)tr_dtype_size(dtype);
    }
}

static tr_status prepare(tr_layer *layer, const tr_layer_env *env) {
    head *h = (head *)layer;
    TR_TRY(tr_layer_check(layer, &h->created, env));
    tr_usage usage = tr_usage_env(env);
    describe(h, &usage);
    h->tp = env->tp;
    size_t scratch = 0;
    TR_TRY(tr_norm_prepare(&h->ln_f, env->device, env->decode, &scratch));
    TR_TRY(tr_plan_prepare(&h->project, env->device, &scratch));
    if (env->decode) {
        TR_TRY(tr_plan_prepare(&h->cast, env->device, &scratch));
    } else {
        TR_TRY(tr_plan_prepare(&h->project_dgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&h->project_wgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&h->xent_max, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&h->xent_sum, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&h->xent_loss, env->device, &scratch));
    }
    layer->bytes[TR_LIFE_SCRATCH] = h->operators_at + tr_align_up(scratch);
    return TR_OK;
}

/* Fills the norm's buffers and the logits. */
static tr_status project(const head *h, const tr_layer_io *io) {
    void *scratch = scratch_of(h, io);
    TR_TRY(tr_norm_forward(&h->ln_f, io, scratch, io->x));
    tr_op_args args = {.t = {[TR_MATMUL_A] = tr_buffer_at(io, h->ln_f.y),
                             [TR_MATMUL_B] = h->params[TIED_WTE].value,
                             [TR_MATMUL_C] = tr_buffer_at(io, h->logits)}};
    TR_TRY(tr_plan_run(&h->project, io, scratch, args));
    return TR_OK;
}

static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io), *max = tr_buffer_at(io, h->max);
    void *sums = tr_buffer_at(io, h->sums);
    TR_TRY(project(h, io));
    tr_op_args args = {.t = {[TR_XENT_LOGITS] = tr_buffer_at(io, h->logits),
                             [TR_XENT_LABELS] = (void *)io->labels,
                             [TR_XENT_MAX] = max,
                             [TR_XENT_SUMS] = sums,
                             [TR_XENT_LOSS] = io->loss}};
    TR_TRY(tr_plan_run(&h->xent_max, io, scratch, args));
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, max, h->usage.rows, TR_F32, TR_REDUCE_MAX));
    TR_TRY(tr_plan_run(&h->xent_sum, io, scratch, args));
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, sums, 2 * h->usage.rows, TR_F32, TR_REDUCE_SUM));
    TR_TRY(tr_plan_run(&h->xent_loss, io, scratch, args));
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io), *dln = tr_buffer_at(io, h->ln_f.dy);
    tr_op_args args = {.t = {[TR_MATMUL_A] = tr_buffer_at(io, h->logits),
                             [TR_MATMUL_B] = h->params[TIED_WTE].value,
                             [TR_MATMUL_C] = dln}};
    TR_TRY(tr_plan_run(&h->project_dgrad, io, scratch, args));
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, dln, h->usage.rows * h->width, h->usage.dtype,
                               TR_REDUCE_SUM));
    TR_TRY(tr_norm_grad_input(&h->ln_f, io, scratch, io->x, NULL, io->dx));
    return TR_OK;
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io);
    tr_op_args args = {.t = {[TR_MATMUL_A] = tr_buffer_at(io, h->logits),
                             [TR_MATMUL_B] = tr_buffer_at(io, h->ln_f.y),
                             [TR_MATMUL_C] = h->params[TIED_WTE].grad}};
    TR_TRY(tr_plan_run(&h->project_wgrad, io, scratch, args));
    TR_TRY(tr_norm_grad_weight(&h->ln_f, io, scratch, io->x));
    return TR_OK;
}

static tr_status decode(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    TR_TRY(project(h, io));
    tr_op_args args = {.t = {[TR_CAST_X] = tr_buffer_at(io, h->logits), [TR_CAST_Y] = io->logits}};
    TR_TRY(tr_plan_run(&h->cast, io, scratch_of(h, io), args));
    return TR_OK;
}

static void destroy(tr_layer *layer) {
    head *h = (head *)layer;
    tr_norm_release(&h->ln_f);
    tr_plan_release(&h->project);
    tr_plan_release(&h->project_dgrad);
    tr_plan_release(&h->project_wgrad);
    tr_plan_release(&h->xent_max);
    tr_plan_release(&h->xent_sum);
    tr_plan_release(&h->xent_loss);
    tr_plan_release(&h->cast);
    free(h);
}

static const tr_layer_ops ops = {.kind = "head",
                                 .prepare = prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = decode,
                                 .destroy = destroy};

tr_status tr_head_create(const tr_model_config *config, const tr_model_shape *shape,
                         tr_layer **out) {
    head *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    tr_layer *layer = &h->layer;
    layer->ops = &ops;
    layer->params = h->params;
    layer->params_count = HEAD_PARAMS;
    layer->makes_loss = true;
    layer->input_life = TR_LIFE_FW; /* ln_f's weight gradient reads it */
    (void)snprintf(layer->name, sizeof layer->name, "transformer.head");
    h->width = config->width;
    h->vocab = tr_range_part(config->vocab, shape->tp_size, shape->tp_rank);
    h->split = shape->tp_size > 1;
    tr_param_describe(&h->params[LN_F_WEIGHT], 1, &config->width, TR_INIT_ONE, 0,
                      "transformer.ln_f.weight");
    tr_param_describe(&h->params[LN_F_BIAS], 1, &config->width, TR_INIT_ZERO, 0,
                      "transformer.ln_f.bias");
    tr_gpt2_describe_wte(&h->params[TIED_WTE], config, shape, 1);
    h->ln_f.gamma = &h->params[LN_F_WEIGHT];
    h->ln_f.beta = &h->params[LN_F_BIAS];
    h->created = tr_usage_train(shape);
    describe(h, &h->created);
    *out = layer;
    return TR_OK;
}
