#include "support/owned_model.h"
#include "base/memory.h"
#include "layers/param_impl.h"
#include "support/must.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the model -------------------------------------------------------------------------------- */

typedef struct made_layer {
    tr_layer layer;
    tr_param params[MOST_PARAMS];
} made_layer;

static void destroy_layer(tr_layer *layer) {
    tr_params_release(layer->params, layer->params_count);
    free(layer);
}

static const tr_layer_ops made_ops = {.kind = "made", .destroy = destroy_layer};

static tr_param *add_param(tr_layer *layer) {
    return &layer->params[layer->params_count++];
}

/* Describes rows of the vocabulary: 11 on 2 or 4 ranks are unequal parts. */
static tr_status describe_wte(tr_param *param, const tr_mesh *mesh, int use) {
    tr_slice own = {.range =
                        tr_range_part(VOCAB, mesh->degree[TR_AXIS_TP], mesh->index[TR_AXIS_TP])};
    TR_TRY(tr_param_describe(param, 2, (int64_t[]){VOCAB, WIDTH}, TR_INIT_NORMAL, 0.02f, "wte"));
    TR_TRY(tr_param_keep(param, 0, &own, 1));
    param->use = use;
    return TR_OK;
}

/* Describes q, followed by k and v, with 2 dimensions or (biases) 1. Where there are more tensor
 * ranks than key heads, neighbours hold the same key heads, and each has the gradient of its own
 * query heads. */
static tr_status describe_qkv(tr_layer *layer, int number, int rank, const char *kind,
                              const tr_mesh *mesh) {
    const int tp = mesh->degree[TR_AXIS_TP], t = mesh->index[TR_AXIS_TP];
    const int copies = tp > KV_HEADS ? tp / KV_HEADS : 1;
    const int64_t q_shape[] = {HEADS * HEAD, WIDTH}, kv_shape[] = {KV_HEADS * HEAD, WIDTH};
    const tr_range kv = tr_range_part(KV_HEADS * HEAD, tp / copies, t / copies);
    tr_slice q = {.range = tr_range_part(HEADS * HEAD, tp, t)};
    tr_slice k_v[] = {{.range = kv}, {.range = kv, .tensor = 1}};
    tr_param *first = add_param(layer), *second = add_param(layer);
    TR_TRY(
        tr_param_describe(first, rank, q_shape, TR_INIT_NORMAL, 0.02f, "h.%d.q.%s", number, kind));
    TR_TRY(tr_param_keep(first, 0, &q, 1));
    TR_TRY(tr_param_describe(second, rank, kv_shape, TR_INIT_NORMAL, 0.02f, "h.%d.k.%s", number,
                             kind));
    TR_TRY(tr_param_add(second, 0, kv_shape, "h.%d.v.%s", number, kind));
    TR_TRY(tr_param_keep(second, 0, k_v, 2));
    second->joined = true;
    second->copies[TR_AXIS_TP] = copies;
    second->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    return TR_OK;
}

/* Describes gate and up [out, in] in one local matrix with alternating rows, and down, split by
 * columns. */
static tr_status describe_mlp(tr_layer *layer, int number, const tr_mesh *mesh) {
    const tr_range own = tr_range_part(MLP, mesh->degree[TR_AXIS_TP], mesh->index[TR_AXIS_TP]);
    const int64_t shape[] = {MLP, WIDTH}, down_shape[] = {WIDTH, MLP};
    tr_slice turns[2 * MLP];
    int n = 0;
    for (int64_t row = own.begin; row < own.begin + own.extent; row++)
        for (int k = 0; k < 2; k++) turns[n++] = (tr_slice){.range = {row, 1}, .tensor = k};
    tr_param *gate_up = add_param(layer), *down = add_param(layer);
    TR_TRY(tr_param_describe(gate_up, 2, shape, TR_INIT_NORMAL, 0.02f, "h.%d.gate", number));
    TR_TRY(tr_param_add(gate_up, 0, shape, "h.%d.up", number));
    TR_TRY(tr_param_keep(gate_up, 0, turns, n));
    TR_TRY(tr_param_describe(down, 2, down_shape, TR_INIT_NORMAL, 0.02f, "h.%d.down", number));
    return tr_param_keep(down, 1, &(tr_slice){.range = own}, 1);
}

/* Describes a fused [in, out] tensor like GPT-2's c_attn, and experts that are divided among the
 * data ranks. */
static tr_status describe_rest(tr_layer *layer, int number, const tr_mesh *mesh) {
    const tr_range own = tr_range_part(16, mesh->degree[TR_AXIS_TP], mesh->index[TR_AXIS_TP]);
    const int64_t shape[] = {WIDTH, 48}, experts_shape[] = {EXPERTS, 1, WIDTH};
    tr_slice columns[3];
    for (int i = 0; i < 3; i++) columns[i] = (tr_slice){.range = {16 * i + own.begin, own.extent}};
    tr_param *conv = add_param(layer), *experts = add_param(layer);
    TR_TRY(tr_param_describe(conv, 2, shape, TR_INIT_NORMAL, 0.02f, "h.%d.c_attn", number));
    TR_TRY(tr_param_keep(conv, 1, columns, 3));
    TR_TRY(tr_param_describe(experts, 3, experts_shape, TR_INIT_NORMAL, 0.02f, "h.%d.experts",
                             number));
    const int dp = mesh->degree[TR_AXIS_DP], d = mesh->index[TR_AXIS_DP];
    const int tp = mesh->degree[TR_AXIS_TP], t = mesh->index[TR_AXIS_TP];
    const bool split = number == 2; /* over the tensor ranks too */
    const int parts = split ? dp * tp : dp, part = split ? d * tp + t : d;
    tr_slice here = {.range = tr_range_part(EXPERTS, parts, part)};
    TR_TRY(tr_param_keep(experts, 0, &here, 1));
    experts->copies[TR_AXIS_TP] = split;
    experts->copies[TR_AXIS_DP] = 1;
    return TR_OK;
}

static tr_status describe_block(tr_layer *layer, int number, const tr_mesh *mesh) {
    const int64_t width = WIDTH, head = HEAD;
    TR_TRY(tr_param_describe(add_param(layer), 1, &width, TR_INIT_ONE, 0, "h.%d.norm", number));
    TR_TRY(describe_qkv(layer, number, 2, "weight", mesh));
    TR_TRY(describe_qkv(layer, number, 1, "bias", mesh));
    /* Each tensor rank has its part of the gradient, from its own heads. */
    tr_param *norm = add_param(layer);
    TR_TRY(tr_param_describe(norm, 1, &head, TR_INIT_ONE, 0, "h.%d.q_norm", number));
    norm->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    TR_TRY(describe_mlp(layer, number, mesh));
    return describe_rest(layer, number, mesh);
}

tr_status owned_model_make(const tr_mesh *mesh, tr_dtype dtype, tr_model **out) {
    tr_model *model;
    TR_TRY(tr_calloc(1, sizeof *model, &model));
    *out = model;
    model->shape.batch = 1;
    model->shape.dtype = dtype;
    TR_TRY(tr_calloc(LAYERS, sizeof *model->layers, &model->layers));
    for (int i = 0; i < LAYERS; i++) {
        made_layer *made;
        TR_TRY(tr_calloc(1, sizeof *made, &made));
        tr_layer *layer = model->layers[model->count++] = &made->layer;
        layer->ops = &made_ops;
        layer->params = made->params;
        if (i == 0) TR_TRY(describe_wte(add_param(layer), mesh, 0));
        else if (i == LAYERS - 1) TR_TRY(describe_wte(add_param(layer), mesh, 1));
        else TR_TRY(describe_block(layer, i, mesh));
    }
    return tr_model_connect(model);
}

/* --- the whole tensors ------------------------------------------------------------------------ */

owned_whole owned_all;

void owned_list_tensors(void) {
    tr_mesh one;
    tr_model *model;
    must(tr_mesh_make(1, 1, 1, 0, 1, &one));
    must(owned_model_make(&one, TR_F32, &model));
    for (int i = 0; i < LAYERS - 1; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k];
            for (int t = 0; t < param->tensors; t++) {
                memcpy(owned_all.name[owned_all.tensors], param->tensor[t].name, TR_NAME_SIZE);
                owned_all.first[owned_all.tensors + 1] =
                    owned_all.first[owned_all.tensors] + tr_global_count(&param->tensor[t]);
                owned_all.tensors++;
            }
        }
    tr_model_destroy(model);
}

int64_t owned_first_of(const char *name) {
    for (int i = 0; i < owned_all.tensors; i++)
        if (strcmp(owned_all.name[i], name) == 0) return owned_all.first[i];
    return -1;
}

int owned_gradient(int64_t e, int use) {
    return (int)((uint32_t)(e * 3 + use + 1) * 2654435761u >> 20) % 7 - 3;
}

int owned_part_of_gradient(int64_t e, int use, int place, int places) {
    int rest = owned_gradient(e, use);
    if (place > 0) return (int)(e + place) % 5 - 2;
    for (int k = 1; k < places; k++) rest -= (int)(e + k) % 5 - 2;
    return rest;
}

double owned_norm(void) {
    double sum = 0;
    for (int64_t e = 0; e < owned_all.first[owned_all.tensors]; e++) {
        double g = owned_gradient(e, 0) + (e < VOCAB * WIDTH ? owned_gradient(e, 1) : 0);
        sum += g * g;
    }
    return sqrt(sum);
}
