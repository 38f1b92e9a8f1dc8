/* A GPT-2 block (Radford et al. 2019): pre-LayerNorm causal attention and MLP, each with dropout on
 * its way into the residual stream. Tensor ranks hold whole heads and equal parts of the MLP:
 * c_attn and c_fc are column-parallel, both c_proj row-parallel, so F has two all-reduces, I has
 * two.
 *
 * R = batch * seq rows, C = width, c = C / tp. */
#include "layers/model_impl.h"
#include "layers/param_impl.h"
#include "layers/piece.h"

#include "base/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    LN_1_WEIGHT,
    LN_1_BIAS,
    ATTN_WEIGHT,
    ATTN_BIAS,
    PROJ_WEIGHT,
    PROJ_BIAS,
    LN_2_WEIGHT,
    LN_2_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    OUT_WEIGHT,
    OUT_BIAS,
    BLOCK_PARAMS
};

/* Dropout(x + bias) + residual behind a row-parallel layer, and its gradient. */
typedef struct residual_add {
    uint64_t site;
    tr_plan forward, grad_input;
    tr_buffer dx; /* I..W (R, C): gradient of the row-parallel layer's output */
} residual_add;

typedef struct block {
    tr_layer layer;
    tr_param params[BLOCK_PARAMS];
    tr_usage created, usage;
    int64_t width, local_width, heads, head_dim; /* heads: local */
    float dropout;
    tr_group *tp;

    tr_norm ln_1, ln_2;
    tr_linear attn, proj, fc, out;
    residual_add add_attn, add_mlp;
    tr_plan attention, attention_dgrad;

    tr_buffer qkv;       /* F..I (R, 3, heads, head_dim) */
    tr_buffer lse;       /* F..I f32 (batch, heads, seq) */
    tr_buffer y;         /* F..W (R, c): attention's output */
    tr_buffer h;         /* F..W (R, C): residual stream between attention and MLP */
    tr_buffer fc_y;      /* F..I (R, 4c): input of GELU */
    tr_buffer gelu_y;    /* F..W (R, 4c) */
    tr_buffer dfc;       /* I..W (R, 4c): gradient of fc_y */
    tr_buffer dqkv;      /* I..W (R, 3c) */
    tr_buffer dy;        /* scratch (R, c): gradient of y */
    size_t operators_at; /* scratch of operators begins here */
} block;

static void *scratch_of(const block *b, const tr_layer_io *io) {
    return io->scratch + b->operators_at;
}

static tr_status sum_over_tp(const block *b, const tr_layer_io *io, tr_tensor x) {
    TR_TRY(tr_group_all_reduce(b->tp, io->stream, x.data, tr_tensor_count(&x), x.dtype,
                               TR_REDUCE_SUM));
    return TR_OK;
}

/* (R, C) of the layer's inputs and outputs. */
static tr_tensor rows_of(const block *b, const void *data) {
    return tr_usage_tensor(&b->usage, data, b->width);
}

/* --- description --------------------------------------------------------------------------------
 */

static tr_status describe_params(block *b, const tr_model_config *config,
                                 const tr_model_shape *shape, int number) {
    int64_t C = config->width;
    float std = 0.02f, residual_std = 0.02f / sqrtf(2 * (float)config->layers);
    struct {
        int at, rank;
        int64_t shape[2];
        tr_init init;
        float std;
        const char *name;
    } list[] = {
        {LN_1_WEIGHT, 1, {C}, TR_INIT_ONE, 0, "ln_1.weight"},
        {LN_1_BIAS, 1, {C}, TR_INIT_ZERO, 0, "ln_1.bias"},
        {ATTN_WEIGHT, 2, {C, 3 * C}, TR_INIT_NORMAL, std, "attn.c_attn.weight"},
        {ATTN_BIAS, 1, {3 * C}, TR_INIT_ZERO, 0, "attn.c_attn.bias"},
        {PROJ_WEIGHT, 2, {C, C}, TR_INIT_NORMAL, residual_std, "attn.c_proj.weight"},
        {PROJ_BIAS, 1, {C}, TR_INIT_ZERO, 0, "attn.c_proj.bias"},
        {LN_2_WEIGHT, 1, {C}, TR_INIT_ONE, 0, "ln_2.weight"},
        {LN_2_BIAS, 1, {C}, TR_INIT_ZERO, 0, "ln_2.bias"},
        {FC_WEIGHT, 2, {C, 4 * C}, TR_INIT_NORMAL, std, "mlp.c_fc.weight"},
        {FC_BIAS, 1, {4 * C}, TR_INIT_ZERO, 0, "mlp.c_fc.bias"},
        {OUT_WEIGHT, 2, {4 * C, C}, TR_INIT_NORMAL, residual_std, "mlp.c_proj.weight"},
        {OUT_BIAS, 1, {C}, TR_INIT_ZERO, 0, "mlp.c_proj.bias"},
    };
    for (int i = 0; i < BLOCK_PARAMS; i++)
        TR_TRY(tr_param_describe(&b->params[list[i].at], list[i].rank, list[i].shape, list[i].init,
                                 list[i].std, "transformer.h.%d.%s", number, list[i].name));

    tr_range own = tr_range_part(C, shape->tp_size, shape->tp_rank);
    tr_slice row = {.range = own}, four = {.range = {4 * own.begin, 4 * own.extent}};
    tr_slice qkv[3]; /* the columns of q, k and v that belong to this rank's heads */
    for (int i = 0; i < 3; i++) qkv[i] = (tr_slice){.range = {i * C + own.begin, own.extent}};
    TR_TRY(tr_param_keep(&b->params[ATTN_WEIGHT], 1, qkv, 3));
    TR_TRY(tr_param_keep(&b->params[ATTN_BIAS], 0, qkv, 3));
    TR_TRY(tr_param_keep(&b->params[PROJ_WEIGHT], 0, &row, 1));
    TR_TRY(tr_param_keep(&b->params[FC_WEIGHT], 1, &four, 1));
    TR_TRY(tr_param_keep(&b->params[FC_BIAS], 0, &four, 1));
    TR_TRY(tr_param_keep(&b->params[OUT_WEIGHT], 0, &four, 1));
    return TR_OK;
}

static void connect_params(block *b) {
    b->ln_1.gamma = &b->params[LN_1_WEIGHT];
    b->ln_1.beta = &b->params[LN_1_BIAS];
    b->ln_2.gamma = &b->params[LN_2_WEIGHT];
    b->ln_2.beta = &b->params[LN_2_BIAS];
    b->attn.weight = &b->params[ATTN_WEIGHT];
    b->attn.bias = &b->params[ATTN_BIAS];
    b->proj.weight = &b->params[PROJ_WEIGHT];
    b->proj.bias = &b->params[PROJ_BIAS];
    b->fc.weight = &b->params[FC_WEIGHT];
    b->fc.bias = &b->params[FC_BIAS];
    b->out.weight = &b->params[OUT_WEIGHT];
    b->out.bias = &b->params[OUT_BIAS];
    /* Row-parallel layers add their bias after the reduction, with the dropout. */
    b->attn.fused_bias = b->fc.fused_bias = true;
    b->fc.before_gelu = b->out.after_gelu = true;
}

static void describe_add(block *b, residual_add *add) {
    const tr_usage *usage = &b->usage;
    tr_dropout_desc desc = {.rows = usage->rows,
                            .width = b->width,
                            .seq = usage->decode ? 1 : usage->seq,
                            .p = usage->decode ? 0 : b->dropout,
                            .site = add->site,
                            .dtype = usage->dtype};
    add->forward.desc = (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = desc};
    add->grad_input.desc = (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = desc};
}

/* Operators, buffers and FLOPs for one way of use. */
static void describe(block *b, const tr_usage *usage) {
    tr_layer *layer = &b->layer;
    int64_t C = b->width, c = b->local_width;
    tr_dtype dtype = usage->dtype;
    b->usage = *usage;
    tr_layer_reset(layer);
    layer->output[0] = tr_usage_flow(usage, "hidden", C);
    tr_norm_describe(&b->ln_1, layer, usage, C);
    tr_linear_describe(&b->attn, layer, usage, C, 3 * c);
    tr_linear_describe(&b->proj, layer, usage, c, C);
    tr_norm_describe(&b->ln_2, layer, usage, C);
    tr_linear_describe(&b->fc, layer, usage, C, 4 * c);
    tr_linear_describe(&b->out, layer, usage, 4 * c, C);
    describe_add(b, &b->add_attn);
    describe_add(b, &b->add_mlp);

    tr_attention_desc attention = {.batch = usage->batch,
                                   .seq = usage->seq,
                                   .heads = b->heads,
                                   .head_dim = b->head_dim,
                                   .dtype = dtype};
    b->attention.desc = (tr_op_desc){
        .kind = usage->decode ? TR_OP_ATTENTION_DECODE : TR_OP_ATTENTION, .attention = attention};
    b->attention_dgrad.desc = (tr_op_desc){.kind = TR_OP_ATTENTION_DGRAD, .attention = attention};
    layer->flops_f += tr_op_flops(&b->attention.desc);
    layer->flops_i += tr_op_flops(&b->attention_dgrad.desc);

    b->qkv = tr_buffer_place(layer, usage, TR_LIFE_FI, 3 * c, dtype);
    b->y = tr_buffer_place(layer, usage, TR_LIFE_FW, c, dtype);
    b->h = tr_buffer_place(layer, usage, TR_LIFE_FW, C, dtype);
    b->fc_y = tr_buffer_place(layer, usage, TR_LIFE_FI, 4 * c, dtype);
    b->gelu_y = tr_buffer_place(layer, usage, TR_LIFE_FW, 4 * c, dtype);
    if (!usage->decode) {
        b->lse = tr_buffer_place(layer, usage, TR_LIFE_FI, b->heads, TR_F32);
        b->dqkv = tr_buffer_place(layer, usage, TR_LIFE_IW, 3 * c, dtype);
        b->dfc = tr_buffer_place(layer, usage, TR_LIFE_IW, 4 * c, dtype);
        b->add_attn.dx = tr_buffer_place(layer, usage, TR_LIFE_IW, C, dtype);
        b->add_mlp.dx = tr_buffer_place(layer, usage, TR_LIFE_IW, C, dtype);
        b->dy = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, c, dtype);
    }
    b->operators_at = layer->bytes[TR_LIFE_SCRATCH];
    if (c < C) {
        double bytes = (double)usage->rows * (double)C * (double)tr_dtype_size(dtype);
        layer->reduce_bytes_f = layer->reduce_bytes_i = 2 * bytes;
    }
}

/* Bytes of the keys, and of the values, of a decoding cache. */
static size_t cache_part(const block *b) {
    return tr_align_up((size_t)(b->usage.batch * b->usage.seq * b->local_width) *
                       tr_dtype_size(b->usage.dtype));
}

static tr_status prepare(tr_layer *layer, const tr_layer_env *env) {
    block *b = (block *)layer;
    TR_TRY(tr_layer_check(layer, &b->created, env));
    tr_usage usage = tr_usage_env(env);
    describe(b, &usage);
    b->tp = env->tp;
    bool decode = env->decode;
    layer->cache_bytes = decode ? 2 * cache_part(b) : 0;
    size_t scratch = 0;
    TR_TRY(tr_norm_prepare(&b->ln_1, env->device, decode, &scratch));
    TR_TRY(tr_linear_prepare(&b->attn, env->device, decode, &scratch));
    TR_TRY(tr_plan_prepare(&b->attention, env->device, &scratch));
    TR_TRY(tr_linear_prepare(&b->proj, env->device, decode, &scratch));
    TR_TRY(tr_plan_prepare(&b->add_attn.forward, env->device, &scratch));
    TR_TRY(tr_norm_prepare(&b->ln_2, env->device, decode, &scratch));
    TR_TRY(tr_linear_prepare(&b->fc, env->device, decode, &scratch));
    TR_TRY(tr_linear_prepare(&b->out, env->device, decode, &scratch));
    TR_TRY(tr_plan_prepare(&b->add_mlp.forward, env->device, &scratch));
    if (!decode) {
        TR_TRY(tr_plan_prepare(&b->attention_dgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&b->add_attn.grad_input, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&b->add_mlp.grad_input, env->device, &scratch));
    }
    layer->bytes[TR_LIFE_SCRATCH] = b->operators_at + tr_align_up(scratch);
    return TR_OK;
}

/* --- F ------------------------------------------------------------------------------------------
 */

/* y = residual + dropout(y + bias), where y is the row-parallel layer's partial output on entry. */
static tr_status add_forward(const block *b, const tr_layer_io *io, const residual_add *add,
                             const tr_param *bias, tr_tensor residual, tr_tensor y) {
    TR_TRY(sum_over_tp(b, io, y));
    tr_op_args args = {.t = {[TR_DROPOUT_X] = y,
                             [TR_DROPOUT_BIAS] = tr_param_value(bias),
                             [TR_DROPOUT_RESIDUAL] = residual,
                             [TR_DROPOUT_Y] = y}};
    TR_TRY(tr_plan_run(&add->forward, io, scratch_of(b, io), args));
    return TR_OK;
}

static tr_tensor lse_at(const block *b, const tr_layer_io *io) {
    const int64_t shape[] = {b->usage.batch, b->heads, b->usage.seq};
    return tr_tensor_reshape(tr_buffer_at(io, b->lse), 3, shape);
}

/* The keys or the values of the decoding cache. */
static tr_tensor cache_at(const block *b, const char *data) {
    return tr_tensor_matrix(data, b->usage.dtype, b->usage.batch * b->usage.seq, b->local_width);
}

static tr_status attend_cache(const block *b, const tr_layer_io *io) {
    const char *keys = io->cache;
    tr_op_args args = {.t = {[TR_DECODE_QKV] = tr_buffer_at(io, b->qkv),
                             [TR_DECODE_KCACHE] = cache_at(b, keys),
                             [TR_DECODE_VCACHE] = cache_at(b, keys + cache_part(b)),
                             [TR_DECODE_Y] = tr_buffer_at(io, b->y)}};
    TR_TRY(tr_plan_run(&b->attention, io, scratch_of(b, io), args));
    return TR_OK;
}

static tr_status attend(const block *b, const tr_layer_io *io) {
    if (b->usage.decode) return attend_cache(b, io);
    tr_op_args args = {.t = {[TR_ATTENTION_QKV] = tr_buffer_at(io, b->qkv),
                             [TR_ATTENTION_Y] = tr_buffer_at(io, b->y),
                             [TR_ATTENTION_LSE] = lse_at(b, io)}};
    TR_TRY(tr_plan_run(&b->attention, io, scratch_of(b, io), args));
    return TR_OK;
}

/* F, and decoding: the same way for rows of one token, with attention to the cache. */
static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    void *scratch = scratch_of(b, io);
    const tr_tensor none = {0}, x = rows_of(b, io->x[0]), y = rows_of(b, io->y[0]);
    const tr_tensor h = tr_buffer_at(io, b->h), gelu_y = tr_buffer_at(io, b->gelu_y);
    TR_TRY(tr_norm_forward(&b->ln_1, io, scratch, x));
    TR_TRY(tr_linear_forward(&b->attn, io, scratch, tr_buffer_at(io, b->ln_1.y), none,
                             tr_buffer_at(io, b->qkv)));
    TR_TRY(attend(b, io));
    TR_TRY(tr_linear_forward(&b->proj, io, scratch, tr_buffer_at(io, b->y), none, h));
    TR_TRY(add_forward(b, io, &b->add_attn, b->proj.bias, x, h));

    TR_TRY(tr_norm_forward(&b->ln_2, io, scratch, h));
    TR_TRY(tr_linear_forward(&b->fc, io, scratch, tr_buffer_at(io, b->ln_2.y),
                             tr_buffer_at(io, b->fc_y), gelu_y));
    TR_TRY(tr_linear_forward(&b->out, io, scratch, gelu_y, none, y));
    TR_TRY(add_forward(b, io, &b->add_mlp, b->out.bias, h, y));
    return TR_OK;
}

/* --- I ------------------------------------------------------------------------------------------
 */

/* Fills add->dx from dy[R, C], the gradient of the sum. */
static tr_status add_grad_input(const block *b, const tr_layer_io *io, const residual_add *add,
                                tr_tensor dy) {
    tr_op_args args = {
        .t = {[TR_DROPOUT_DGRAD_DY] = dy, [TR_DROPOUT_DGRAD_DX] = tr_buffer_at(io, add->dx)}};
    TR_TRY(tr_plan_run(&add->grad_input, io, scratch_of(b, io), args));
    return TR_OK;
}

/* dx holds the gradient of h afterwards. */
static tr_status mlp_grad_input(const block *b, const tr_layer_io *io) {
    void *scratch = scratch_of(b, io);
    const tr_tensor none = {0}, dy = rows_of(b, io->dy[0]), dx = rows_of(b, io->dx[0]);
    const tr_tensor dfc = tr_buffer_at(io, b->dfc), dln = tr_buffer_at(io, b->ln_2.dy);
    TR_TRY(add_grad_input(b, io, &b->add_mlp, dy));
    TR_TRY(tr_linear_grad_input(&b->out, io, scratch, tr_buffer_at(io, b->add_mlp.dx),
                                tr_buffer_at(io, b->fc_y), dfc));
    TR_TRY(tr_linear_grad_input(&b->fc, io, scratch, dfc, none, dln));
    TR_TRY(sum_over_tp(b, io, dln));
    TR_TRY(tr_norm_grad_input(&b->ln_2, io, scratch, tr_buffer_at(io, b->h), dy, dx));
    return TR_OK;
}

/* dx: the gradient of h on entry, of x on return. */
static tr_status attention_grad_input(const block *b, const tr_layer_io *io) {
    void *scratch = scratch_of(b, io);
    const tr_tensor none = {0}, x = rows_of(b, io->x[0]), dx = rows_of(b, io->dx[0]);
    const tr_tensor dqkv = tr_buffer_at(io, b->dqkv), dy = tr_buffer_at(io, b->dy);
    const tr_tensor dln = tr_buffer_at(io, b->ln_1.dy);
    TR_TRY(add_grad_input(b, io, &b->add_attn, dx));
    TR_TRY(tr_linear_grad_input(&b->proj, io, scratch, tr_buffer_at(io, b->add_attn.dx), none, dy));
    tr_op_args attention = {.t = {[TR_ATTENTION_DGRAD_DY] = dy,
                                  [TR_ATTENTION_DGRAD_QKV] = tr_buffer_at(io, b->qkv),
                                  [TR_ATTENTION_DGRAD_Y] = tr_buffer_at(io, b->y),
                                  [TR_ATTENTION_DGRAD_LSE] = lse_at(b, io),
                                  [TR_ATTENTION_DGRAD_DQKV] = dqkv}};
    TR_TRY(tr_plan_run(&b->attention_dgrad, io, scratch, attention));
    TR_TRY(tr_linear_grad_input(&b->attn, io, scratch, dqkv, none, dln));
    TR_TRY(sum_over_tp(b, io, dln));
    TR_TRY(tr_norm_grad_input(&b->ln_1, io, scratch, x, dx, dx));
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    TR_TRY(mlp_grad_input(b, io));
    TR_TRY(attention_grad_input(b, io));
    return TR_OK;
}

/* --- W ------------------------------------------------------------------------------------------
 */

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    void *scratch = scratch_of(b, io);
    TR_TRY(tr_linear_grad_weight(&b->out, io, scratch, tr_buffer_at(io, b->gelu_y),
                                 tr_buffer_at(io, b->add_mlp.dx)));
    TR_TRY(tr_linear_grad_weight(&b->fc, io, scratch, tr_buffer_at(io, b->ln_2.y),
                                 tr_buffer_at(io, b->dfc)));
    TR_TRY(tr_norm_grad_weight(&b->ln_2, io, scratch, tr_buffer_at(io, b->h)));
    TR_TRY(tr_linear_grad_weight(&b->proj, io, scratch, tr_buffer_at(io, b->y),
                                 tr_buffer_at(io, b->add_attn.dx)));
    TR_TRY(tr_linear_grad_weight(&b->attn, io, scratch, tr_buffer_at(io, b->ln_1.y),
                                 tr_buffer_at(io, b->dqkv)));
    TR_TRY(tr_norm_grad_weight(&b->ln_1, io, scratch, rows_of(b, io->x[0])));
    return TR_OK;
}

/* --- life ---------------------------------------------------------------------------------------
 */

static void destroy(tr_layer *layer) {
    block *b = (block *)layer;
    tr_norm_release(&b->ln_1);
    tr_norm_release(&b->ln_2);
    tr_linear_release(&b->attn);
    tr_linear_release(&b->proj);
    tr_linear_release(&b->fc);
    tr_linear_release(&b->out);
    tr_plan *plans[] = {&b->attention,       &b->attention_dgrad,     &b->add_attn.forward,
                        &b->add_mlp.forward, &b->add_attn.grad_input, &b->add_mlp.grad_input};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) tr_plan_release(plans[i]);
    tr_params_release(b->params, BLOCK_PARAMS);
    tr_layer_free(&b->layer);
}

static const tr_layer_ops ops = {.kind = "block",
                                 .prepare = prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = forward,
                                 .destroy = destroy};

tr_status tr_block_create(const tr_model_config *config, const tr_model_shape *shape, int number,
                          tr_layer **out) {
    block *b;
    TR_TRY(tr_calloc(1, sizeof *b, &b));
    tr_layer *layer = &b->layer;
    layer->ops = &ops;
    layer->params = b->params;
    layer->params_count = BLOCK_PARAMS;
    layer->inputs = layer->outputs = 1;
    /* ln_1's weight gradient reads it. */
    layer->input[0] = (tr_layer_input){.layer = TR_LAYER_BEFORE, .life = TR_LIFE_FW};
    (void)snprintf(layer->name, sizeof layer->name, "transformer.h.%d", number);
    b->width = config->width;
    b->local_width = config->width / shape->tp_size;
    b->head_dim = config->width / config->heads;
    b->heads = config->heads / shape->tp_size;
    b->dropout = (float)config->dropout;
    char site[TR_NAME_SIZE + 32];
    (void)snprintf(site, sizeof site, "%s.attn.resid_dropout", layer->name);
    b->add_attn.site = tr_hash_name(site);
    (void)snprintf(site, sizeof site, "%s.mlp.dropout", layer->name);
    b->add_mlp.site = tr_hash_name(site);
    tr_status status = describe_params(b, config, shape, number);
    if (status != TR_OK) {
        destroy(layer);
        return status;
    }
    connect_params(b);
    b->created = tr_usage_train(shape);
    describe(b, &b->created);
    *out = layer;
    return TR_OK;
}
