#include "train/decoder.h"

#include "base/memory.h"
#include "layers/cached.h"

#include <stdlib.h>
#include <string.h>

/* A tensor that crosses the boundary between two stages: an output of a layer in front of it that a
 * layer behind it reads. A tensor for a later stage passes through all stages between. */
typedef struct crossing {
    int layer, output;
} crossing;

/* What crosses the boundary in front of a stage. */
typedef struct boundary {
    crossing *tensor;
    size_t *bytes[TR_PASSES]; /* of each tensor */
    int tensors;
} boundary;

struct tr_decoder {
    tr_decoder_desc desc;
    tr_cached_layers layers;
    tr_cached_memory memory;
    boundary *before; /* [stages]; none before stage 0 */
    const tr_links *links;
    tr_links *own_links;
    int64_t *ticket; /* [pipeline ranks]: of the last message of a pass to each; -1: none */
    tr_group *tp;
    tr_range columns; /* this rank's part of the vocabulary */
    void *own_memory; /* device */
    /* Staging memory: */
    tr_step_state *given;
    int32_t *fed;
    void *copied; /* logits */
};

static int pipeline_rank(const tr_decoder *d) {
    return d->desc.mesh.index[TR_AXIS_PP];
}

static bool has_logits(const tr_decoder *d) {
    return d->desc.placement->owner[d->desc.placement->stages - 1] == pipeline_rank(d);
}

/* --- creating --------------------------------------------------------------------------------- */

/* Returns true when a layer from `end` on reads this output. */
static bool is_read_after(const tr_model *model, int layer, int output, int end) {
    for (int k = end; k < model->count; k++)
        for (int i = 0; i < model->layers[k]->inputs; i++) {
            const tr_layer_input *input = &model->layers[k]->input[i];
            if (input->layer == layer && input->output == output) return true;
        }
    return false;
}

/* Lists what crosses the boundary in front of layer `end`. */
static tr_status list_crossings(const tr_decoder *d, int end, boundary *b) {
    const tr_model *model = d->desc.model;
    size_t outputs = 0;
    for (int i = 0; i < end; i++) outputs += (size_t)model->layers[i]->outputs;
    TR_TRY(tr_calloc(outputs, sizeof *b->tensor, &b->tensor));
    for (int p = 0; p < TR_PASSES; p++)
        TR_TRY(tr_calloc(outputs, sizeof *b->bytes[p], &b->bytes[p]));
    for (int i = 0; i < end; i++)
        for (int o = 0; o < model->layers[i]->outputs; o++) {
            if (!is_read_after(model, i, o, end)) continue;
            b->tensor[b->tensors] = (crossing){i, o};
            for (int p = 0; p < TR_PASSES; p++)
                (void)tr_flow_bytes(&d->layers.pass[p].model->layers[i]->output[o],
                                    &b->bytes[p][b->tensors]);
            b->tensors++;
        }
    return TR_OK;
}

/* Opens channels between the owners of neighbouring stages. */
static tr_status open_links(tr_decoder *d) {
    const tr_placement *placement = d->desc.placement;
    const int ranks = d->desc.mesh.degree[TR_AXIS_PP];
    int *line = NULL;
    tr_edge *edge = NULL;
    tr_stage_table table = {.stages = placement->stages, .edges = placement->stages - 1};
    tr_status status = tr_calloc((size_t)ranks, sizeof *line, &line);
    if (status == TR_OK) status = tr_calloc((size_t)placement->stages, sizeof *edge, &edge);
    for (int s = 1; status == TR_OK && s < placement->stages; s++)
        edge[s - 1] = (tr_edge){.from = s - 1, .to = s, .bytes = d->layers.message};
    table.edge = edge;
    if (status == TR_OK) {
        tr_mesh_line(&d->desc.mesh, TR_AXIS_PP, line);
        status = tr_links_open(d->desc.world, d->desc.device, &table, placement->owner, line, ranks,
                               pipeline_rank(d), &d->own_links);
    }
    d->links = d->own_links;
    free(line);
    free(edge);
    return status;
}

static tr_status allocate(tr_decoder *d) {
    tr_device *device = d->desc.device;
    const size_t tokens = (size_t)(d->desc.rows * tr_decoder_chunk(d)) * sizeof *d->fed;
    const size_t bytes = tr_cached_bytes(&d->layers);
    if (d->desc.memory && d->desc.bytes < bytes)
        return TR_FAIL(TR_ERR_INTERNAL, "decoding needs %zu bytes, but was given %zu", bytes,
                       d->desc.bytes);
    if (!d->desc.memory)
        TR_TRY(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, bytes, &d->own_memory));
    d->memory = tr_cached_divide(&d->layers, d->desc.memory ? d->desc.memory : d->own_memory);
    TR_TRY(tr_device_staging_alloc(device, sizeof *d->given, (void **)&d->given));
    TR_TRY(tr_device_staging_alloc(device, tokens, (void **)&d->fed));
    *d->given = (tr_step_state){0};
    if (!has_logits(d)) return TR_OK;
    return tr_device_staging_alloc(device, d->layers.logits, &d->copied);
}

static tr_status prepare(tr_decoder *d) {
    const tr_decoder_desc *desc = &d->desc;
    tr_mesh_part tensor_ranks = tr_mesh_self(&desc->mesh);
    TR_TRY(tr_mesh_widen(&desc->mesh, TR_AXIS_TP, 0, &tensor_ranks));
    TR_TRY(tr_mesh_groups_get(desc->groups, &tensor_ranks, &d->tp));
    TR_TRY(tr_cached_layers_create(desc->model, desc->rows, desc->placement, pipeline_rank(d),
                                   desc->device, d->tp, &d->layers));
    TR_TRY(tr_calloc((size_t)desc->placement->stages, sizeof *d->before, &d->before));
    for (int s = 1; s < desc->placement->stages; s++)
        TR_TRY(list_crossings(d, desc->placement->first[s], &d->before[s]));
    const int ranks = desc->mesh.degree[TR_AXIS_PP];
    TR_TRY(tr_calloc((size_t)ranks, sizeof *d->ticket, &d->ticket));
    for (int i = 0; i < ranks; i++) d->ticket[i] = -1;
    return allocate(d);
}

tr_status tr_decoder_create(const tr_decoder_desc *desc, tr_decoder **out) {
    tr_decoder *d = NULL;
    const tr_model_shape *shape = &desc->model->shape;
    tr_status status = tr_calloc(1, sizeof *d, &d);
    /* Ranks open their group and channels together, so they agree before each. */
    if (!desc->links) status = tr_world_agree(desc->world, status);
    if (status == TR_OK) {
        d->desc = *desc;
        d->columns = tr_range_part(desc->model->config.vocab, shape->tp_size, shape->tp_rank);
        d->links = desc->links;
        status = prepare(d);
    }
    if (!desc->links) {
        status = tr_world_agree(desc->world, status);
        if (status == TR_OK) status = open_links(d);
    }
    if (status != TR_OK) tr_decoder_destroy(d);
    else *out = d;
    return status;
}

void tr_decoder_destroy(tr_decoder *d) {
    if (!d) return;
    tr_device *device = d->desc.device;
    tr_links_close(d->own_links);
    tr_device_free(device, d->own_memory);
    tr_device_staging_free(device, d->given);
    tr_device_staging_free(device, d->fed);
    tr_device_staging_free(device, d->copied);
    for (int s = 0; d->before && s < d->desc.placement->stages; s++) {
        free(d->before[s].tensor);
        for (int p = 0; p < TR_PASSES; p++) free(d->before[s].bytes[p]);
    }
    tr_cached_layers_destroy(&d->layers);
    free(d->before);
    free(d->ticket);
    free(d);
}

int64_t tr_decoder_rows(const tr_decoder *d) {
    return d->desc.rows;
}

int64_t tr_decoder_chunk(const tr_decoder *d) {
    return d->layers.pass[TR_PASS_CHUNK].tokens;
}

/* --- decoding --------------------------------------------------------------------------------- */

static tr_status receive(tr_decoder *d, int pass, int stage) {
    const boundary *b = &d->before[stage];
    tr_channel *from = tr_links_from(d->links, d->desc.placement->owner[stage - 1]);
    TR_TRY(tr_channel_expect(from, b->bytes[pass], b->tensors));
    for (int i = 0; i < b->tensors; i++) {
        const tr_tensor x =
            tr_cached_output(&d->layers, pass, &d->memory, b->tensor[i].layer, b->tensor[i].output);
        TR_TRY(tr_channel_take(from, tr_device_compute(d->desc.device), x.data, b->bytes[pass][i]));
    }
    return TR_OK;
}

/* Sends what crosses the boundary in front of a stage to its owner. */
static tr_status send(tr_decoder *d, int pass, int stage) {
    const boundary *b = &d->before[stage];
    const int owner = d->desc.placement->owner[stage];
    tr_channel *to = tr_links_to(d->links, owner);
    for (int i = 0; i < b->tensors; i++) {
        const tr_tensor x =
            tr_cached_output(&d->layers, pass, &d->memory, b->tensor[i].layer, b->tensor[i].output);
        TR_TRY(tr_channel_send(to, tr_device_compute(d->desc.device), x.data, b->bytes[pass][i],
                               &d->ticket[owner]));
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
    TR_TRY(tr_stream_zero(stream, d->memory.logits, d->layers.logits));
    for (int64_t row = 0; row < d->desc.rows; row++)
        TR_TRY(tr_stream_copy(
            stream, (char *)d->memory.logits + (size_t)(row * vocab + d->columns.begin) * size,
            (const char *)d->memory.part + (size_t)(row * columns) * size, (size_t)columns * size));
    return tr_group_all_reduce(d->tp, stream, d->memory.logits, d->desc.rows * vocab, type,
                               TR_REDUCE_SUM);
}

/* Runs this rank's stages, and the transfers before and after them. */
static tr_status run_stages(tr_decoder *d, int pass) {
    const tr_placement *placement = d->desc.placement;
    const int self = pipeline_rank(d);
    for (int s = 0; s < placement->stages; s++) {
        if (placement->owner[s] != self) continue;
        if (s > 0 && placement->owner[s - 1] != self) TR_TRY(receive(d, pass, s));
        TR_TRY(tr_cached_run(&d->layers, pass, &d->memory, tr_device_compute(d->desc.device),
                             placement->first[s], placement->first[s + 1]));
        if (s + 1 < placement->stages && placement->owner[s + 1] != self)
            TR_TRY(send(d, pass, s + 1));
    }
    return TR_OK;
}

/* Waits for the messages of a pass: the next one, or the owner of the memory, writes the tensors
 * that were sent. */
static tr_status wait_sent(tr_decoder *d) {
    tr_stream *stream = tr_device_compute(d->desc.device);
    for (int i = 0; i < d->desc.mesh.degree[TR_AXIS_PP]; i++) {
        if (d->ticket[i] < 0) continue;
        TR_TRY(tr_channel_wait_sent(tr_links_to(d->links, i), stream, d->ticket[i]));
        d->ticket[i] = -1;
    }
    return TR_OK;
}

static tr_status feed(tr_decoder *d, int pass, const int32_t *tokens, const int64_t *position) {
    tr_stream *stream = tr_device_compute(d->desc.device);
    const int64_t count = d->desc.rows * d->layers.pass[pass].tokens;
    const size_t bytes = (size_t)count * sizeof *tokens;
    memcpy(d->given->position, position, (size_t)d->desc.rows * sizeof *position);
    memcpy(d->fed, tokens, bytes);
    TR_TRY(tr_stream_copy(stream, d->memory.state, d->given, sizeof *d->given));
    TR_TRY(tr_stream_copy(stream, d->memory.tokens, d->fed, bytes));
    TR_TRY(run_stages(d, pass));
    if (pass == TR_PASS_ONE && has_logits(d)) TR_TRY(join_logits(d));
    TR_TRY(wait_sent(d));
    return tr_world_sync(d->desc.world, stream); /* the next step uses the same staging memory */
}

tr_status tr_decoder_step(tr_decoder *d, const int32_t *tokens, const int64_t *position) {
    return feed(d, TR_PASS_ONE, tokens, position);
}

tr_status tr_decoder_prefill(tr_decoder *d, const int32_t *tokens, const int64_t *position) {
    return feed(d, TR_PASS_CHUNK, tokens, position);
}

int tr_decoder_logits_rank(const tr_decoder *d) {
    int at[TR_AXIS_COUNT] = {0};
    at[TR_AXIS_PP] = d->desc.placement->owner[d->desc.placement->stages - 1];
    return tr_mesh_rank(&d->desc.mesh, at);
}

tr_status tr_decoder_logits(tr_decoder *d, double *logits) {
    const tr_model *model = d->desc.model;
    const int64_t count = d->desc.rows * model->config.vocab;
    const tr_dtype type = tr_dtype_acc(model->shape.dtype);
    tr_stream *stream = tr_device_compute(d->desc.device);
    TR_TRY(tr_stream_copy(stream, d->copied, d->memory.logits, d->layers.logits));
    TR_TRY(tr_stream_sync(stream));
    const double *wide = d->copied;
    const float *narrow = d->copied;
    for (int64_t i = 0; i < count; i++) logits[i] = type == TR_F64 ? wide[i] : (double)narrow[i];
    return TR_OK;
}
