#include "layers/lora_config.h"
#include "layers/model_impl.h"
#include "layers/param_impl.h"
#include "layers/tuning.h"

#include "base/memory.h"
#include "base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WIDTH = 1 << 24 };

const tr_family *tr_model_family(const char *name) {
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
    return TR_FAIL(TR_ERR_CONFIG, "unknown model.family '%s': use one of %s", name, known);
}

/* --- defaults --------------------------------------------------------------------------------- */

static void take_number(int64_t *to, int64_t value) {
    if (*to == 0) *to = value;
}

static void take_real(double *to, double value) {
    if (*to == 0) *to = value;
}

static void take_answer(tr_answer *to, tr_answer value) {
    if (*to == TR_UNSET) *to = value;
}

tr_status tr_model_complete(tr_model_config *c) {
    const tr_family *family = tr_model_family(c->family);
    if (!family) return fail_unknown_family(c->family);
    const tr_model_config *d = &family->defaults;
    take_real(&c->norm_eps, d->norm_eps);
    take_real(&c->rope_theta, d->rope_theta);
    take_answer(&c->qk_norm, d->qk_norm);
    take_answer(&c->qkv_bias, d->qkv_bias);
    take_answer(&c->tie, d->tie);
    if (!c->activation[0]) memcpy(c->activation, d->activation, sizeof c->activation);
    if (!c->rope_scaling[0]) (void)snprintf(c->rope_scaling, sizeof c->rope_scaling, "none");
    if (c->lora.rank > 0 && !c->lora.targets[0])
        (void)snprintf(c->lora.targets, sizeof c->lora.targets, "all-linear");
    take_number(&c->kv_heads, c->heads);
    if (c->heads > 0 && c->width % c->heads == 0) take_number(&c->head_size, c->width / c->heads);
    const tr_model_activation_row *activation = tr_model_activation(c->activation);
    const bool known = c->width > 0 && c->width <= MOST_WIDTH; /* else the check refuses it */
    const int64_t gated = known ? ((8 * c->width + 2) / 3 + 63) / 64 * 64 : 0;
    if (known) take_number(&c->mlp_width, activation && activation->gated ? gated : 4 * c->width);
    return TR_OK;
}

bool tr_model_is_conv1d(const tr_model_config *config) {
    const tr_family *family = tr_model_family(config->family);
    return family && family->conv1d;
}

bool tr_model_learns_positions(const tr_model_config *config) {
    const tr_family *family = tr_model_family(config->family);
    return family && family->positions;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* Returns true when a * b * c elements of up to 8 bytes fit a signed size. */
static bool elements_fit(int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_mul_overflow(product, c, &product) && product <= INT64_MAX / 64;
}

static tr_status check_ranges(const tr_model_config *c, const tr_model_shape *shape) {
    const struct {
        const char *key;
        int64_t value, least, most;
    } sizes[] = {
        {"model.layers", c->layers, 1, 1 << 20},
        {"model.width", c->width, 1, MOST_WIDTH},
        {"model.heads", c->heads, 1, 1 << 24},
        {"model.context", c->context, 1, INT32_MAX},
        {"model.vocab", c->vocab, 1, INT32_MAX},
        {"model.kv_heads", c->kv_heads, 1, 1 << 24},
        {"model.head_size", c->head_size, 0, 1 << 20},
        {"model.mlp_width", c->mlp_width, 1, 1 << 26},
        {"model.window", c->window, 0, INT32_MAX},
        {"train.micro_batch", shape->batch, 1, INT32_MAX},
        {"the sequence length", shape->seq, 1, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return TR_FAIL(TR_ERR_CONFIG, "%s must be between %lld and %lld, not %lld",
                           sizes[i].key, (long long)sizes[i].least, (long long)sizes[i].most,
                           (long long)sizes[i].value);
    if (!(c->dropout >= 0 && c->dropout < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.dropout must be at least 0 and less than 1, not %g",
                       c->dropout);
    if (!(c->norm_eps > 0 && c->norm_eps < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.norm_eps must be above 0 and below 1, not %g",
                       c->norm_eps);
    return TR_OK;
}

static tr_status check_memory(const tr_model_config *c, const tr_model_shape *shape) {
    const int64_t qkv = (c->heads + 2 * c->kv_heads) * c->head_size;
    const int64_t widest =
        tr_max_i64(tr_max_i64(c->width, c->vocab), tr_max_i64(2 * c->mlp_width, qkv));
    /* oneDNN counts the rows and columns of a product in 32 bits. */
    if (shape->batch > INT32_MAX / shape->seq)
        return TR_FAIL(TR_ERR_CONFIG,
                       "a micro-batch of %lld x %lld tokens is larger than %d: make "
                       "train.micro_batch or model.context smaller",
                       (long long)shape->batch, (long long)shape->seq, INT32_MAX);
    if (qkv > INT32_MAX)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%lld heads and 2 x %lld key and value heads of %lld elements make vectors "
                       "longer than %d: make model.heads or model.head_size smaller",
                       (long long)c->heads, (long long)c->kv_heads, (long long)c->head_size,
                       INT32_MAX);
    if (elements_fit(shape->batch, shape->seq, widest) && elements_fit(c->width, widest, 1) &&
        elements_fit(c->context, c->width, 1))
        return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "model.width, model.vocab, model.context and train.micro_batch make tensors "
                   "larger than any memory; make them smaller");
}

/* Returns the largest tensor degree below `tp` that divides the heads. */
static long long lower_degree(long long heads, long long kv_heads, long long tp) {
    while (--tp > 1)
        if (heads % tp == 0 && (kv_heads % tp == 0 || tp % kv_heads == 0)) break;
    return tp;
}

static tr_status check_heads(const tr_model_config *c, const tr_model_shape *shape) {
    const long long heads = c->heads, kv_heads = c->kv_heads, tp = shape->tp_size;
    if (c->head_size == 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.width %lld is not divisible by model.heads %lld: every head has the "
                       "same width, which model.head_size can set",
                       (long long)c->width, heads);
    if (heads % kv_heads)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.kv_heads %lld does not divide model.heads %lld: every key and value "
                       "head serves the same number of query heads; use a divisor of model.heads",
                       kv_heads, heads);
    if (heads % tp)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.heads %lld is not divisible by parallel.tp %lld: a tensor rank holds "
                       "whole heads, the same number on each; parallel.tp=%lld works",
                       heads, tp, lower_degree(heads, kv_heads, tp));
    if (kv_heads % tp && tp % kv_heads)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.kv_heads %lld and parallel.tp %lld do not divide each other: a "
                       "tensor rank holds whole key and value heads, or shares one with the next; "
                       "parallel.tp=%lld works",
                       kv_heads, tp, lower_degree(heads, kv_heads, tp));
    return TR_OK;
}

static tr_status check_positions(const tr_family *f, const tr_model_config *c,
                                 const tr_model_shape *shape) {
    tr_rope_scaling scaling;
    TR_TRY(tr_model_rope_scaling(c->rope_scaling, &scaling));
    if (f->positions && (c->rope_theta != 0 || scaling.kind != TR_ROPE_PLAIN))
        return TR_FAIL(
            TR_ERR_CONFIG,
            "%s is for rotary positions, but model.family %s learns its positions: leave it out",
            c->rope_theta != 0 ? "model.rope_theta" : "model.rope_scaling", f->name);
    if (f->positions && shape->seq > c->context)
        return TR_FAIL(TR_ERR_CONFIG,
                       "a sequence of %lld tokens is longer than model.context %lld: learned "
                       "positions end there",
                       (long long)shape->seq, (long long)c->context);
    if (!f->positions && !(c->rope_theta > 1))
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.rope_theta must be above 1, not %g: leave it out for the default",
                       c->rope_theta);
    if (!f->positions && c->head_size % 2)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.head_size %lld is odd: it must be even, because rotary positions "
                       "turn pairs of elements",
                       (long long)c->head_size);
    return TR_OK;
}

/* Refuses a head and key heads for which the family has no names. */
static tr_status check_names(const tr_family *f, const tr_model_config *c) {
    if (c->tie == TR_NO && !f->head)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.tie is false, but model.family %s has only a tied head: leave it out",
                       f->name);
    const bool three = f->q && f->k && f->v;
    if (!three && !f->qkv)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "the row of family %s needs .qkv, or .q, .k and .v (layers/family.c)",
                       f->name);
    if (!three && !tr_family_fuses(f, c))
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.family %s has one tensor of queries, keys and values, which is "
                       "possible only with as many key heads as heads: set model.kv_heads to "
                       "model.heads, %lld",
                       f->name, (long long)c->heads);
    return TR_OK;
}

/* Refuses other options for which the family has no names. */
static tr_status check_options(const tr_family *f, const tr_model_config *c) {
    const tr_model_activation_row *activation = tr_model_activation(c->activation);
    char names[128];
    if (!activation)
        return TR_FAIL(TR_ERR_CONFIG, "model.activation must be one of %s, not '%s'",
                       tr_model_activation_names(names, sizeof names), c->activation);
    if (activation->gated && !f->gate)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.activation %s is gated, but the MLP of model.family %s has no gate: "
                       "use gelu_tanh, gelu or relu2",
                       c->activation, f->name);
    if (c->qk_norm == TR_YES && !f->q_norm)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.qk_norm is true, but model.family %s has no norms of queries and "
                       "keys: leave it out",
                       f->name);
    if (c->qk_norm == TR_YES && f->positions)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.qk_norm is true, but model.family %s learns its positions, and norms "
                       "of queries and keys need rotary ones: set it to false",
                       f->name);
    return TR_OK;
}

tr_range tr_model_shape_part(const tr_model_shape *shape, int64_t total, int copies) {
    return tr_range_part(total, shape->tp_size / copies, shape->tp_rank / copies);
}

/* Sequence parallelism: decoding feeds too few rows for it, and one rank has all of them. */
static bool divides_rows(const tr_model_config *c, const tr_model_shape *shape) {
    return c->sequence && shape->tp_size > 1 && !shape->decode;
}

static tr_status check_shape(const tr_model_config *c, const tr_model_shape *shape) {
    if (shape->tp_size < 1 || shape->tp_rank < 0 || shape->tp_rank >= shape->tp_size)
        return TR_FAIL(TR_ERR_INTERNAL, "tensor rank %d of %d does not exist", shape->tp_rank,
                       shape->tp_size);
    if (shape->decode && shape->documents)
        return TR_FAIL(TR_ERR_INTERNAL, "decoding feeds one document");
    if (shape->decode > shape->seq)
        return TR_FAIL(TR_ERR_INTERNAL, "%lld tokens do not fit a cache of %lld",
                       (long long)shape->decode, (long long)shape->seq);
    if (shape->dtype != TR_F32 && shape->dtype != TR_BF16 && shape->dtype != TR_F16 &&
        shape->dtype != TR_F64)
        return TR_FAIL(TR_ERR_INTERNAL, "a model is stored as f32, bf16, f16 or f64, not as %s",
                       tr_dtype_name(shape->dtype));
    if (c->vocab < shape->tp_size || c->mlp_width < shape->tp_size)
        return TR_FAIL(
            TR_ERR_CONFIG, "%s %lld is smaller than parallel.tp %d: every tensor rank holds a part",
            c->vocab < shape->tp_size ? "model.vocab" : "model.mlp_width",
            (long long)(c->vocab < shape->tp_size ? c->vocab : c->mlp_width), shape->tp_size);
    if (divides_rows(c, shape) && shape->batch * shape->seq % shape->tp_size)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "parallel.sequence divides the %lld tokens of a micro-batch (train.micro_batch "
            "%lld x %lld) equally among the ranks of parallel.tp %d: make "
            "train.micro_batch or model.context divisible by it, or set "
            "parallel.sequence to false",
            (long long)(shape->batch * shape->seq), (long long)shape->batch, (long long)shape->seq,
            shape->tp_size);
    return TR_OK;
}

tr_status tr_model_check(const tr_model_config *given, const tr_model_shape *shape) {
    tr_model_config config = *given;
    TR_TRY(tr_model_complete(&config));
    const tr_family *family = tr_model_family(config.family);
    TR_TRY(check_ranges(&config, shape));
    TR_TRY(check_shape(&config, shape));
    TR_TRY(check_heads(&config, shape));
    TR_TRY(check_names(family, &config));
    TR_TRY(check_options(family, &config));
    TR_TRY(tr_tuning_check(&config.tuning));
    TR_TRY(tr_recompute_check(config.recompute, config.layers));
    TR_TRY(check_positions(family, &config, shape));
    TR_TRY(tr_lora_check(&config));
    return check_memory(&config, shape);
}

/* --- the model -------------------------------------------------------------------------------- */

static tr_status make_layers(tr_model *model) {
    const int blocks = model->count - 2;
    TR_TRY(tr_calloc((size_t)model->count, sizeof *model->layers, &model->layers));
    TR_TRY(tr_embedding_create(model, &model->layers[0]));
    for (int i = 0; i < blocks; i++) TR_TRY(tr_block_create(model, i, &model->layers[1 + i]));
    return tr_head_create(model, &model->layers[1 + blocks]);
}

static tr_status connect_input(const tr_model *model, const tr_layer *layer,
                               tr_layer_input *input) {
    if (input->layer == TR_LAYER_BEFORE) input->layer = layer->index - 1;
    if (input->layer < 0 || input->layer >= layer->index || input->output < 0 ||
        input->output >= model->layers[input->layer]->outputs)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "layer %s reads output %d of layer %d, which does not exist", layer->name,
                       input->output, input->layer);
    return TR_OK;
}

/* Returns true when a later layer reads this output of `layer`. */
static bool is_read(const tr_model *model, int layer, int output) {
    for (int k = layer + 1; k < model->count; k++)
        for (int i = 0; i < model->layers[k]->inputs; i++) {
            const tr_layer_input *input = &model->layers[k]->input[i];
            if (input->layer == layer && input->output == output) return true;
        }
    return false;
}

/* Returns use 0 of the parameter, or itself where the model has no use 0. */
static tr_param *first_use(const tr_model *model, tr_param *param) {
    for (int i = 0; i < model->count && param->use > 0; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            tr_param *other = &model->layers[i]->params[k];
            if (other->use == 0 && strcmp(tr_param_name(other), tr_param_name(param)) == 0)
                return other;
        }
    return param;
}

/* Sets the turns of all parameters, and marks the tied ones. */
static void join_uses(const tr_model *model) {
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            tr_param *param = &model->layers[i]->params[k], *first = first_use(model, param);
            param->turn = first->index;
            if (first != param) param->tied = first->tied = true;
        }
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
    join_uses(model);
    for (int k = 0; k < model->count; k++)
        for (int o = 0; o < model->layers[k]->outputs; o++)
            if (!is_read(model, k, o))
                return TR_FAIL(TR_ERR_INTERNAL, "no layer reads output \"%s\" of layer %s",
                               model->layers[k]->output[o].name, model->layers[k]->name);
    return TR_OK;
}

tr_status tr_model_create(const tr_model_config *config, const tr_model_shape *shape,
                          tr_model **out) {
    tr_model *model;
    TR_TRY(tr_model_check(config, shape));
    TR_TRY(tr_calloc(1, sizeof *model, &model));
    model->family = tr_model_family(config->family);
    model->config = *config;
    model->shape = *shape;
    model->config.tuning.only_updates = config->lora.rank > 0;
    model->shape.tuning = &model->config.tuning;
    model->shape.rows = shape->batch * (shape->decode ? shape->decode : shape->seq);
    model->shape.sequence = divides_rows(config, shape);
    model->shape.slice = (tr_range){.extent = model->shape.rows};
    if (model->shape.sequence)
        model->shape.slice = tr_model_shape_part(shape, model->shape.rows, 1);
    model->count = (int)config->layers + 2;
    tr_status status = tr_model_complete(&model->config);
    if (status == TR_OK) status = make_layers(model);
    if (status == TR_OK) status = tr_model_connect(model);
    if (status == TR_OK) status = tr_tuning_check_model(model);
    if (status == TR_OK) tr_tuning_skip_backward(model);
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

int tr_model_layer_of(const tr_model *model, const tr_param *param) {
    int k = model->count - 1;
    while (model->layers[k]->params_count == 0 || param->index < model->layers[k]->params[0].index)
        k--;
    return k;
}

static int64_t count_parameters(const tr_model *model, bool frozen_too) {
    int64_t sum = 0;
    for (int i = 0; i < model->count; i++) {
        const tr_layer *layer = model->layers[i];
        for (int j = 0; j < layer->params_count; j++) {
            const tr_param *param = &layer->params[j];
            if (param->use > 0 || (param->frozen && !frozen_too)) continue;
            for (int k = 0; k < param->tensors; k++) sum += tr_global_count(&param->tensor[k]);
        }
    }
    return sum;
}

int64_t tr_model_parameters(const tr_model *model) {
    return count_parameters(model, true);
}

int64_t tr_model_trained_parameters(const tr_model *model) {
    return count_parameters(model, false);
}

/* Returns the elements of the weights of products that are frozen, or of those that are updates:
 * matrices of all layers except the embedding, the first one. */
static double count_weights(const tr_model *model, bool updates) {
    double sum = 0;
    for (int i = 1; i < model->count; i++)
        for (int j = 0; j < model->layers[i]->params_count; j++) {
            const tr_param *param = &model->layers[i]->params[j];
            for (int k = 0; k < param->tensors; k++)
                if ((updates ? tr_lora_is_update(param->tensor[k].name) : param->frozen) &&
                    param->tensor[k].rank == 2)
                    sum += (double)tr_global_count(&param->tensor[k]);
        }
    return sum;
}

/* Returns the FLOPs of one token that layers without backward leave out, of those that
 * tr_model_flops_per_token counts for frozen weights: 2 a weight, and two thirds of attention's. */
static double flops_without_backward(const tr_model *model, double attention) {
    double sum = 0;
    for (int i = 1; i < model->count && model->layers[i]->no_backward; i++) {
        sum += 2.0 / 3 * attention;
        for (int j = 0; j < model->layers[i]->params_count; j++) {
            const tr_param *param = &model->layers[i]->params[j];
            for (int k = 0; k < param->tensors; k++)
                if (param->tensor[k].rank == 2)
                    sum += 2 * (double)tr_global_count(&param->tensor[k]);
        }
    }
    return sum;
}

/* Returns how many keys a query reads on average over a sequence, by the usual count: half of all;
 * with a window all of its keys, and half of them at the sequence's beginning. */
static double keys_read(const tr_model_config *c, double seq) {
    const double window = (double)c->window;
    if (c->window == 0 || window >= seq) return seq / 2;
    return window - window * window / (2 * seq);
}

double tr_model_flops_per_token(const tr_model *model) {
    const tr_model_config *c = &model->config;
    const double C = (double)c->width, D = (double)c->head_size, L = (double)c->layers;
    const double heads = (double)c->heads, kv_heads = (double)c->kv_heads;
    const double matrices = tr_model_activation(c->activation)->gated ? 3 : 2;
    const double attention = C * D * (2 * heads + 2 * kv_heads);
    const double mlp = matrices * C * (double)c->mlp_width;
    const double scores = 12 * keys_read(c, (double)model->shape.seq) * heads * D;
    return 6 * (L * (attention + mlp) + (double)c->vocab * C) + 6 * count_weights(model, true) -
           2 * count_weights(model, false) + L * scores - flops_without_backward(model, scores);
}
