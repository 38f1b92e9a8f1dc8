#include "support/model_rig.h"

static void *rig_alloc(rig *r, size_t bytes) {
    void *memory;
    RIG_TRY(tr_device_alloc(r->device, TR_MEMORY_DATA, tr_align_up(bytes + 1), &memory));
    return memory;
}

static void rig_poison(char *memory, size_t bytes) {
    if (bytes) memset(memory, 0xff, bytes); /* a NaN in every floating-point type */
}

/* Returns the elements of parameter j of a layer and of those that are joined to it. */
static size_t rig_joined_count(const tr_layer *layer, int j) {
    size_t count = (size_t)layer->params[j].count;
    while (++j < layer->params_count && layer->params[j].joined)
        count += (size_t)layer->params[j].count;
    return count;
}

static void rig_place_params(rig *r) {
    const tr_dtype dtype = r->model->shape.dtype;
    const size_t size = tr_dtype_size(dtype), grads = tr_dtype_size(tr_dtype_acc(dtype));
    for (int i = 0; i < r->model->count; i++) {
        tr_layer *layer = r->model->layers[i];
        for (int j = 0; j < layer->params_count; j++) {
            tr_param *param = &layer->params[j];
            const size_t count = rig_joined_count(layer, j);
            if (param->joined) {
                param->grad = (char *)param[-1].grad + (size_t)param[-1].count * grads;
                param->value = (char *)param[-1].value + (size_t)param[-1].count * size;
                continue;
            }
            param->grad = rig_alloc(r, count * grads);
            if (param->use > 0) /* tied: the value of use 0, which the embedding lists first */
                param->value = r->model->layers[0]->params[0].value;
            else param->value = rig_alloc(r, count * size);
        }
    }
}

void rig_open(rig *r, const char *device, tr_world *world, const tr_model_config *config,
              tr_dtype dtype, int64_t batch, int64_t seq, bool decode) {
    *r = (rig){.world = world};
    int tp = tr_world_size(world), ranks[16];
    for (int i = 0; i < tp; i++) ranks[i] = i;
    tr_device_options options = {.threads = 1};
    RIG_TRY(tr_device_open(device, &options, &r->device));
    RIG_TRY(tr_group_open(world, r->device, ranks, tp, 0, 1 << 12, &r->tp));
    tr_model_shape shape = {.batch = batch,
                            .seq = seq,
                            .dtype = dtype,
                            .decode = decode,
                            .tp_rank = tr_world_rank(world),
                            .tp_size = tp};
    RIG_TRY(tr_model_create(config, &shape, &r->model));
    rig_place_params(r);
    r->env = (tr_layer_env){.context.device = r->device, .tp = r->tp};
    r->rows = r->model->shape.rows;
    r->tensor_bytes = (size_t)(r->rows * config->width) * tr_dtype_size(dtype);
    r->state = rig_alloc(r, sizeof *r->state);
    *r->state =
        (tr_step_state){.seed = 5, .step = 3, .first_sample = 8, .train = 1, .loss_scale = 1};
    r->tokens = rig_alloc(r, (size_t)r->rows * sizeof(int32_t));
    r->labels = rig_alloc(r, (size_t)r->rows * sizeof(int32_t));
    r->loss = rig_alloc(r, (size_t)r->model->shape.batch * 2 * sizeof(double));
    r->logits = rig_alloc(r, (size_t)(batch * config->vocab) * sizeof(float));
    for (int i = 0; i < r->model->count; i++) {
        tr_layer *layer = r->model->layers[i];
        size_t described[TR_LIFE_COUNT];
        memcpy(described, layer->bytes, sizeof described);
        RIG_TRY(layer->ops->prepare(layer, &r->env));
        for (int life = 0; life < TR_LIFE_COUNT; life++) {
            if (life != TR_LIFE_SCRATCH && described[life] != layer->bytes[life]) abort();
        }
        RIG_TRY(tr_calloc((size_t)layer->pieces, sizeof(char *), &r->piece[i]));
        for (int k = 0; k < layer->pieces; k++)
            r->piece[i][k] = rig_alloc(r, layer->piece[k].bytes);
        r->scratch[i] = rig_alloc(r, layer->bytes[TR_LIFE_SCRATCH]);
        r->cache[i] = rig_alloc(r, layer->cache_bytes);
        r->tensor[i] = rig_alloc(r, r->tensor_bytes);
        r->dtensor[i] = rig_alloc(r, r->tensor_bytes);
    }
}

void rig_close(rig *r) {
    for (int i = 0; i < r->model->count; i++) {
        tr_layer *layer = r->model->layers[i];
        for (int j = 0; j < layer->params_count; j++) {
            if (layer->params[j].joined) continue;
            tr_device_free(r->device, layer->params[j].grad);
            if (layer->params[j].use == 0) tr_device_free(r->device, layer->params[j].value);
        }
        for (int k = 0; k < layer->pieces; k++) tr_device_free(r->device, r->piece[i][k]);
        free(r->piece[i]);
        tr_device_free(r->device, r->scratch[i]);
        tr_device_free(r->device, r->cache[i]);
        tr_device_free(r->device, r->tensor[i]);
        tr_device_free(r->device, r->dtensor[i]);
    }
    tr_device_free(r->device, r->state);
    tr_device_free(r->device, r->tokens);
    tr_device_free(r->device, r->labels);
    tr_device_free(r->device, r->loss);
    tr_device_free(r->device, r->logits);
    tr_model_destroy(r->model);
    tr_group_close(r->tp);
    tr_device_close(r->device);
}

tr_param *rig_param(const tr_model *model, int index) {
    for (int i = 0; i < model->count; i++)
        for (int j = 0; j < model->layers[i]->params_count; j++)
            if (model->layers[i]->params[j].index == index) return &model->layers[i]->params[j];
    return NULL;
}

static void rig_note_index(void *context, int64_t global, int64_t local) {
    rig_index *at = context;
    at->index[local] = at->first + global;
}

/* Returns index[count], the global row-major index of every local element; the indices of a
 * parameter's tensors follow one another. The caller frees it. */
static int64_t *rig_global_index(const tr_param *param) {
    rig_index at = {.index = calloc((size_t)param->count + 1, sizeof *at.index)};
    for (int k = 0; k < param->tensors; k++) {
        tr_each_element(&param->tensor[k], rig_note_index, &at);
        at.first += tr_global_count(&param->tensor[k]);
    }
    return at.index;
}

double rig_grad(const tr_param *param, int64_t i) {
    return (double)((const float *)param->grad)[i];
}

float rig_get(const tr_param *param, tr_dtype dtype, int64_t i) {
    return dtype == TR_F32 ? ((float *)param->value)[i]
                           : tr_narrow_load(dtype, ((uint16_t *)param->value)[i]);
}

void rig_set(tr_param *param, tr_dtype dtype, int64_t i, float value) {
    if (dtype == TR_F32) ((float *)param->value)[i] = value;
    else ((uint16_t *)param->value)[i] = tr_narrow_round(dtype, value);
}

/* Returns a formula of parameter and global element, scaled. */
static float rig_formula(const tr_param *param, int64_t global) {
    uint32_t x = (uint32_t)(param->index * 1000003 + global) * 2654435761u;
    x ^= x >> 16;
    x *= 73244475u;
    bool norm = strstr(tr_param_name(param), ".ln_") && strstr(tr_param_name(param), ".weight");
    return ((float)(x >> 16) / 65536.0f - 0.5f) * 0.5f + (norm ? 1.0f : 0.0f);
}

void rig_fill(rig *r) {
    for (int p = 0; p < r->model->params_count; p++) {
        tr_param *param = rig_param(r->model, p);
        if (param->use > 0) continue;
        int64_t *index = rig_global_index(param);
        for (int64_t i = 0; i < param->count; i++)
            rig_set(param, r->model->shape.dtype, i, rig_formula(param, index[i]));
        free(index);
    }
    int64_t vocab = r->model->config.vocab;
    for (int64_t i = 0; i < r->rows; i++) {
        r->tokens[i] = (int32_t)((7 * i + 3) % vocab);
        r->labels[i] = i == 3 ? -1 : (int32_t)((5 * i + 1) % vocab);
    }
}

static void rig_draw_element(void *context, int64_t global, int64_t local) {
    const rig_values *v = context;
    float x = 0.25f * tr_normal(9, v->name, (uint64_t)global);
    rig_set(v->param, v->dtype, local, v->norm ? 1 + x : x);
}

void rig_fill_named(rig *r) {
    rig_fill(r);
    for (int p = 0; p < r->model->params_count; p++) {
        tr_param *param = rig_param(r->model, p);
        for (int k = 0; k < param->tensors && param->use == 0; k++) {
            const tr_global *tensor = &param->tensor[k];
            const bool norm = strstr(tensor->name, "norm") || strstr(tensor->name, ".ln_");
            rig_values v = {param, r->model->shape.dtype, tr_hash_name(tensor->name),
                            norm && tensor->rank == 1 && strstr(tensor->name, ".weight")};
            tr_each_element(tensor, rig_draw_element, &v);
        }
    }
}

static tr_layer_io rig_io(rig *r, int i) {
    tr_layer_io io = {.stream = tr_device_compute(r->device),
                      .state = r->state,
                      .sample = r->sample,
                      .adds = r->adds,
                      .scratch = r->scratch[i],
                      .loss = r->loss,
                      .cache = r->cache[i],
                      .logits = r->logits};
    io.piece = r->model->shape.decode ? NULL : r->piece[i]; /* decoding keeps nothing */
    const tr_layer *layer = r->model->layers[i];
    if (layer->inputs) {
        const tr_flow *input = &r->model->layers[i - 1]->output[0];
        io.x[0] = tr_flow_tensor(input, r->tensor[i]);
        io.dx[0] = tr_flow_tensor(input, r->dtensor[i]);
    }
    if (layer->outputs) {
        io.y[0] = tr_flow_tensor(&layer->output[0], r->tensor[i + 1]);
        io.dy[0] = tr_flow_tensor(&layer->output[0], r->dtensor[i + 1]);
    }
    for (int k = 0; k < layer->step_inputs; k++) {
        bool tokens = strcmp(layer->step_input[k].name, TR_STEP_INPUT_TOKENS) == 0;
        io.step[k] = tr_flow_tensor(&layer->step_input[k], tokens ? r->tokens : r->labels);
    }
    return io;
}

static void rig_poison_block(rig *r, int i, tr_lifetime life) {
    const tr_layer *layer = r->model->layers[i];
    if (life == TR_LIFE_SCRATCH) rig_poison(r->scratch[i], layer->bytes[life]);
    else
        for (int k = 0; k < layer->pieces; k++)
            if (layer->piece[k].life == life) rig_poison(r->piece[i][k], layer->piece[k].bytes);
}

/* Runs F of the whole model and returns the loss summed over the positions that count. */
static double rig_run_forward(rig *r, bool forward_only) {
    for (int i = 0; i < r->model->count; i++) {
        tr_layer *layer = r->model->layers[i];
        for (int life = 0; life < TR_LIFE_COUNT; life++) rig_poison_block(r, i, (tr_lifetime)life);
        if (i + 1 < r->model->count) rig_poison(r->tensor[i + 1], r->tensor_bytes);
        rig_poison(r->dtensor[i], r->tensor_bytes);
        tr_layer_io io = rig_io(r, i);
        io.forward_only = forward_only;
        if (forward_only || !layer->input[0].f_writes_dx) io.dx[0] = (tr_tensor){0};
        io.dy[0] = (tr_tensor){0};
        RIG_TRY(layer->ops->forward(layer, &io));
        rig_poison_block(r, i, TR_LIFE_SCRATCH);
    }
    double loss = 0;
    for (int64_t s = 0; s < (forward_only ? r->model->shape.batch : 1); s++) loss += r->loss[2 * s];
    return loss;
}

double rig_forward(rig *r) {
    return rig_run_forward(r, true);
}

double rig_forward_with(rig *r, tr_param *param, int64_t i, float value) {
    float kept = rig_get(param, TR_F32, i);
    rig_set(param, TR_F32, i, value);
    double loss = rig_forward(r);
    rig_set(param, TR_F32, i, kept);
    return loss;
}

/* Runs I or B, which must not modify dy. */
static void rig_run_gradient(rig *r, int i, tr_status (*run)(tr_layer *, const tr_layer_io *)) {
    tr_layer *layer = r->model->layers[i];
    rig_poison_block(r, i, TR_LIFE_IW);
    tr_layer_io io = rig_io(r, i);
    if (layer->input[0].f_writes_dx) io.dx[0] = (tr_tensor){0};
    char *before = NULL;
    if (io.dy[0].data) {
        before = malloc(r->tensor_bytes);
        memcpy(before, io.dy[0].data, r->tensor_bytes);
    }
    RIG_TRY(run(layer, &io));
    if (before && memcmp(before, io.dy[0].data, r->tensor_bytes) != 0) abort();
    free(before);
}

static void rig_grad_input(rig *r, int i) {
    tr_layer *layer = r->model->layers[i];
    rig_run_gradient(r, i, layer->ops->grad_input);
    rig_poison_block(r, i, TR_LIFE_FI);
    rig_poison_block(r, i, TR_LIFE_SCRATCH);
    if (layer->outputs && !layer->w_reads_dy[0]) rig_poison(r->dtensor[i + 1], r->tensor_bytes);
    if (i > 0 && layer->input[0].life == TR_LIFE_FI) rig_poison(r->tensor[i], r->tensor_bytes);
}

/* After W nothing of the layer is read. */
static void rig_poison_layer(rig *r, int i) {
    if (r->model->layers[i]->outputs) rig_poison(r->dtensor[i + 1], r->tensor_bytes);
    for (int life = 0; life < TR_LIFE_COUNT; life++) rig_poison_block(r, i, (tr_lifetime)life);
}

static void rig_grad_weight(rig *r, int i) {
    tr_layer *layer = r->model->layers[i];
    tr_layer_io io = rig_io(r, i);
    io.y[0] = io.dx[0] = (tr_tensor){0};
    if (!layer->w_reads_dy[0]) io.dy[0] = (tr_tensor){0};
    RIG_TRY(layer->ops->grad_weight(layer, &io));
    rig_poison_layer(r, i);
}

static void rig_layer_backward(rig *r, int i) {
    tr_layer *layer = r->model->layers[i];
    if (!layer->ops->backward) {
        rig_grad_input(r, i);
        rig_grad_weight(r, i);
        return;
    }
    rig_run_gradient(r, i, layer->ops->backward);
    rig_poison_layer(r, i);
}

void rig_begin_gradients(rig *r) {
    r->adds = false;
    for (int p = 0; p < r->model->params_count; p++) {
        tr_param *param = rig_param(r->model, p);
        rig_poison(param->grad, (size_t)param->count * sizeof(float));
    }
}

void rig_accumulate(rig *r, bool apart) {
    (void)rig_run_forward(r, false);
    for (int i = r->model->count - 1; i >= 0; i--) {
        if (apart) rig_grad_input(r, i);
        else rig_layer_backward(r, i);
    }
    for (int i = 0; apart && i < r->model->count; i++) rig_grad_weight(r, i);
    r->adds = true;
}

void rig_backward(rig *r, bool apart) {
    rig_begin_gradients(r);
    rig_accumulate(r, apart);
}

void rig_decode(rig *r, int64_t position) {
    for (int k = 0; k < TR_STEP_TEXTS; k++) r->state->position[k] = position;
    r->state->train = 0;
    for (int i = 0; i < r->model->count; i++) {
        tr_layer *layer = r->model->layers[i];
        rig_poison_block(r, i, TR_LIFE_SCRATCH);
        tr_layer_io io = rig_io(r, i);
        RIG_TRY(layer->ops->decode(layer, &io));
    }
}

double rig_log_sum_exp(const float *logits, int64_t vocab) {
    double max = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < vocab; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - max);
    return max + log(sum);
}
