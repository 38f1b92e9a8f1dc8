/* A transformer block: attention and MLP, each with a norm before it and a residual addition after
 * it (Radford et al. 2019). The family chooses the kinds of parts. R = batch * seq rows, S = the
 * rows of this rank's slice (R without sequence parallelism), C = width.
 *
 * Sequence parallelism (Korthikanti et al. 2022): norms and residual additions work on S rows, and
 * products on R. The norms' outputs and the gradients of the parts' outputs are gathered before
 * products read them, in W again instead of kept; outputs and input gradients of products are
 * summed to S rows. */
#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/model_impl.h"
#include "layers/norm.h"
#include "layers/residual.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct block {
    tr_built_layer built;
    int64_t width;
    tr_norm norm_1, norm_2;
    tr_attention_part attention;
    tr_mlp mlp;
    tr_residual add_attention, add_mlp;
    tr_buffer h;  /* F..W (S, C), recompute full I..W: residual stream between attention and MLP */
    tr_buffer dh; /* without dropout: I..W (S, C): its gradient, also that of attention's output */
    /* With sequence parallelism, scratch (R, C): a norm's output, and in F then this rank's part of
     * an output; the gradient of an output; this rank's part of the gradient of a norm's output. */
    tr_buffer x, dy, dx;
} block;

/* --- description ------------------------------------------------------------------------------ */

static bool drops(const block *b) {
    return b->add_mlp.dropout > 0;
}

/* What a part, attention or MLP, sums and gathers: the gradient of its input, behind which B runs
 * its W; its input in F, and again for W (`for_w`: when), behind the part's I; the gradient of its
 * output, again where W is apart from I. */
static void describe_sums(block *b, const tr_linear *in, const tr_linear *out,
                          tr_layer_sum_when for_w, double flops_i, double flops_w) {
    tr_built_layer *built = &b->built;
    tr_built_slice_sums(built, TR_LAYER_SUM_I, 1, b->width, flops_w);
    tr_built_slice_gathers(built, TR_LAYER_SUM_F, 1, b->width, 0);
    tr_built_slice_gathers(built, TR_LAYER_SUM_I, 1, b->width, 0);
    tr_built_slice_gathers(built, for_w, tr_linear_has_grads(in), b->width, flops_i);
    tr_built_slice_gathers(built, TR_LAYER_SUM_W_APART, tr_linear_has_grads(out), b->width, 0);
}

static void describe_attention(block *b) {
    const tr_layer *layer = &b->built.layer;
    const double i = layer->flops_i, w = layer->flops_w;
    tr_attention_describe(&b->attention);
    describe_sums(b, &b->attention.qkv, &b->attention.out, TR_LAYER_SUM_W, layer->flops_i - i,
                  layer->flops_w - w);
}

static void describe_mlp(block *b) {
    const tr_layer *layer = &b->built.layer;
    const double i = layer->flops_i, w = layer->flops_w;
    tr_mlp_describe(&b->mlp);
    describe_sums(b, &b->mlp.up, &b->mlp.down,
                  b->built.recompute == TR_RECOMPUTE_FULL ? TR_LAYER_SUM_W_APART : TR_LAYER_SUM_W,
                  layer->flops_i - i, layer->flops_w - w);
}

/* Full recompute gathers the norms' outputs, and sums the output of attention, again. */
static void describe_rebuild(block *b) {
    tr_built_layer *built = &b->built;
    if (built->recompute != TR_RECOMPUTE_FULL) return;
    tr_built_slice_sums(built, TR_LAYER_SUM_I, 1, b->width, 0);
    tr_built_slice_gathers(built, TR_LAYER_SUM_I, 2, b->width, 0);
    built->layer.flops_i += b->mlp.rebuilt_flops;
}

static void describe(tr_built_layer *built) {
    block *b = (block *)built;
    tr_built_writes(built, b->width);
    b->x = tr_built_place_all(built, b->width);
    b->attention.out.all = b->mlp.down.all = b->x;
    tr_norm_describe(&b->norm_1);
    describe_attention(b);
    tr_residual_describe(&b->add_attention);
    tr_norm_describe(&b->norm_2);
    describe_mlp(b);
    tr_residual_describe(&b->add_mlp);
    b->h = tr_built_save_slice(built, TR_LIFE_FW, TR_RECOMPUTE_FULL, TR_LIFE_IW, b->width,
                               built->shape.dtype);
    b->dy = tr_built_place_all(built, b->width);
    b->dx = tr_built_place_all(built, b->width);
    describe_rebuild(b);
    if (built->shape.decode || drops(b)) return;
    b->dh = tr_built_place_slice(built, TR_LIFE_IW, b->width, built->shape.dtype);
    /* The gradient of the MLP's output. */
    built->layer.w_reads_dy[0] = tr_linear_has_grads(&b->mlp.down);
}

/* --- F, I, W ---------------------------------------------------------------------------------- */

/* Returns a norm's output of all rows, after it was gathered. */
static tr_tensor x_of(const block *b, const tr_layer_io *io, const tr_norm *norm) {
    return tr_built_all(&b->built, io, b->x, tr_buffer_at(io, norm->y));
}

static tr_status gather_x(const block *b, const tr_layer_io *io, const tr_norm *norm) {
    return tr_built_gather(&b->built, io, b->x, tr_buffer_at(io, norm->y));
}

/* Fills h, and the output of norm_2. */
static tr_status attend(const block *b, const tr_layer_io *io, tr_tensor x, tr_tensor h) {
    TR_TRY(tr_norm_forward(&b->norm_1, io, x));
    TR_TRY(gather_x(b, io, &b->norm_1));
    TR_TRY(tr_attention_forward(&b->attention, io, x_of(b, io, &b->norm_1), x, h));
    return tr_residual_forward(&b->add_attention, io, x, h); /* and norm_2 */
}

/* F and decoding. Decoding is the same for rows of one token, with attention to the cache. */
static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    const tr_tensor x = io->x[0], y = io->y[0], h = tr_buffer_at(io, b->h);
    TR_TRY(attend(b, io, x, h));
    TR_TRY(gather_x(b, io, &b->norm_2));
    TR_TRY(tr_mlp_forward(&b->mlp, io, x_of(b, io, &b->norm_2), h, y));
    return tr_residual_forward(&b->add_mlp, io, h, y);
}

/* Returns the gradient of h. With dropout it is not read after I, so it is kept in dx. */
static tr_tensor dh_at(const block *b, const tr_layer_io *io) {
    return drops(b) ? io->dx[0] : tr_buffer_at(io, b->dh);
}

/* Builds again what I and W read and F did not keep. Full recompute runs all of F except the
 * product that makes y, which no gradient reads. */
static tr_status rebuild_for_input(const block *b, const tr_layer_io *io) {
    const tr_tensor none = {0}, x = io->x[0];
    if (b->built.recompute == TR_RECOMPUTE_NONE) return TR_OK;
    if (b->built.recompute == TR_RECOMPUTE_SELECTIVE) return tr_mlp_rebuild(&b->mlp, io, none);
    const tr_tensor h = tr_buffer_at(io, b->h);
    TR_TRY(attend(b, io, x, h));
    TR_TRY(gather_x(b, io, &b->norm_2));
    return tr_mlp_rebuild(&b->mlp, io, x_of(b, io, &b->norm_2));
}

/* Return the gradients of the slices of the parts' outputs, in I after tr_residual_grad_input, and
 * in W. */
static tr_tensor mlp_dy(const block *b, const tr_layer_io *io) {
    return tr_residual_dpart(&b->add_mlp, io, io->dy[0]);
}

static tr_tensor attention_dy(const block *b, const tr_layer_io *io) {
    return tr_residual_dpart(&b->add_attention, io, dh_at(b, io));
}

/* Returns where I puts this rank's part of the gradient of a norm's output, before it is summed. */
static tr_tensor part_of(const block *b, const tr_layer_io *io, const tr_norm *norm) {
    return tr_built_all(&b->built, io, b->dx, tr_buffer_at(io, norm->dy));
}

/* I of the MLP, up to this rank's part of the gradient of norm_2's output. Begins with the gradient
 * of all rows of its output. */
static tr_status mlp_grad_input(const block *b, const tr_layer_io *io) {
    return tr_mlp_grad_input(&b->mlp, io, tr_built_all(&b->built, io, b->dy, mlp_dy(b, io)),
                             part_of(b, io, &b->norm_2));
}

static tr_status mlp_gather_dy(const block *b, const tr_layer_io *io) {
    TR_TRY(tr_residual_grad_input(&b->add_mlp, io, io->dy[0]));
    return tr_built_gather(&b->built, io, b->dy, mlp_dy(b, io));
}

static tr_status norm_2_grad_input(const block *b, const tr_layer_io *io) {
    return tr_norm_grad_input(&b->norm_2, io, tr_buffer_at(io, b->h), io->dy[0], dh_at(b, io));
}

/* The same of attention, and norm_1. */
static tr_status attention_grad_input(const block *b, const tr_layer_io *io) {
    return tr_attention_grad_input(&b->attention, io,
                                   tr_built_all(&b->built, io, b->dy, attention_dy(b, io)),
                                   part_of(b, io, &b->norm_1));
}

static tr_status attention_gather_dy(const block *b, const tr_layer_io *io) {
    TR_TRY(tr_residual_grad_input(&b->add_attention, io, dh_at(b, io)));
    return tr_built_gather(&b->built, io, b->dy, attention_dy(b, io));
}

static tr_status norm_1_grad_input(const block *b, const tr_layer_io *io) {
    return tr_norm_grad_input(&b->norm_1, io, io->x[0], dh_at(b, io), io->dx[0]);
}

/* Begins to make the norm's output of all rows, for W of the linear layer that reads it, from the
 * norm's input. With selective recompute only W reads the slice: it builds it again. */
static tr_status begin_x(const block *b, const tr_layer_io *io, const tr_norm *norm,
                         const tr_linear *reader, tr_tensor from, int64_t *ticket) {
    *ticket = TR_GROUP_NO_TICKET;
    if (b->built.recompute == TR_RECOMPUTE_SELECTIVE) TR_TRY(tr_norm_rebuild(norm, io, from));
    if (!tr_linear_has_grads(reader)) return TR_OK;
    return tr_built_gather_start(&b->built, io, b->x, tr_buffer_at(io, norm->y), ticket);
}

static tr_status mlp_begin_x(const block *b, const tr_layer_io *io, int64_t *ticket) {
    return begin_x(b, io, &b->norm_2, &b->mlp.up, tr_buffer_at(io, b->h), ticket);
}

static tr_status attention_begin_x(const block *b, const tr_layer_io *io, int64_t *ticket) {
    return begin_x(b, io, &b->norm_1, &b->attention.qkv, io->x[0], ticket);
}

static tr_status mlp_grad_weight(const block *b, const tr_layer_io *io) {
    return tr_mlp_grad_weight(&b->mlp, io, x_of(b, io, &b->norm_2),
                              tr_built_all(&b->built, io, b->dy, mlp_dy(b, io)));
}

static tr_status attention_grad_weight(const block *b, const tr_layer_io *io) {
    return tr_attention_grad_weight(&b->attention, io, x_of(b, io, &b->norm_1),
                                    tr_built_all(&b->built, io, b->dy, attention_dy(b, io)));
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    TR_TRY(rebuild_for_input(b, io));
    TR_TRY(mlp_gather_dy(b, io));
    TR_TRY(mlp_grad_input(b, io));
    TR_TRY(tr_built_sum_slice(&b->built, io, b->dx, tr_buffer_at(io, b->norm_2.dy)));
    TR_TRY(norm_2_grad_input(b, io));
    TR_TRY(attention_gather_dy(b, io));
    TR_TRY(attention_grad_input(b, io));
    TR_TRY(tr_built_sum_slice(&b->built, io, b->dx, tr_buffer_at(io, b->norm_1.dy)));
    return norm_1_grad_input(b, io);
}

/* In W apart from I: gathers the gradient of a part's output again, while a slice of it is kept. */
static tr_status gather_dy_again(const block *b, const tr_layer_io *io, const tr_linear *reader,
                                 tr_tensor dy) {
    return tr_linear_has_grads(reader) ? tr_built_gather(&b->built, io, b->dy, dy) : TR_OK;
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    int64_t ticket;
    TR_TRY(mlp_begin_x(b, io, &ticket));
    TR_TRY(gather_dy_again(b, io, &b->mlp.down, mlp_dy(b, io)));
    TR_TRY(tr_built_wait(&b->built, io, ticket));
    TR_TRY(mlp_grad_weight(b, io));
    TR_TRY(tr_norm_grad_weight(&b->norm_2, io, tr_buffer_at(io, b->h)));
    TR_TRY(attention_begin_x(b, io, &ticket));
    TR_TRY(gather_dy_again(b, io, &b->attention.out, attention_dy(b, io)));
    TR_TRY(tr_built_wait(&b->built, io, ticket));
    TR_TRY(attention_grad_weight(b, io));
    return tr_norm_grad_weight(&b->norm_1, io, io->x[0]);
}

/* Walks the parts backwards. While a part's gradient is summed over the tensor ranks, its W runs,
 * which neither reads nor writes that gradient; and while W's input is gathered, I of the part
 * runs. */
static tr_status backward(tr_layer *layer, const tr_layer_io *io) {
    const block *b = (const block *)layer;
    int64_t sum, x = TR_GROUP_NO_TICKET;
    TR_TRY(rebuild_for_input(b, io));
    TR_TRY(mlp_gather_dy(b, io));
    /* Full recompute has just gathered it. */
    if (b->built.recompute != TR_RECOMPUTE_FULL) TR_TRY(mlp_begin_x(b, io, &x));
    TR_TRY(mlp_grad_input(b, io));
    TR_TRY(tr_built_sum_slice_start(&b->built, io, b->dx, tr_buffer_at(io, b->norm_2.dy), &sum));
    TR_TRY(tr_built_wait(&b->built, io, x));
    TR_TRY(mlp_grad_weight(b, io));
    TR_TRY(tr_built_wait(&b->built, io, sum));
    TR_TRY(norm_2_grad_input(b, io));
    TR_TRY(tr_norm_grad_weight(&b->norm_2, io, tr_buffer_at(io, b->h)));
    TR_TRY(attention_gather_dy(b, io));
    TR_TRY(attention_begin_x(b, io, &x));
    TR_TRY(attention_grad_input(b, io));
    TR_TRY(tr_built_sum_slice_start(&b->built, io, b->dx, tr_buffer_at(io, b->norm_1.dy), &sum));
    TR_TRY(tr_built_wait(&b->built, io, x));
    TR_TRY(attention_grad_weight(b, io));
    TR_TRY(tr_built_wait(&b->built, io, sum));
    TR_TRY(norm_1_grad_input(b, io));
    return tr_norm_grad_weight(&b->norm_1, io, io->x[0]);
}

static const tr_layer_ops ops = {.kind = "block",
                                 .prepare = tr_built_prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .backward = backward,
                                 .decode = forward,
                                 .destroy = tr_built_destroy};

/* --- creation --------------------------------------------------------------------------------- */

/* The rule of model.init for the matrices of blocks, and its deviation or factor. */
typedef struct init_rule {
    const char *name;
    tr_init init;
    float std;
} init_rule;

static const init_rule *init_of(const tr_model_config *c) {
    static const init_rule rules[] = {{"normal", TR_INIT_NORMAL, 0.02f},
                                      {"truncated", TR_INIT_TRUNCATED, 0.02f},
                                      {"xavier", TR_INIT_XAVIER, 1},
                                      {"he", TR_INIT_HE, 1},
                                      {"orthogonal", TR_INIT_ORTHOGONAL, 1}};
    for (size_t i = 1; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(c->init, rules[i].name)) return &rules[i];
    return &rules[0];
}

/* Returns the initial deviation of projections that are added to the residual stream 2 * layers
 * times. */
static float residual_std(const tr_model_config *c) {
    return init_of(c)->std / sqrtf(2 * (float)c->layers);
}

static tr_status create_norm(block *b, const tr_model *m, tr_norm *norm, const char *name) {
    char whole[2 * TR_NAME_SIZE];
    (void)snprintf(whole, sizeof whole, "%s.%s", b->built.layer.name, name);
    const tr_norm_desc desc = {
        .name = whole, .width = m->config.width, .eps = m->config.norm_eps, .rms = m->family->rms};
    return tr_norm_create(norm, &b->built, &desc);
}

static tr_status create_attention(block *b, const tr_model *m) {
    const tr_model_config *c = &m->config;
    const tr_family *f = m->family;
    const bool fuses = tr_family_fuses(f, c);
    tr_attention_part_desc desc = {.q = fuses ? f->qkv : f->q,
                                   .k = fuses ? NULL : f->k,
                                   .v = fuses ? NULL : f->v,
                                   .q_norm = c->qk_norm == TR_YES ? f->q_norm : NULL,
                                   .k_norm = c->qk_norm == TR_YES ? f->k_norm : NULL,
                                   .out = f->attention_out,
                                   .width = c->width,
                                   .heads = c->heads,
                                   .kv_heads = c->kv_heads,
                                   .head_size = c->head_size,
                                   .window = c->window,
                                   .rotary = !f->positions,
                                   .theta = c->rope_theta,
                                   .eps = c->norm_eps,
                                   .qkv_bias = c->qkv_bias == TR_YES,
                                   .out_bias = f->biases,
                                   .conv1d = f->conv1d,
                                   .init = init_of(c)->init,
                                   .std = init_of(c)->std,
                                   .out_std = residual_std(c)};
    TR_TRY(tr_model_rope_scaling(c->rope_scaling, &desc.scaling));
    return tr_attention_create(&b->attention, &b->built, &desc);
}

static tr_status create_mlp(block *b, const tr_model *m) {
    const tr_model_config *c = &m->config;
    const tr_family *f = m->family;
    const tr_model_activation_row *activation = tr_model_activation(c->activation);
    const tr_mlp_desc desc = {.gate = activation->gated ? f->gate : NULL,
                              .up = f->up,
                              .down = f->down,
                              .width = c->width,
                              .mlp_width = c->mlp_width,
                              .activation = activation->activation,
                              .bias = f->biases,
                              .conv1d = f->conv1d,
                              .init = init_of(c)->init,
                              .std = init_of(c)->std,
                              .out_std = residual_std(c)};
    return tr_mlp_create(&b->mlp, &b->built, &desc);
}

static void create_residual(block *b, const tr_model *m, tr_residual *residual, tr_linear *from,
                            tr_norm *norm, const char *name) {
    char site[2 * TR_NAME_SIZE];
    (void)snprintf(site, sizeof site, "%s.%s", b->built.layer.name, name);
    tr_residual_create(residual, from, norm, m->config.dropout, site);
}

static tr_status create(block *b, const tr_model *m) {
    const tr_family *f = m->family;
    TR_TRY(create_norm(b, m, &b->norm_1, f->norm_1));
    TR_TRY(create_attention(b, m));
    TR_TRY(create_norm(b, m, &b->norm_2, f->norm_2));
    create_residual(b, m, &b->add_attention, &b->attention.out, &b->norm_2, f->attention_site);
    TR_TRY(create_mlp(b, m));
    create_residual(b, m, &b->add_mlp, &b->mlp.down, NULL, "mlp.dropout");
    return tr_built_finish(&b->built);
}

tr_status tr_block_create(const tr_model *model, int number, tr_layer **out) {
    block *b;
    TR_TRY(tr_calloc(1, sizeof *b, &b));
    b->width = model->config.width;
    tr_built_begin(&b->built, &ops, describe, &model->shape, "%s.%s.%d", model->family->root,
                   model->family->blocks, number);
    if (model->config.lora.rank > 0) b->built.lora = &model->config.lora;
    if (!model->shape.decode) b->built.recompute = tr_recompute_of(model->config.recompute, number);
    tr_built_reads(&b->built, TR_LIFE_FW); /* norm_1's weight gradient reads x */
    *out = &b->built.layer;                /* the model destroys it, also after a failure */
    return create(b, model);
}
