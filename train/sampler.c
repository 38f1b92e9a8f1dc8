#include "train/sampler.h"

#include "base/memory.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tr_sampler {
    tr_device *device;
    tr_model *model;
    tr_sample_options options;
    tr_step_state *state; /* device */
    int32_t *token;       /* device */
    /* Staging memory: */
    tr_step_state *given;
    int32_t *fed;
    void *copied;                          /* the logits in the device's type */
    char *cache, *scratch, *flows;         /* flows: one token's outputs of all layers */
    size_t *cache_offset;                  /* [layers] */
    size_t (*flow_offset)[TR_LAYER_FLOWS]; /* [layers]: of their outputs */
    void *logits;                          /* device, [vocab] */
    double *drawn_from, *sorted;           /* host, [vocab] */
    int32_t *history;                      /* tokens in the context */
    int64_t length;
    uint64_t drawn;
};

/* The bytes of all layers' buffers. */
typedef struct sizes {
    size_t cache, scratch, flows;
} sizes;

static tr_status prepare_layers(tr_sampler *s, tr_group *alone, sizes *need) {
    tr_layer_env env = {.context = {.device = s->device, .deterministic = true}, .tp = alone};
    for (int i = 0; i < s->model->count; i++) {
        tr_layer *layer = s->model->layers[i];
        TR_TRY(layer->ops->prepare(layer, &env));
        s->cache_offset[i] = need->cache;
        need->cache += tr_align_up(layer->cache_bytes);
        if (layer->bytes[TR_LIFE_SCRATCH] > need->scratch)
            need->scratch = layer->bytes[TR_LIFE_SCRATCH];
        for (int o = 0; o < layer->outputs; o++) {
            size_t bytes = 0;
            s->flow_offset[i][o] = need->flows;
            if (!tr_flow_bytes(&layer->output[o], &bytes))
                return TR_FAIL(TR_ERR_INTERNAL, "a token of layer %s overflows", layer->name);
            need->flows += tr_align_up(bytes);
        }
    }
    return TR_OK;
}

tr_status tr_sampler_create(tr_device *device, tr_group *alone, tr_model *model,
                            const tr_sample_options *options, tr_sampler **out) {
    tr_status status = TR_OK;
    tr_sampler *s = NULL;
    sizes need = {0};
    size_t vocab = (size_t)model->config.vocab;
    size_t logits = vocab * tr_dtype_size(tr_dtype_acc(model->shape.dtype));
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->device = device;
    s->model = model;
    s->options = *options;
    TR_TRY_OUT(tr_calloc((size_t)model->count, sizeof *s->cache_offset, &s->cache_offset));
    TR_TRY_OUT(tr_calloc((size_t)model->count, sizeof *s->flow_offset, &s->flow_offset));
    TR_TRY_OUT(tr_calloc(vocab, sizeof *s->drawn_from, &s->drawn_from));
    TR_TRY_OUT(tr_calloc(vocab, sizeof *s->sorted, &s->sorted));
    TR_TRY_OUT(tr_calloc((size_t)model->shape.seq, sizeof *s->history, &s->history));
    TR_TRY_OUT(prepare_layers(s, alone, &need));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need.cache, (void **)&s->cache));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need.scratch, (void **)&s->scratch));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, need.flows, (void **)&s->flows));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, logits, &s->logits));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, sizeof *s->token, (void **)&s->token));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, sizeof *s->state, (void **)&s->state));
    TR_TRY_OUT(tr_device_staging_alloc(device, sizeof *s->given, (void **)&s->given));
    TR_TRY_OUT(tr_device_staging_alloc(device, sizeof *s->fed, (void **)&s->fed));
    TR_TRY_OUT(tr_device_staging_alloc(device, logits, &s->copied));
    *s->given = (tr_step_state){0};
out:
    if (status != TR_OK) tr_sampler_destroy(s);
    else *out = s;
    return status;
}

void tr_sampler_destroy(tr_sampler *s) {
    if (!s) return;
    void *device_memory[] = {s->cache, s->scratch, s->flows, s->logits, s->token, s->state};
    for (size_t i = 0; i < sizeof device_memory / sizeof *device_memory; i++)
        tr_device_free(s->device, device_memory[i]);
    tr_device_staging_free(s->device, s->given);
    tr_device_staging_free(s->device, s->fed);
    tr_device_staging_free(s->device, s->copied);
    free(s->drawn_from);
    free(s->cache_offset);
    free(s->flow_offset);
    free(s->sorted);
    free(s->history);
    free(s);
}

/* Returns a layer's output for one token. */
static tr_tensor output_of(const tr_sampler *s, int layer, int output) {
    return tr_flow_tensor(&s->model->layers[layer]->output[output],
                          s->flows + s->flow_offset[layer][output]);
}

/* Returns the tensors that layer i reads and writes for one token. */
static tr_layer_io layer_io(const tr_sampler *s, int i) {
    const tr_layer *layer = s->model->layers[i];
    tr_layer_io io = {.stream = tr_device_compute(s->device),
                      .state = s->state,
                      .scratch = s->scratch,
                      .cache = s->cache + s->cache_offset[i],
                      .logits = s->logits};
    for (int k = 0; k < layer->inputs; k++)
        io.x[k] = output_of(s, layer->input[k].layer, layer->input[k].output);
    for (int k = 0; k < layer->outputs; k++) io.y[k] = output_of(s, i, k);
    for (int k = 0; k < layer->step_inputs; k++)
        if (strcmp(layer->step_input[k].name, TR_INPUT_TOKENS) == 0)
            io.step[k] = tr_flow_tensor(&layer->step_input[k], s->token);
    return io;
}

static tr_status decode_one(tr_sampler *s, int32_t token, int64_t position) {
    tr_stream *stream = tr_device_compute(s->device);
    s->given->position = position;
    *s->fed = token;
    TR_TRY(tr_stream_copy(stream, s->state, s->given, sizeof *s->given));
    TR_TRY(tr_stream_copy(stream, s->token, s->fed, sizeof *s->fed));
    for (int i = 0; i < s->model->count; i++) {
        tr_layer *layer = s->model->layers[i];
        tr_layer_io io = layer_io(s, i);
        TR_TRY(layer->ops->decode(layer, &io));
    }
    return tr_stream_sync(stream); /* because the next token uses the same staging memory */
}

tr_status tr_sampler_feed(tr_sampler *s, int32_t token) {
    int64_t context = s->model->shape.seq;
    if (s->length == context) {
        int64_t keep = context / 2;
        memmove(s->history, s->history + context - keep, (size_t)keep * sizeof *s->history);
        for (int64_t i = 0; i < keep; i++) TR_TRY(decode_one(s, s->history[i], i));
        s->length = keep;
    }
    TR_TRY(decode_one(s, token, s->length));
    s->history[s->length++] = token;
    return TR_OK;
}

tr_status tr_sampler_logits(tr_sampler *s, double *logits) {
    int64_t vocab = s->model->config.vocab;
    tr_dtype type = tr_dtype_acc(s->model->shape.dtype);
    tr_stream *stream = tr_device_compute(s->device);
    TR_TRY(tr_stream_copy(stream, s->copied, s->logits, (size_t)vocab * tr_dtype_size(type)));
    TR_TRY(tr_stream_sync(stream));
    const double *wide = s->copied;
    const float *narrow = s->copied;
    for (int64_t i = 0; i < vocab; i++) logits[i] = type == TR_F64 ? wide[i] : (double)narrow[i];
    return TR_OK;
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Returns the smallest logit that top-k keeps. */
static double threshold(tr_sampler *s, const double *logits, int64_t vocab) {
    if (s->options.top_k <= 0 || s->options.top_k >= vocab) return -INFINITY;
    memcpy(s->sorted, logits, (size_t)vocab * sizeof *logits);
    qsort(s->sorted, (size_t)vocab, sizeof *s->sorted, descending);
    return s->sorted[s->options.top_k - 1];
}

tr_status tr_sampler_draw(tr_sampler *s, int32_t *token) {
    int64_t vocab = s->model->config.vocab;
    const double *logits = s->drawn_from;
    TR_TRY(tr_sampler_logits(s, s->drawn_from));
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    *token = best;
    if (s->options.temperature > 0) {
        double least = threshold(s, logits, vocab), sum = 0, temperature = s->options.temperature;
        tr_philox random = tr_philox4x32(tr_mix64(s->options.seed), s->drawn, 0);
        for (int32_t i = 0; i < vocab; i++)
            if (logits[i] >= least) sum += exp((logits[i] - logits[best]) / temperature);
        double left = (double)tr_uniform(random.v[0]) * sum;
        for (int32_t i = 0; i < vocab && left > 0; i++) {
            if (logits[i] < least) continue;
            left -= exp((logits[i] - logits[best]) / temperature);
            *token = i;
        }
    }
    s->drawn++;
    return TR_OK;
}
