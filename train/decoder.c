#include "train/decoder.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A tensor that crosses the boundary between two stages: an output of a layer in front of it that a
 * layer behind it reads. */
typedef struct crossing {
    int layer, output;
} crossing;

/* One side of this rank's stage. A tensor for a later stage passes through all stages between. */
typedef struct boundary {
    tr_channel *channel; /* NULL: the model begins or ends here */
    crossing *tensor;
    size_t *bytes; /* of each tensor */
    int tensors;
    int64_t ticket; /* of the last message sent; -1: none */
} boundary;

struct tr_decoder {
    tr_decoder_desc desc;
    int first, end; /* this rank's layers: first..end-1 */
    boundary before, after;
    tr_group *tp;
    tr_range columns;     /* this rank's part of the vocabulary */
    int32_t *tokens;      /* device [batch] */
    tr_step_state *state; /* device */
    void *part, *logits;  /* device: [batch][columns], and [batch][vocab] */
    /* Staging memory: */
    tr_step_state *given;
    int32_t *fed;
    void *copied;                          /* logits */
    char *cache, *scratch, *flows;         /* device; flows: the outputs of all layers */
    size_t *cache_offset;                  /* [layers] */
    size_t (*flow_offset)[TR_LAYER_FLOWS]; /* [layers]: of their outputs */
};

/* The bytes of all layers' buffers. */
typedef struct sizes {
    size_t cache, scratch, flows;
} sizes;

static bool is_last(const tr_decoder *d) {
    return d->end == d->desc.model->count;
}

static size_t logits_bytes(const tr_decoder *d, int64_t columns) {
    const tr_model_shape *shape = &d->desc.model->shape;
    return (size_t)(shape->batch * columns) * tr_dtype_size(tr_dtype_acc(shape->dtype));
}

/* --- creating --------------------------------------------------------------------------------- */

static tr_status place_flows(tr_decoder *d, sizes *need) {
    for (int i = 0; i < d->desc.model->count; i++) {
        const tr_layer *layer = d->desc.model->layers[i];
        for (int o = 0; o < layer->outputs; o++) {
            size_t bytes = 0;
            d->flow_offset[i][o] = need->flows;
            if (!tr_flow_bytes(&layer->output[o], &bytes))
                return TR_FAIL(TR_ERR_INTERNAL, "a token of layer %s overflows", layer->name);
            need->flows += tr_align_up(bytes);
        }
    }
    return TR_OK;
}

static tr_status prepare_layers(tr_decoder *d, sizes *need) {
    tr_layer_env env = {.context = {.device = d->desc.device, .deterministic = true}, .tp = d->tp};
    for (int i = d->first; i < d->end; i++) {
        tr_layer *layer = d->desc.model->layers[i];
        TR_TRY(layer->ops->prepare(layer, &env));
        d->cache_offset[i] = need->cache;
        need->cache += tr_align_up(layer->cache_bytes);
        if (layer->bytes[TR_LIFE_SCRATCH] > need->scratch)
            need->scratch = layer->bytes[TR_LIFE_SCRATCH];
    }
    return TR_OK;
}

/* Returns true when a layer from `end` on reads this output. */
static bool is_read_after(const tr_model *model, int layer, int output, int end) {
    for (int k = end; k < model->count; k++)
        for (int i = 0; i < model->layers[k]->inputs; i++) {
            const tr_layer_input *input = &model->layers[k]->input[i];
            if (input->layer == layer && input->output == output) return true;
        }
    return false;
}

/* Lists what crosses the boundary in front of layer `end`, and opens the channel to the pipeline
 * rank at `index` of the mesh. */
static tr_status open_boundary(tr_decoder *d, int end, int index, bool sending, boundary *b) {
    const tr_model *model = d->desc.model;
    size_t outputs = 0, most = 1;
    for (int i = 0; i < end; i++) outputs += (size_t)model->layers[i]->outputs;
    TR_TRY(tr_calloc(outputs, sizeof *b->tensor, &b->tensor));
    TR_TRY(tr_calloc(outputs, sizeof *b->bytes, &b->bytes));
    for (int i = 0; i < end; i++)
        for (int o = 0; o < model->layers[i]->outputs; o++) {
            if (!is_read_after(model, i, o, end)) continue;
            size_t *bytes = &b->bytes[b->tensors];
            b->tensor[b->tensors++] = (crossing){i, o};
            (void)tr_flow_bytes(&model->layers[i]->output[o], bytes);
            if (*bytes > most) most = *bytes;
        }
    int at[TR_AXIS_COUNT];
    memcpy(at, d->desc.mesh.index, sizeof at);
    at[TR_AXIS_PP] = index;
    return tr_channel_open(d->desc.world, d->desc.device, tr_mesh_rank(&d->desc.mesh, at), sending,
                           most, &b->channel);
}

/* Opens the channels of even boundaries before those of odd ones, because NCCL makes both ends of a
 * channel wait for each other. */
static tr_status open_boundaries(tr_decoder *d) {
    const int stage = d->desc.mesh.index[TR_AXIS_PP];
    for (int parity = 0; parity < 2; parity++) {
        if (d->first > 0 && stage % 2 == parity)
            TR_TRY(open_boundary(d, d->first, stage - 1, false, &d->before));
        if (!is_last(d) && (stage + 1) % 2 == parity)
            TR_TRY(open_boundary(d, d->end, stage + 1, true, &d->after));
    }
    return TR_OK;
}

static tr_status allocate(tr_decoder *d, const sizes *need) {
    tr_device *device = d->desc.device;
    const int64_t vocab = d->desc.model->config.vocab;
    const size_t tokens = (size_t)d->desc.model->shape.batch * sizeof *d->tokens;
    TR_TRY(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need->cache, (void **)&d->cache));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need->scratch, (void **)&d->scratch));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need->flows, (void **)&d->flows));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, tokens, (void **)&d->tokens));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, sizeof *d->state, (void **)&d->state));
    TR_TRY(tr_device_staging_alloc(device, sizeof *d->given, (void **)&d->given));
    TR_TRY(tr_device_staging_alloc(device, tokens, (void **)&d->fed));
    *d->given = (tr_step_state){0};
    if (!is_last(d)) return TR_OK;
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, logits_bytes(d, d->columns.extent), &d->part));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, logits_bytes(d, vocab), &d->logits));
    return tr_device_staging_alloc(device, logits_bytes(d, vocab), &d->copied);
}

tr_status tr_decoder_create(const tr_decoder_desc *desc, tr_decoder **out) {
    tr_status status = TR_OK;
    tr_decoder *d = NULL;
    sizes need = {0};
    const tr_model *model = desc->model;
    const int stage = desc->mesh.index[TR_AXIS_PP];
    tr_mesh_part tensor_ranks = tr_mesh_self(&desc->mesh);
    TR_TRY(tr_calloc(1, sizeof *d, &d));
    d->desc = *desc;
    d->before.ticket = d->after.ticket = -1;
    d->first = desc->placement->first[stage];
    d->end = desc->placement->first[stage + 1];
    d->columns =
        tr_range_part(model->config.vocab, desc->mesh.degree[TR_AXIS_TP], model->shape.tp_rank);
    TR_TRY_OUT(tr_mesh_widen(&desc->mesh, TR_AXIS_TP, 0, &tensor_ranks));
    TR_TRY_OUT(tr_mesh_groups_get(desc->groups, &tensor_ranks, &d->tp));
    TR_TRY_OUT(tr_calloc((size_t)model->count, sizeof *d->cache_offset, &d->cache_offset));
    TR_TRY_OUT(tr_calloc((size_t)model->count, sizeof *d->flow_offset, &d->flow_offset));
    TR_TRY_OUT(place_flows(d, &need));
    TR_TRY_OUT(prepare_layers(d, &need));
    TR_TRY_OUT(allocate(d, &need));
    TR_TRY_OUT(open_boundaries(d));
out:
    if (status != TR_OK) tr_decoder_destroy(d);
    else *out = d;
    return status;
}

static void close_boundary(boundary *b) {
    if (b->channel) tr_channel_close(b->channel);
    free(b->tensor);
    free(b->bytes);
}

void tr_decoder_destroy(tr_decoder *d) {
    if (!d) return;
    tr_device *device = d->desc.device;
    close_boundary(&d->before);
    close_boundary(&d->after);
    void *device_memory[] = {d->cache, d->scratch, d->flows, d->tokens,
                             d->state, d->part,    d->logits};
    for (size_t i = 0; i < sizeof device_memory / sizeof *device_memory; i++)
        tr_device_free(device, device_memory[i]);
    tr_device_staging_free(device, d->given);
    tr_device_staging_free(device, d->fed);
    tr_device_staging_free(device, d->copied);
    free(d->cache_offset);
    free(d->flow_offset);
    free(d);
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Returns a layer's output for one position. */
static tr_tensor output_of(const tr_decoder *d, int layer, int output) {
    return tr_flow_tensor(&d->desc.model->layers[layer]->output[output],
                          d->flows + d->flow_offset[layer][output]);
}

/* Returns the tensors that layer i reads and writes for one position. */
static tr_layer_io layer_io(const tr_decoder *d, int i) {
    const tr_layer *layer = d->desc.model->layers[i];
    tr_layer_io io = {.stream = tr_device_compute(d->desc.device),
                      .state = d->state,
                      .scratch = d->scratch,
                      .cache = d->cache + d->cache_offset[i],
                      .logits = d->part};
    for (int k = 0; k < layer->inputs; k++)
        io.x[k] = output_of(d, layer->input[k].layer, layer->input[k].output);
    for (int k = 0; k < layer->outputs; k++) io.y[k] = output_of(d, i, k);
    for (int k = 0; k < layer->step_inputs; k++)
        if (strcmp(layer->step_input[k].name, TR_INPUT_TOKENS) == 0)
            io.step[k] = tr_flow_tensor(&layer->step_input[k], d->tokens);
    return io;
}

static tr_status receive(tr_decoder *d) {
    boundary *b = &d->before;
    if (!b->channel) return TR_OK;
    TR_TRY(tr_channel_expect(b->channel, b->bytes, b->tensors));
    for (int i = 0; i < b->tensors; i++) {
        const tr_tensor x = output_of(d, b->tensor[i].layer, b->tensor[i].output);
        TR_TRY(tr_channel_take(b->channel, tr_device_compute(d->desc.device), x.data, b->bytes[i]));
    }
    return TR_OK;
}

static tr_status send(tr_decoder *d) {
    boundary *b = &d->after;
    for (int i = 0; b->channel && i < b->tensors; i++) {
        const tr_tensor x = output_of(d, b->tensor[i].layer, b->tensor[i].output);
        TR_TRY(tr_channel_send(b->channel, tr_device_compute(d->desc.device), x.data, b->bytes[i],
                               &b->ticket));
    }
    return TR_OK;
}

/* Puts the tensor ranks' columns of the logits next to each other. */
static tr_status join_logits(tr_decoder *d) {
    const tr_model *model = d->desc.model;
    const int64_t vocab = model->config.vocab, columns = d->columns.extent;
    const tr_dtype type = tr_dtype_acc(model->shape.dtype);
    const size_t size = tr_dtype_size(type);
    tr_stream *stream = tr_device_compute(d->desc.device);
    /* Every other rank adds zeros to this rank's columns. */
    TR_TRY(tr_stream_zero(stream, d->logits, logits_bytes(d, vocab)));
    for (int64_t row = 0; row < model->shape.batch; row++)
        TR_TRY(tr_stream_copy(
            stream, (char *)d->logits + (size_t)(row * vocab + d->columns.begin) * size,
            (const char *)d->part + (size_t)(row * columns) * size, (size_t)columns * size));
    return tr_group_all_reduce(d->tp, stream, d->logits, model->shape.batch * vocab, type,
                               TR_REDUCE_SUM);
}

tr_status tr_decoder_step(tr_decoder *d, const int32_t *tokens, int64_t position) {
    tr_stream *stream = tr_device_compute(d->desc.device);
    const size_t bytes = (size_t)d->desc.model->shape.batch * sizeof *tokens;
    d->given->position = position;
    memcpy(d->fed, tokens, bytes);
    TR_TRY(tr_stream_copy(stream, d->state, d->given, sizeof *d->given));
    TR_TRY(tr_stream_copy(stream, d->tokens, d->fed, bytes));
    /* The layers below write the tensors that the last step sent. */
    if (d->after.ticket >= 0)
        TR_TRY(tr_channel_wait_sent(d->after.channel, stream, d->after.ticket));
    TR_TRY(receive(d));
    for (int i = d->first; i < d->end; i++) {
        tr_layer *layer = d->desc.model->layers[i];
        tr_layer_io io = layer_io(d, i);
        TR_TRY(layer->ops->decode(layer, &io));
    }
    TR_TRY(send(d));
    if (is_last(d)) TR_TRY(join_logits(d));
    return tr_world_sync(d->desc.world, stream); /* the next step uses the same staging memory */
}

int tr_decoder_logits_rank(const tr_decoder *d) {
    int at[TR_AXIS_COUNT] = {0};
    at[TR_AXIS_PP] = d->desc.mesh.degree[TR_AXIS_PP] - 1;
    return tr_mesh_rank(&d->desc.mesh, at);
}

tr_status tr_decoder_logits(tr_decoder *d, double *logits) {
    const tr_model *model = d->desc.model;
    const int64_t count = model->shape.batch * model->config.vocab;
    const tr_dtype type = tr_dtype_acc(model->shape.dtype);
    tr_stream *stream = tr_device_compute(d->desc.device);
    TR_TRY(tr_stream_copy(stream, d->copied, d->logits, (size_t)count * tr_dtype_size(type)));
    TR_TRY(tr_stream_sync(stream));
    const double *wide = d->copied;
    const float *narrow = d->copied;
    for (int64_t i = 0; i < count; i++) logits[i] = type == TR_F64 ? wide[i] : (double)narrow[i];
    return TR_OK;
}
