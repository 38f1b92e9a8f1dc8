#include "layers/stage_flow.h"

#include "base/memory.h"

#include <stdlib.h>

/* --- edges ------------------------------------------------------------------------------------ */

/* Computes the index of every layer's first output among those of the model. */
static tr_status number_outputs(const tr_model *model, int **out) {
    TR_TRY(tr_calloc((size_t)model->count + 1, sizeof **out, out));
    for (int k = 0; k < model->count; k++) (*out)[k + 1] = (*out)[k] + model->layers[k]->outputs;
    return TR_OK;
}

tr_status tr_flow_edges(const tr_model *model, const int *first, int stages, tr_flow_edge **edge,
                        int *edges) {
    tr_status status = TR_OK;
    int *number = NULL, *reached = NULL; /* reached: the last stage that a value travels to */
    size_t capacity = 0;
    *edge = NULL;
    *edges = 0;
    TR_TRY_OUT(number_outputs(model, &number));
    TR_TRY_OUT(tr_calloc((size_t)number[model->count], sizeof *reached, &reached));
    for (int stage = 0; stage < stages; stage++)
        for (int k = first[stage]; k < first[stage + 1]; k++) {
            const tr_layer *layer = model->layers[k];
            for (int o = 0; o < layer->outputs; o++) reached[number[k] + o] = stage;
            for (int i = 0; i < layer->inputs; i++) {
                const tr_layer_input *input = &layer->input[i];
                int *from = &reached[number[input->layer] + input->output];
                if (*from == stage) continue;
                TR_TRY_OUT(tr_grow(edge, &capacity, (size_t)*edges + 1, sizeof **edge));
                (*edge)[(*edges)++] = (tr_flow_edge){
                    .from = *from, .to = stage, .layer = input->layer, .output = input->output};
                *from = stage;
            }
        }
out:
    if (status != TR_OK) {
        free(*edge);
        *edge = NULL;
    }
    free(reached);
    free(number);
    return status;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Searches backwards, because recent outputs are read most. */
static int find_value(const tr_stage_flow *f, int layer, int output) {
    int v = f->values - 1;
    while (v >= 0 && (f->value[v].layer != layer || f->value[v].output != output)) v--;
    return v;
}

static tr_status add_value(tr_stage_flow *f, int layer, int output) {
    const tr_flow *tensor = &f->model->layers[layer]->output[output];
    tr_stage_value *value = &f->value[f->values++];
    *value = (tr_stage_value){.layer = layer,
                              .output = output,
                              .tensor = *tensor,
                              .in_edge = -1,
                              .out_edge = -1,
                              .piece = -1,
                              .gradient_piece = -1};
    if (!tr_flow_bytes(tensor, &value->bytes) || value->bytes > SIZE_MAX / 8)
        return TR_FAIL(TR_ERR_FIT,
                       "output \"%s\" of layer %s overflows a size: lower train.micro_batch",
                       tensor->name, f->model->layers[layer]->name);
    return TR_OK;
}

/* Adds a layer's inputs and outputs. */
static tr_status add_layer(tr_stage_flow *f, int k, int *inputs) {
    const tr_layer *layer = f->model->layers[f->first + k];
    f->layer[k].inputs = *inputs;
    for (int i = 0; i < layer->inputs; i++) {
        const tr_layer_input *input = &layer->input[i];
        if (find_value(f, input->layer, input->output) < 0)
            TR_TRY(add_value(f, input->layer, input->output));
        int v = find_value(f, input->layer, input->output);
        tr_stage_value *value = &f->value[v];
        f->input[(*inputs)++] =
            (tr_stage_input){.value = v, .f_writes_dx = input->f_writes_dx, .part_piece = -1};
        if (value->readers++ == 0 || input->life > value->life) value->life = input->life;
    }
    f->layer[k].outputs = f->values;
    for (int o = 0; o < layer->outputs; o++) TR_TRY(add_value(f, f->first + k, o));
    return TR_OK;
}

static void join_edges(tr_stage_flow *f, int index, const tr_flow_edge *edge, int edges) {
    for (int e = 0; e < edges; e++) {
        if (edge[e].from != index && edge[e].to != index) continue;
        tr_stage_value *value = &f->value[find_value(f, edge[e].layer, edge[e].output)];
        *(edge[e].from == index ? &value->out_edge : &value->in_edge) = e;
    }
}

/* --- gradients -------------------------------------------------------------------------------- */

/* Finds for each gradient whether it is written in parts, in the order of I. */
static tr_status find_parts(tr_stage_flow *f) {
    bool *begun = NULL;
    TR_TRY(tr_calloc((size_t)f->values, sizeof *begun, &begun));
    for (int k = f->count - 1; k >= 0; k--)
        for (int i = f->model->layers[f->first + k]->inputs - 1; i >= 0; i--) {
            tr_stage_input *input = &f->input[f->layer[k].inputs + i];
            input->begins = !begun[input->value];
            input->has_part = !input->begins || f->value[input->value].out_edge >= 0;
            begun[input->value] = true;
        }
    free(begun);
    return TR_OK;
}

/* Finds the sums' lifetimes: they begin with F if F writes one, and end with W if their maker's W
 * reads it. */
static void find_gradient_lives(tr_stage_flow *f) {
    const tr_stage_layer *last = &f->layer[f->count - 1];
    const int inputs = last->inputs + f->model->layers[f->first + f->count - 1]->inputs;
    for (int v = 0; v < f->values; v++) {
        tr_stage_value *value = &f->value[v];
        const bool w =
            value->in_edge < 0 && f->model->layers[value->layer]->w_reads_dy[value->output];
        bool in_f = false;
        for (int i = 0; i < inputs; i++) {
            const tr_stage_input *input = &f->input[i];
            in_f |= input->value == v && input->f_writes_dx && !input->has_part;
        }
        value->on_edge = value->in_edge >= 0 || value->readers == 0;
        value->gradient_life = in_f ? (w ? TR_LIFE_FW : TR_LIFE_FI)
                               : w  ? TR_LIFE_IW
                                    : TR_LIFE_SCRATCH;
    }
}

/* Numbers the pieces: each layer's own, then those of its outputs and their gradients that are kept
 * on this stage, then those of its inputs' gradients. */
static void place_pieces(tr_stage_flow *f) {
    for (int k = 0; k < f->count; k++) {
        const tr_layer *layer = f->model->layers[f->first + k];
        f->layer[k].piece = f->pieces;
        f->pieces += layer->pieces;
        for (int o = 0; o < layer->outputs; o++) {
            tr_stage_value *value = &f->value[f->layer[k].outputs + o];
            if (value->readers > 0) value->piece = f->pieces++;
            if (!value->on_edge && value->gradient_life != TR_LIFE_SCRATCH)
                value->gradient_piece = f->pieces++;
        }
        for (int i = 0; i < layer->inputs; i++) {
            tr_stage_input *input = &f->input[f->layer[k].inputs + i];
            if (input->has_part && input->f_writes_dx) input->part_piece = f->pieces++;
        }
    }
}

/* Ranges of a block that are in use at one point of I. */
typedef struct rooms {
    struct {
        size_t offset, bytes;
    } * taken;
    int count;
    size_t end; /* the largest end so far */
} rooms;

/* Takes the lowest free range of `bytes`. */
static size_t take_room(rooms *r, size_t bytes) {
    size_t offset = 0;
    for (int k = 0; k < r->count; k++)
        if (offset < r->taken[k].offset + r->taken[k].bytes &&
            r->taken[k].offset < offset + bytes) {
            offset = r->taken[k].offset + r->taken[k].bytes;
            k = -1; /* earlier ranges may overlap now */
        }
    r->taken[r->count].offset = offset;
    r->taken[r->count++].bytes = bytes;
    if (offset + bytes > r->end) r->end = offset + bytes;
    return offset;
}

static void leave_room(rooms *r, size_t offset) {
    for (int k = 0; k < r->count; k++)
        if (r->taken[k].offset == offset) {
            r->taken[k] = r->taken[--r->count];
            return;
        }
}

/* The ranges of gradients that I writes and no piece holds. */
typedef struct gradient_rooms {
    rooms scratch, backward;
} gradient_rooms;

/* Returns the value's ranges; NULL when it has a piece or an edge. */
static rooms *rooms_of(gradient_rooms *g, const tr_stage_value *value) {
    if (value->on_edge) return NULL;
    if (value->gradient_life == TR_LIFE_IW) return &g->backward;
    return value->gradient_life == TR_LIFE_SCRATCH ? &g->scratch : NULL;
}

/* Places the gradients that I of a layer writes: the sums that it begins, and its parts of
 * others. */
static void place_gradients_of(tr_stage_flow *f, int k, gradient_rooms *g) {
    const tr_layer *layer = f->model->layers[f->first + k];
    for (int i = layer->inputs - 1; i >= 0; i--) {
        tr_stage_input *input = &f->input[f->layer[k].inputs + i];
        tr_stage_value *value = &f->value[input->value];
        rooms *r = rooms_of(g, value);
        size_t bytes = tr_align_up(value->bytes);
        if (input->begins && r) value->gradient = take_room(r, bytes);
        if (input->has_part && !input->f_writes_dx) input->part = take_room(&g->scratch, bytes);
    }
    for (int i = 0; i < layer->inputs; i++) {
        const tr_stage_input *input = &f->input[f->layer[k].inputs + i];
        if (input->has_part && !input->f_writes_dx) leave_room(&g->scratch, input->part);
    }
    for (int o = 0; o < layer->outputs; o++) {
        const tr_stage_value *value = &f->value[f->layer[k].outputs + o];
        rooms *r = rooms_of(g, value);
        if (r) leave_room(r, value->gradient);
    }
}

/* Places gradients in scratch, and in I..W while B runs: after the largest layer's bytes come the
 * gradients between the layers. */
static tr_status place_gradients(tr_stage_flow *f) {
    tr_status status = TR_OK;
    gradient_rooms g = {0};
    size_t scratch = 0, backward = 0, most = (size_t)f->values + TR_LAYER_FLOWS;
    TR_TRY_OUT(tr_calloc(most, sizeof *g.scratch.taken, &g.scratch.taken));
    TR_TRY_OUT(tr_calloc(most, sizeof *g.backward.taken, &g.backward.taken));
    for (int k = f->count - 1; k >= 0; k--) {
        const tr_layer *layer = f->model->layers[f->first + k];
        size_t bytes = tr_align_up(layer->bytes[TR_LIFE_SCRATCH]);
        if (bytes > scratch) scratch = bytes;
        if (layer->bytes[TR_LIFE_IW] > backward) backward = layer->bytes[TR_LIFE_IW];
        if (layer->unkept > f->unkept) f->unkept = layer->unkept;
        place_gradients_of(f, k, &g);
    }
    for (int v = 0; v < f->values; v++)
        f->value[v].gradient += rooms_of(&g, &f->value[v]) == &g.backward ? backward : scratch;
    int inputs = f->layer[f->count - 1].inputs + f->model->layers[f->first + f->count - 1]->inputs;
    for (int i = 0; i < inputs; i++) f->input[i].part += scratch;
    f->scratch = scratch + g.scratch.end;
    f->backward_iw = backward + g.backward.end;
out:
    free(g.scratch.taken);
    free(g.backward.taken);
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

tr_status tr_stage_flow_make(const tr_model *model, const int *first, int index,
                             const tr_flow_edge *edge, int edges, tr_stage_flow *f) {
    size_t inputs = 0, outputs = 0;
    int end = first[index + 1], input = 0;
    *f = (tr_stage_flow){.model = model, .first = first[index], .count = end - first[index]};
    if (f->count < 1 || end > model->count)
        return TR_FAIL(TR_ERR_INTERNAL, "stage %d cannot have layers %d to %d of %d", index,
                       f->first, end - 1, model->count);
    for (int k = f->first; k < end; k++) {
        inputs += (size_t)model->layers[k]->inputs;
        outputs += (size_t)model->layers[k]->outputs;
    }
    TR_TRY(tr_calloc((size_t)f->count, sizeof *f->layer, &f->layer));
    TR_TRY(tr_calloc(inputs, sizeof *f->input, &f->input));
    TR_TRY(tr_calloc(inputs + outputs, sizeof *f->value, &f->value));
    for (int k = 0; k < f->count; k++) TR_TRY(add_layer(f, k, &input));
    join_edges(f, index, edge, edges);
    TR_TRY(find_parts(f));
    find_gradient_lives(f);
    place_pieces(f);
    return place_gradients(f);
}

void tr_stage_flow_free(tr_stage_flow *f) {
    free(f->layer);
    free(f->input);
    free(f->value);
    *f = (tr_stage_flow){0};
}

/* Adds the piece of a tensor that is kept. */
static void add_piece(tr_piece *piece, tr_stage_cost *cost, int k, tr_lifetime life, size_t bytes) {
    if (k < 0) return;
    piece[k] = (tr_piece){.life = life, .bytes = tr_align_up(bytes)};
    cost->bytes[life] += tr_align_up(bytes);
}

void tr_stage_flow_cost(const tr_stage_flow *f, tr_piece *piece, tr_stage_cost *cost) {
    *cost = (tr_stage_cost){
        .piece = piece, .pieces = f->pieces, .backward_iw = f->backward_iw, .unkept = f->unkept};
    cost->bytes[TR_LIFE_SCRATCH] = f->scratch;
    for (int k = 0; k < f->count; k++) {
        const tr_layer *layer = f->model->layers[f->first + k];
        for (tr_lifetime life = TR_LIFE_FI; life <= TR_LIFE_IW; life++)
            cost->bytes[life] += layer->bytes[life];
        for (int j = 0; j < layer->pieces; j++) piece[f->layer[k].piece + j] = layer->piece[j];
        for (int i = 0; i < layer->inputs; i++) {
            const tr_stage_input *input = &f->input[f->layer[k].inputs + i];
            add_piece(piece, cost, input->part_piece, TR_LIFE_FI, f->value[input->value].bytes);
        }
        cost->f += layer->flops_f;
        cost->i += layer->flops_i;
        cost->w += layer->flops_w;
    }
    for (int v = 0; v < f->values; v++) {
        const tr_stage_value *value = &f->value[v];
        add_piece(piece, cost, value->piece, value->life, value->bytes);
        add_piece(piece, cost, value->gradient_piece, value->gradient_life, value->bytes);
    }
}
