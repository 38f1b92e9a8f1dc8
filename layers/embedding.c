/* The embedding of words, split over tensor ranks by rows of the vocabulary, learned positions if
 * the family has them, and dropout. R = batch * seq rows, S = the rows of this rank's slice (R
 * without sequence parallelism), C = width. Words are looked up and their gradients added
 * for R rows; the rest works on S. */
#include "layers/model_impl.h"
#include "layers/part.h"

#include "base/philox.h"

#include <stdio.h>

typedef struct embedding {
    tr_built_layer built;
    int64_t width;
    tr_range vocab;              /* this rank's rows of the table */
    tr_param *words, *positions; /* positions: NULL for rotary positions */
    float dropout;
    uint64_t site;
    tr_layer_op embed, embed_wgrad, position, position_wgrad, drop, drop_dgrad;
    tr_buffer dx;  /* with dropout: I..W (S, C): gradient of the sum of word and position */
    tr_buffer all; /* with sequence parallelism, scratch (R, C): words, or the gradient */
} embedding;

tr_status tr_words_describe(tr_param *param, const tr_model *model, const char *name, int use) {
    const tr_model_config *config = &model->config;
    const tr_model_shape *shape = &model->shape;
    int64_t size[] = {config->vocab, config->width};
    tr_slice own = {.range = tr_model_shape_part(shape, config->vocab, 1)};
    TR_TRY(tr_param_describe(param, 2, size, TR_INIT_NORMAL, 0.02f, "%s", name));
    param->use = use;
    return tr_param_keep(param, 0, &own, 1);
}

static bool drops(const embedding *e) {
    return e->dropout > 0 && !e->built.shape.decode;
}

/* Returns true when W has work. */
static bool trains(const embedding *e) {
    return e->words->has_grad || (e->positions && e->positions->has_grad);
}

static void describe(tr_built_layer *built) {
    embedding *e = (embedding *)built;
    const tr_model_shape *shape = &built->shape;
    tr_built_writes(built, e->width);
    tr_built_asks(built, TR_STEP_INPUT_TOKENS);
    tr_embed_desc embed = {.rows = shape->rows,
                           .width = e->width,
                           .seq = shape->seq,
                           .vocab_begin = e->vocab.begin,
                           .vocab = e->vocab.extent,
                           .decode = shape->decode,
                           .documents = shape->documents,
                           .dtype = shape->dtype};
    tr_embed_desc position = embed;
    position.rows = shape->slice.extent;
    position.first = shape->slice.begin;
    tr_dropout_desc drop = {.rows = shape->slice.extent,
                            .first = shape->slice.begin,
                            .width = e->width,
                            .seq = shape->decode ? shape->decode : shape->seq,
                            .p = e->dropout,
                            .site = e->site,
                            .dtype = shape->dtype};
    tr_built_op(built, &e->embed, TR_PHASE_F, (tr_op_desc){.kind = TR_OP_EMBED, .embed = embed});
    e->all = tr_built_place_all(built, e->width);
    tr_built_slice_sums(built, TR_LAYER_SUM_F, 1, e->width, 0);
    tr_built_slice_gathers(built, TR_LAYER_SUM_W, trains(e), e->width, 0);
    if (e->words->has_grad)
        tr_built_op(built, &e->embed_wgrad, TR_PHASE_W,
                    (tr_op_desc){.kind = TR_OP_EMBED_WGRAD, .embed = embed});
    if (e->positions) {
        tr_built_asks_starts(built);
        tr_built_op(built, &e->position, TR_PHASE_F,
                    (tr_op_desc){.kind = TR_OP_POSITION, .embed = position});
        if (e->positions->has_grad)
            tr_built_op(built, &e->position_wgrad, TR_PHASE_W,
                        (tr_op_desc){.kind = TR_OP_POSITION_WGRAD, .embed = embed});
    }
    if (drops(e)) {
        tr_built_op(built, &e->drop, TR_PHASE_F,
                    (tr_op_desc){.kind = TR_OP_DROPOUT_ADD, .dropout = drop});
        if (trains(e)) {
            tr_built_op(built, &e->drop_dgrad, TR_PHASE_I,
                        (tr_op_desc){.kind = TR_OP_DROPOUT_DGRAD, .dropout = drop});
            e->dx = tr_built_place_slice(built, TR_LIFE_IW, e->width, shape->dtype);
        }
    }
    built->layer.w_reads_dy[0] = !shape->decode && !drops(e) && trains(e);
}

/* Returns the rows of the positions' table, or of its gradient, that a sequence uses. */
static tr_tensor met(const embedding *e, tr_tensor table) {
    return tr_tensor_rows(table, 0, e->built.shape.seq);
}

/* Returns where the documents of the slice's rows start. */
static tr_tensor slice_starts(const embedding *e, const tr_layer_io *io) {
    const tr_model_shape *shape = &e->built.shape;
    const tr_tensor starts = tr_built_starts(&e->built, io);
    if (!starts.data) return starts;
    return tr_tensor_rows(tr_tensor_reshape(starts, 1, &shape->rows), shape->slice.begin,
                          shape->slice.extent);
}

/* F and decoding. Decoding has no dropout. */
static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    const tr_tensor y = io->y[0];
    tr_op_args embed = {.t = {[TR_EMBED_TOKENS] = io->step[0],
                              [TR_EMBED_TABLE] = tr_param_value(e->words),
                              [TR_EMBED_Y] = tr_built_all(&e->built, io, e->all, y)}};
    TR_TRY(tr_layer_op_run(&e->embed, io, embed));
    /* Every row is zero on all ranks except one. */
    TR_TRY(tr_built_sum_slice(&e->built, io, e->all, y));
    if (e->positions) {
        tr_op_args position = {.t = {[TR_POSITION_X] = y,
                                     [TR_POSITION_TABLE] = met(e, tr_param_value(e->positions)),
                                     [TR_POSITION_Y] = y,
                                     [TR_POSITION_STARTS] = slice_starts(e, io)}};
        TR_TRY(tr_layer_op_run(&e->position, io, position));
    }
    if (!drops(e)) return TR_OK;
    tr_op_args drop = {.t = {[TR_DROPOUT_X] = y, [TR_DROPOUT_Y] = y}};
    return tr_layer_op_run(&e->drop, io, drop);
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    if (!drops(e) || !trains(e)) return TR_OK;
    tr_op_args drop = {
        .t = {[TR_DROPOUT_DGRAD_DY] = io->dy[0], [TR_DROPOUT_DGRAD_DX] = tr_buffer_at(io, e->dx)}};
    return tr_layer_op_run(&e->drop_dgrad, io, drop);
}

/* Sets the gradient of the positions that no sequence meets. */
static tr_status clear_unmet(const embedding *e, const tr_layer_io *io, tr_tensor table) {
    const int64_t seq = e->built.shape.seq;
    const tr_tensor unmet = tr_tensor_rows(table, seq, table.shape[0] - seq);
    if (unmet.shape[0] == 0) return TR_OK;
    return tr_stream_zero(io->stream, unmet.data, tr_tensor_bytes(&unmet));
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const embedding *e = (const embedding *)layer;
    if (!trains(e)) return TR_OK;
    const tr_tensor slice = drops(e) ? tr_buffer_at(io, e->dx) : io->dy[0];
    const tr_tensor dx = tr_built_all(&e->built, io, e->all, slice);
    TR_TRY(tr_built_gather(&e->built, io, e->all, slice));
    tr_op_args embed = {.t = {[TR_EMBED_WGRAD_DY] = dx,
                              [TR_EMBED_WGRAD_TOKENS] = io->step[0],
                              [TR_EMBED_WGRAD_DTABLE] = tr_param_grad(e->words)}};
    if (e->words->has_grad) TR_TRY(tr_layer_op_run(&e->embed_wgrad, io, embed));
    if (!e->positions || !e->positions->has_grad) return TR_OK;
    if (!io->adds) TR_TRY(clear_unmet(e, io, tr_param_grad(e->positions)));
    tr_op_args position = {.t = {[TR_POSITION_WGRAD_DY] = dx,
                                 [TR_POSITION_WGRAD_DTABLE] = met(e, tr_param_grad(e->positions)),
                                 [TR_POSITION_WGRAD_STARTS] = tr_built_starts(&e->built, io)}};
    return tr_layer_op_run(&e->position_wgrad, io, position);
}

static const tr_layer_ops ops = {.kind = "embedding",
                                 .prepare = tr_built_prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = forward,
                                 .destroy = tr_built_destroy};

static tr_status create(embedding *e, const tr_model *model) {
    const tr_model_config *config = &model->config;
    const tr_family *f = model->family;
    char name[TR_NAME_SIZE];
    (void)snprintf(name, sizeof name, "%s.embedding.drop", f->root);
    e->width = config->width;
    e->vocab = tr_built_part(&e->built, config->vocab);
    e->dropout = (float)config->dropout;
    e->site = tr_hash_name(name);
    TR_TRY(tr_built_param(&e->built, &e->words));
    (void)snprintf(name, sizeof name, "%s.%s.weight", f->root, f->words);
    TR_TRY(tr_words_describe(e->words, model, name, 0));
    if (f->positions) {
        const int64_t size[] = {config->context, config->width};
        TR_TRY(tr_built_param(&e->built, &e->positions));
        TR_TRY(tr_param_describe(e->positions, 2, size, TR_INIT_NORMAL, 0.01f, "%s.%s.weight",
                                 f->root, f->positions));
    }
    return tr_built_finish(&e->built);
}

tr_status tr_embedding_create(const tr_model *model, tr_layer **out) {
    embedding *e;
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    tr_built_begin(&e->built, &ops, describe, &model->shape, "%s.embedding", model->family->root);
    *out = &e->built.layer; /* the model destroys it, also after a failure */
    return create(e, model);
}
