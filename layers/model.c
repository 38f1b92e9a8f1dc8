#include "layers/model_impl.h"
#include "layers/param_impl.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tr_family *find_family(const char *name) {
    for (int i = 0; i < tr_family_count; i++)
        if (!strcmp(tr_families[i]->name, name)) return tr_families[i];
    return NULL;
}

static tr_status fail_unknown_family(const char *name) {
    char known[256] = "";
    for (int i = 0; i < tr_family_count; i++) {
        size_t end = strlen(known);
        (void)snprintf(known + end, sizeof known - end, "%s%s", i ? ", " : "",
                       tr_families[i]->name);
    }
    return TR_FAIL(TR_ERR_CONFIG, "model.family \"%s\" is unknown; the families are: %s", name,
                   known);
}

/* a * b * c elements, each of up to 8 bytes, fit a signed size. */
static bool elements_fit(int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_mul_overflow(product, c, &product) && product <= INT64_MAX / 64;
}

static tr_status check_sizes(const tr_model_config *config, const tr_model_shape *shape) {
    const struct {
        const char *key;
        int64_t value, most;
    } sizes[] = {
        {"model.layers", config->layers, 1 << 20},
        {"model.width", config->width, 1 << 24},
        {"model.heads", config->heads, 1 << 24},
        {"model.context", config->context, INT32_MAX},
        {"model.vocab", config->vocab, INT32_MAX},
        {"train.micro_batch", shape->batch, INT32_MAX},
        {"the sequence length", shape->seq, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return TR_FAIL(TR_ERR_CONFIG, "%s is %lld; it must be from 1 to %lld", sizes[i].key,
                           (long long)sizes[i].value, (long long)sizes[i].most);
    if (!(config->dropout >= 0 && config->dropout < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.dropout is %g; it must be from 0 to less than 1",
                       config->dropout);
    int64_t rows_width = config->vocab > 4 * config->width ? config->vocab : 4 * config->width;
    if (!elements_fit(shape->batch, shape->seq, rows_width) ||
        !elements_fit(config->width, rows_width, 1) ||
        !elements_fit(config->context, config->width, 1))
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.width, model.vocab, model.context and train.micro_batch make tensors "
                       "larger than any memory; make them smaller");
    if (shape->tp_size < 1 || shape->tp_rank < 0 || shape->tp_rank >= shape->tp_size)
        return TR_FAIL(TR_ERR_INTERNAL, "tensor rank %d of %d does not exist", shape->tp_rank,
                       shape->tp_size);
    if (shape->dtype != TR_F32 && shape->dtype != TR_BF16 && shape->dtype != TR_F64)
        return TR_FAIL(TR_ERR_INTERNAL, "a model is stored as f32, bf16 or f64, not as %s",
                       tr_dtype_name(shape->dtype));
    if (config->vocab < shape->tp_size)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.vocab %lld is smaller than parallel.tp %d: every tensor rank holds "
                       "a part of the vocabulary",
                       (long long)config->vocab, shape->tp_size);
    return TR_OK;
}

static tr_status check_layout(const tr_model_config *config, const tr_model_shape *shape) {
    if (shape->decode && shape->tp_size > 1)
        return TR_FAIL(TR_ERR_CONFIG,
                       "decoding needs the whole model on one rank, but parallel.tp is %d; "
                       "sample with parallel.tp=1, a checkpoint of any layout will do",
                       shape->tp_size);
    if (config->width % config->heads)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.width %lld is not divisible by model.heads %lld: every head has the "
                       "same width",
                       (long long)config->width, (long long)config->heads);
    if (config->heads % shape->tp_size)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.heads %lld is not divisible by parallel.tp %d: a tensor rank holds "
                       "whole heads, the same number on each",
                       (long long)config->heads, shape->tp_size);
    if (shape->seq > config->context)
        return TR_FAIL(TR_ERR_CONFIG,
                       "a sequence of %lld tokens is longer than model.context %lld: learned "
                       "positions end there",
                       (long long)shape->seq, (long long)config->context);
    return TR_OK;
}

static tr_status connect_input(const tr_model *model, const tr_layer *layer,
                               tr_layer_input *input) {
    if (input->layer == TR_LAYER_BEFORE) input->layer = layer->index - 1;
    if (input->layer < 0 || input->layer >= layer->index || input->output < 0 ||
        input->output >= model->layers[input->layer]->outputs)
        return TR_FAIL(TR_ERR_INTERNAL, "layer %s reads output %d of layer %d, which is not there",
                       layer->name, input->output, input->layer);
    return TR_OK;
}

/* Whether a layer behind `layer` reads its output. */
static bool is_read(const tr_model *model, int layer, int output) {
    for (int k = layer + 1; k < model->count; k++)
        for (int i = 0; i < model->layers[k]->inputs; i++) {
            const tr_layer_input *input = &model->layers[k]->input[i];
            if (input->layer == layer && input->output == output) return true;
        }
    return false;
}

tr_status tr_model_connect(tr_model *model) {
    model->params_count = 0;
    for (int k = 0; k < model->count; k++) {
        tr_layer *layer = model->layers[k];
        layer->index = k;
        TR_TRY(tr_params_check(layer->params, layer->params_count));
        for (int j = 0; j < layer->params_count; j++) {
            layer->params[j].index = model->params_count++;
            layer->params[j].dtype = model->shape.dtype;
        }
        for (int i = 0; i < layer->inputs; i++)
            TR_TRY(connect_input(model, layer, &layer->input[i]));
    }
    for (int k = 0; k < model->count; k++)
        for (int o = 0; o < model->layers[k]->outputs; o++)
            if (!is_read(model, k, o))
                return TR_FAIL(TR_ERR_INTERNAL, "no layer reads output \"%s\" of layer %s",
                               model->layers[k]->output[o].name, model->layers[k]->name);
    return TR_OK;
}

tr_status tr_model_check(const tr_model_config *config, const tr_model_shape *shape) {
    if (!find_family(config->family)) return fail_unknown_family(config->family);
    TR_TRY(check_sizes(config, shape));
    return check_layout(config, shape);
}

static tr_status make_layers(tr_model *model) {
    const int blocks = model->count - 2;
    TR_TRY(tr_calloc((size_t)model->count, sizeof *model->layers, &model->layers));
    TR_TRY(tr_embedding_create(model, &model->layers[0]));
    for (int i = 0; i < blocks; i++) TR_TRY(tr_block_create(model, i, &model->layers[1 + i]));
    return tr_head_create(model, &model->layers[1 + blocks]);
}

tr_status tr_model_create(const tr_model_config *config, const tr_model_shape *shape,
                          tr_model **out) {
    tr_model *model;
    TR_TRY(tr_model_check(config, shape));
    TR_TRY(tr_calloc(1, sizeof *model, &model));
    model->family = find_family(config->family);
    model->config = *config;
    model->shape = *shape;
    model->shape.rows = shape->decode ? shape->batch : shape->batch * shape->seq;
    model->count = (int)config->layers + 2;
    tr_status status = make_layers(model);
    if (status == TR_OK) status = tr_model_connect(model);
    if (status == TR_OK) *out = model;
    else tr_model_destroy(model);
    return status;
}

void tr_model_destroy(tr_model *model) {
    if (!model) return;
    for (int i = 0; model->layers && i < model->count; i++)
        if (model->layers[i]) model->layers[i]->ops->destroy(model->layers[i]);
    free(model->layers);
    free(model);
}

int64_t tr_model_parameters(const tr_model *model) {
    int64_t sum = 0;
    for (int i = 0; i < model->count; i++) {
        const tr_layer *layer = model->layers[i];
        for (int j = 0; j < layer->params_count; j++) {
            const tr_param *param = &layer->params[j];
            for (int k = 0; k < param->tensors && param->use == 0; k++)
                sum += tr_global_count(&param->tensor[k]);
        }
    }
    return sum;
}

double tr_model_flops_per_token(const tr_model *model) {
    const tr_model_config *c = &model->config;
    double L = (double)c->layers, C = (double)c->width, V = (double)c->vocab;
    return 6 * (12 * L * C * C + V * C) + 6 * L * (double)model->shape.seq * C;
}
