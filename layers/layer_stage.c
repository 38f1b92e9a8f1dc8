#include "layers/layer_stage.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer_stage {
    tr_stage stage;
    const tr_model *model;
    int first, count;   /* layers */
    int *piece;         /* [count]: the first of each layer's pieces among the stage's */
    int in_edge;        /* index of the edge that enters, -1: none */
    int out_edge;       /* index of the edge that leaves, -1: none */
    size_t gradient[2]; /* in scratch: gradients of the boundaries between layers */
    tr_layer_source source;
    size_t boundary; /* bytes of the tensor between two layers, aligned */
} layer_stage;

static const tr_stage_ops ops;
static void destroy(tr_stage *stage);

/* Bytes of the tensor between two layers. */
static tr_status boundary_bytes(const tr_model *model, size_t *bytes) {
    const tr_model_shape *shape = &model->shape;
    size_t count;
    if (!tr_mul_size((size_t)shape->batch, (size_t)shape->seq, &count) ||
        !tr_mul_size(count, (size_t)model->config.width, &count) ||
        !tr_mul_size(count, tr_dtype_size(shape->dtype), bytes))
        return TR_FAIL(TR_ERR_FIT,
                       "a micro-batch of %lld sequences of %lld tokens and width %lld overflows a "
                       "size: lower train.micro_batch",
                       (long long)shape->batch, (long long)shape->seq,
                       (long long)model->config.width);
    return TR_OK;
}

/* A layer's input stands in front of its first piece of the block of its input_life. */
static size_t input_bytes(const tr_layer *layer, tr_lifetime life, size_t boundary) {
    return !layer->takes_tokens && life == layer->input_life ? boundary : 0;
}

/* Sums the layers [first, first + count): the one layout, for planning, which wants the bytes of
 * all layers' pieces, and for running (piece NULL). */
static void lay_out(const tr_model *model, int first, int count, size_t boundary,
                    size_t (*piece)[TR_LIFE_SCRATCH], size_t gradient[2], tr_stage_cost *cost) {
    size_t scratch = 0;
    *cost = (tr_stage_cost){.piece = piece};
    for (int k = 0; k < count; k++) {
        const tr_layer *layer = model->layers[first + k];
        for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_IW; life++) {
            size_t input = input_bytes(layer, life, boundary);
            cost->bytes[life] += input + layer->bytes[life];
            for (int j = 0; piece && j < layer->pieces; j++)
                piece[cost->pieces + j][life] = (j == 0 ? input : 0) + layer->piece[j][life];
        }
        if (piece) cost->pieces += layer->pieces;
        size_t iw = layer->bytes[TR_LIFE_IW];
        size_t own = tr_align_up(layer->bytes[TR_LIFE_SCRATCH]);
        if (iw > cost->backward_iw) cost->backward_iw = iw;
        if (own > scratch) scratch = own;
        cost->f += layer->flops_f;
        cost->i += layer->flops_i;
        cost->w += layer->flops_w;
    }
    int gradients = count - 1 < 2 ? count - 1 : 2;
    for (int k = 0; k < 2; k++) gradient[k] = scratch + (size_t)k * boundary;
    cost->bytes[TR_LIFE_SCRATCH] = scratch + (size_t)gradients * boundary;
}

tr_status tr_layer_table_make(const tr_model *model, const int *first, int stages,
                              tr_stage_table *out) {
    tr_status status = TR_OK;
    tr_stage_table t = {.stages = stages, .edges = stages - 1};
    size_t boundary = 0, pieces = 0, gradient[2];
    TR_TRY(boundary_bytes(model, &boundary));
    TR_TRY_OUT(tr_calloc((size_t)stages, sizeof *t.cost, &t.cost));
    TR_TRY_OUT(tr_calloc((size_t)stages, sizeof *t.edge, &t.edge));
    for (int k = 0; k < model->count; k++) pieces += (size_t)model->layers[k]->pieces;
    TR_TRY_OUT(tr_calloc(pieces, sizeof *t.piece, &t.piece));
    pieces = 0;
    for (int k = 0; k < stages; k++) {
        if (first[k] >= first[k + 1] || first[k + 1] > model->count) {
            status = TR_FAIL(TR_ERR_INTERNAL, "stage %d has layers %d to %d of %d", k, first[k],
                             first[k + 1] - 1, model->count);
            goto out;
        }
        lay_out(model, first[k], first[k + 1] - first[k], tr_align_up(boundary), &t.piece[pieces],
                gradient, &t.cost[k]);
        pieces += (size_t)t.cost[k].pieces;
        if (k == 0) continue;
        tr_edge *edge = &t.edge[k - 1];
        *edge = (tr_edge){
            .from = k - 1, .to = k, .bytes = boundary, .life = model->layers[first[k]]->input_life};
        (void)snprintf(edge->name, sizeof edge->name, "input of layer %d", first[k]);
    }
    *out = t;
    return TR_OK;
out:
    tr_layer_table_free(&t);
    return status;
}

void tr_layer_table_free(tr_stage_table *t) {
    free(t->cost);
    free(t->edge);
    free(t->piece);
    *t = (tr_stage_table){0};
}

tr_status tr_layer_stage_create(const tr_model *model, const int *first, int stages, int index,
                                const tr_layer_source *source, tr_stage **out) {
    tr_status status = TR_OK;
    layer_stage *s = NULL;
    tr_stage_cost cost;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->stage = (tr_stage){.ops = &ops, .index = index};
    s->model = model;
    s->first = first[index];
    s->count = first[index + 1] - first[index];
    s->in_edge = index - 1;
    s->out_edge = index + 1 < stages ? index : -1;
    s->source = *source;
    TR_TRY_OUT(tr_calloc((size_t)s->count, sizeof *s->piece, &s->piece));
    for (int k = 1; k < s->count; k++)
        s->piece[k] = s->piece[k - 1] + model->layers[s->first + k - 1]->pieces;
    TR_TRY_OUT(boundary_bytes(model, &s->boundary));
    s->boundary = tr_align_up(s->boundary);
    lay_out(model, s->first, s->count, s->boundary, NULL, s->gradient, &cost);
    *out = &s->stage;
    return TR_OK;
out:
    destroy(&s->stage);
    return status;
}

static void destroy(tr_stage *stage) {
    free(((layer_stage *)stage)->piece);
    free(stage);
}

/* --- actions ---------------------------------------------------------------------------------- */

static tr_layer *layer_at(const layer_stage *s, int k) {
    return s->model->layers[s->first + k];
}

static char *inside(char *block, size_t offset) {
    return block ? block + offset : NULL;
}

/* Place of layer k's input; NULL where the block is not alive or the layer reads tokens. */
static char *input_of(const layer_stage *s, const tr_stage_io *io, int k) {
    const tr_layer *layer = layer_at(s, k);
    if (layer->takes_tokens) return NULL;
    return io->block[layer->input_life][s->piece[k]];
}

/* What all actions of layer k see of micro-batch io->micro_batch. */
static tr_layer_io layer_io(const layer_stage *s, const tr_stage_io *io, int k) {
    const tr_layer_source *source = &s->source;
    const tr_layer *layer = layer_at(s, k);
    int64_t m = io->micro_batch;
    tr_layer_io l = {.stream = io->stream,
                     .state = source->state,
                     .sample = source->first_sample + m * source->sample_stride,
                     .x = input_of(s, io, k)};
    for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_IW; life++)
        for (int j = 0; j < layer->pieces; j++)
            l.block[life][j] = inside(io->block[life][s->piece[k] + j],
                                      j == 0 ? input_bytes(layer, life, s->boundary) : 0);
    l.scratch = io->scratch;
    if (layer->takes_tokens) l.tokens = source->tokens + m * source->token_stride;
    if (layer->makes_loss) {
        l.labels = source->labels + m * source->token_stride;
        l.loss = source->loss + m * source->loss_stride;
    }
    return l;
}

static tr_status forward(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = 0; k < s->count; k++) {
        tr_layer *layer = layer_at(s, k);
        tr_layer_io l = layer_io(s, io, k);
        if (k + 1 < s->count) l.y = input_of(s, io, k + 1);
        else if (s->out_edge >= 0) l.y = io->out[s->out_edge];
        TR_TRY(layer->ops->forward(layer, &l));
    }
    return TR_OK;
}

/* I of layer k. The gradients between layers take turns in two places of scratch: layer k writes
 * the one that layer k + 1 does not lie in. */
static tr_status layer_grad_input(const layer_stage *s, const tr_stage_io *io, int k,
                                  tr_layer_io *l) {
    tr_layer *layer = layer_at(s, k);
    char *scratch = io->scratch;
    if (k + 1 < s->count) l->dy = inside(scratch, s->gradient[k % 2]);
    else if (s->out_edge >= 0) l->dy = io->dout[s->out_edge];
    if (k > 0) l->dx = inside(scratch, s->gradient[(k - 1) % 2]);
    else if (s->in_edge >= 0) l->dx = io->din[s->in_edge];
    return layer->ops->grad_input(layer, l);
}

static tr_status grad_input(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->count - 1; k >= 0; k--) {
        tr_layer_io l = layer_io(s, io, k);
        TR_TRY(layer_grad_input(s, io, k, &l));
    }
    return TR_OK;
}

static tr_status grad_weight(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->count - 1; k >= 0; k--) {
        tr_layer *layer = layer_at(s, k);
        tr_layer_io l = layer_io(s, io, k);
        TR_TRY(layer->ops->grad_weight(layer, &l));
    }
    return TR_OK;
}

/* B: the layers backwards, I and then W of each. All pieces of I..W are one place: a layer's lie
 * there one behind the other, and the next layer's after that. */
static tr_status backward(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->count - 1; k >= 0; k--) {
        tr_layer *layer = layer_at(s, k);
        tr_layer_io l = layer_io(s, io, k);
        size_t at = 0;
        for (int j = 0; j < layer->pieces; at += layer->piece[j++][TR_LIFE_IW])
            l.block[TR_LIFE_IW][j] = inside(l.block[TR_LIFE_IW][j], at);
        TR_TRY(layer_grad_input(s, io, k, &l));
        l.dy = NULL;
        l.dx = NULL;
        TR_TRY(layer->ops->grad_weight(layer, &l));
    }
    return TR_OK;
}

static const tr_stage_ops ops = {.forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .backward = backward,
                                 .destroy = destroy};
