#include "layers/cached.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Rows of a chunk's products: as many as products need to run at full speed. */
enum { CHUNK_ROWS = 128 };

/* --- creating --------------------------------------------------------------------------------- */

/* Makes the layers of the model for another number of tokens, with its parameters' values. */
static tr_status make_pass(const tr_model *model, int64_t rows, int64_t tokens,
                           tr_cached_pass *pass) {
    tr_model_shape shape = model->shape;
    shape.batch = rows;
    shape.decode = tokens;
    shape.documents = false;
    pass->tokens = tokens;
    TR_TRY(tr_model_create(&model->config, &shape, &pass->model));
    TR_TRY(tr_calloc((size_t)model->count, sizeof *pass->flow_offset, &pass->flow_offset));
    for (int i = 0; i < model->count; i++) {
        const tr_layer *from = model->layers[i];
        for (int k = 0; k < from->params_count; k++)
            pass->model->layers[i]->params[k].value = from->params[k].value;
    }
    return TR_OK;
}

/* Returns the last stage that an output reaches. */
static int last_reader(const tr_model *model, const tr_placement *placement, int layer,
                       int output) {
    int last = tr_placement_stage(placement, layer);
    for (int k = layer + 1; k < model->count; k++)
        for (int i = 0; i < model->layers[k]->inputs; i++)
            if (model->layers[k]->input[i].layer == layer &&
                model->layers[k]->input[i].output == output)
                last = tr_placement_stage(placement, k);
    return last;
}

/* Gives places to the outputs that this rank computes, reads or passes on, and finds the largest
 * message. */
static tr_status place_flows(const tr_cached_pass *pass, const tr_placement *placement, int pp_rank,
                             size_t *bytes, size_t *message) {
    size_t end = 0;
    for (int i = 0; i < pass->model->count; i++) {
        const tr_layer *layer = pass->model->layers[i];
        for (int o = 0; o < layer->outputs; o++) {
            const int first = tr_placement_stage(placement, i);
            const int last = last_reader(pass->model, placement, i, o);
            size_t one = 0;
            bool here = false;
            for (int s = first; s <= last; s++) here |= placement->owner[s] == pp_rank;
            if (!tr_flow_bytes(&layer->output[o], &one))
                return TR_FAIL(TR_ERR_INTERNAL, "an output of layer %s overflows", layer->name);
            if (last > first && one > *message) *message = one;
            if (!here) continue;
            pass->flow_offset[i][o] = end;
            end += tr_align_up(one);
        }
    }
    if (end > *bytes) *bytes = end;
    return TR_OK;
}

static bool runs(const tr_cached_layers *d, int pass, int layer) {
    return pass == TR_PASS_ONE || d->pass[pass].model->layers[layer]->outputs > 0;
}

static tr_status prepare_layer(tr_cached_layers *d, int i, const tr_layer_env *env) {
    d->cache_offset[i] = d->cache;
    d->cache += tr_align_up(d->pass[TR_PASS_ONE].model->layers[i]->cache_bytes);
    for (int p = 0; p < TR_PASSES; p++) {
        tr_layer *layer = d->pass[p].model->layers[i];
        if (!runs(d, p, i)) continue;
        TR_TRY(layer->ops->prepare(layer, env));
        if (layer->bytes[TR_LIFE_SCRATCH] > d->scratch) d->scratch = layer->bytes[TR_LIFE_SCRATCH];
    }
    return TR_OK;
}

static void size_logits(const tr_model *model, tr_cached_layers *d) {
    const tr_model_shape *shape = &model->shape;
    const int64_t vocab = model->config.vocab;
    const tr_range columns = tr_model_shape_part(shape, vocab, 1);
    const size_t size = tr_dtype_size(tr_dtype_acc(shape->dtype));
    d->part = (size_t)(d->rows * columns.extent) * size;
    d->logits = (size_t)(d->rows * vocab) * size;
}

tr_status tr_cached_layers_create(const tr_model *model, int64_t rows,
                                  const tr_placement *placement, int pp_rank, tr_device *device,
                                  tr_group *tp, tr_cached_layers *out) {
    const tr_model_shape *shape = &model->shape;
    const tr_layer_env env = {.context = {.device = device, .deterministic = true}, .tp = tp};
    int64_t chunk = CHUNK_ROWS / rows;
    if (chunk > shape->seq) chunk = shape->seq;
    if (chunk < 1) chunk = 1;
    *out = (tr_cached_layers){.rows = rows};
    if (placement->owner[placement->stages - 1] == pp_rank) size_logits(model, out);
    TR_TRY(tr_calloc((size_t)model->count, sizeof *out->cache_offset, &out->cache_offset));
    TR_TRY(make_pass(model, rows, 1, &out->pass[TR_PASS_ONE]));
    TR_TRY(make_pass(model, rows, chunk, &out->pass[TR_PASS_CHUNK]));
    for (int p = 0; p < TR_PASSES; p++)
        TR_TRY(place_flows(&out->pass[p], placement, pp_rank, &out->flows, &out->message));
    for (int s = 0; s < placement->stages; s++)
        for (int i = placement->first[s];
             placement->owner[s] == pp_rank && i < placement->first[s + 1]; i++)
            TR_TRY(prepare_layer(out, i, &env));
    return TR_OK;
}

void tr_cached_layers_destroy(tr_cached_layers *d) {
    for (int p = 0; p < TR_PASSES; p++) {
        tr_model_destroy(d->pass[p].model);
        free(d->pass[p].flow_offset);
    }
    free(d->cache_offset);
    *d = (tr_cached_layers){0};
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Places the parts of a block, or only counts their bytes when it is NULL. */
static size_t divide(const tr_cached_layers *d, char *block, tr_cached_memory *out) {
    const size_t tokens = (size_t)(d->rows * d->pass[TR_PASS_CHUNK].tokens) * sizeof *out->tokens;
    const struct {
        void *to; /* a pointer, which is set */
        size_t bytes;
    } part[] = {
        {&out->cache, d->cache},           {&out->scratch, d->scratch},
        {&out->flows, d->flows},           {&out->part, d->part},
        {&out->logits, d->logits},         {&out->tokens, tokens},
        {&out->state, sizeof *out->state},
    };
    size_t end = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        void *at = block && part[i].bytes > 0 ? block + end : NULL;
        memcpy(part[i].to, &at, sizeof at);
        end += tr_align_up(part[i].bytes);
    }
    return end;
}

size_t tr_cached_bytes(const tr_cached_layers *d) {
    return divide(d, NULL, &(tr_cached_memory){0});
}

tr_cached_memory tr_cached_divide(const tr_cached_layers *d, void *block) {
    tr_cached_memory memory;
    (void)divide(d, block, &memory);
    return memory;
}

/* --- running ---------------------------------------------------------------------------------- */

tr_tensor tr_cached_output(const tr_cached_layers *d, int pass, const tr_cached_memory *memory,
                           int layer, int output) {
    const tr_cached_pass *p = &d->pass[pass];
    return tr_flow_tensor(&p->model->layers[layer]->output[output],
                          memory->flows + p->flow_offset[layer][output]);
}

/* Returns the tensors that layer i reads and writes. */
static tr_layer_io layer_io(const tr_cached_layers *d, int pass, const tr_cached_memory *memory,
                            tr_stream *stream, int i) {
    const tr_layer *layer = d->pass[pass].model->layers[i];
    tr_layer_io io = {.stream = stream,
                      .state = memory->state,
                      .scratch = memory->scratch,
                      .cache = memory->cache + d->cache_offset[i],
                      .logits = memory->part};
    for (int k = 0; k < layer->inputs; k++)
        io.x[k] = tr_cached_output(d, pass, memory, layer->input[k].layer, layer->input[k].output);
    for (int k = 0; k < layer->outputs; k++) io.y[k] = tr_cached_output(d, pass, memory, i, k);
    for (int k = 0; k < layer->step_inputs; k++)
        if (strcmp(layer->step_input[k].name, TR_STEP_INPUT_TOKENS) == 0)
            io.step[k] = tr_flow_tensor(&layer->step_input[k], memory->tokens);
    return io;
}

tr_status tr_cached_run(const tr_cached_layers *d, int pass, const tr_cached_memory *memory,
                        tr_stream *stream, int first, int end) {
    for (int i = first; i < end; i++) {
        tr_layer *layer = d->pass[pass].model->layers[i];
        if (!runs(d, pass, i)) continue;
        const tr_layer_io io = layer_io(d, pass, memory, stream, i);
        TR_TRY(layer->ops->decode(layer, &io));
    }
    return TR_OK;
}
