#include "partition/least_memory.h"

#include "base/memory.h"
#include "partition/param_memory.h"
#include "partition/whole.h"

#include <math.h>
#include <stdlib.h>

/* --- layers ----------------------------------------------------------------------------------- */

static double state_of(const tr_layout *l, const tr_layer *layer) {
    const tr_layout_desc *d = &l->desc;
    size_t values, gradients, moments;
    const tr_param_memory params =
        tr_memory_of_layer(layer, tr_memory_divided(&d->mesh, d->zero), d->zero, d->optimizer);
    tr_memory_params_bytes(&params, d->dtype, &values, &gradients, &moments);
    return (double)(values + gradients + moments);
}

/* Returns what the layer adds to a stage: its own buffers, and inputs that no earlier layer reads.
 * read: [layers] of the outputs that earlier layers read. */
static double kept_of(const tr_model *model, const tr_layer *layer, bool (*read)[TR_LAYER_FLOWS]) {
    double sum = (double)(layer->bytes[TR_LIFE_FI] + layer->bytes[TR_LIFE_FW]);
    for (int i = 0; i < layer->inputs; i++) {
        const tr_layer_input *input = &layer->input[i];
        bool *known = &read[input->layer][input->output];
        size_t bytes = 0;
        (void)tr_flow_bytes(&model->layers[input->layer]->output[input->output], &bytes);
        sum += *known ? 0 : (double)bytes;
        *known = true;
    }
    return sum;
}

/* Returns true when two layers have the same operators. */
static bool are_alike(const tr_layer *a, const tr_layer *b) {
    return a->ops == b->ops && a->params_count == b->params_count && a->unkept == b->unkept &&
           a->bytes[TR_LIFE_FI] == b->bytes[TR_LIFE_FI] &&
           a->bytes[TR_LIFE_FW] == b->bytes[TR_LIFE_FW] &&
           a->bytes[TR_LIFE_IW] == b->bytes[TR_LIFE_IW] && a->flops_f == b->flops_f &&
           a->flops_i == b->flops_i && a->flops_w == b->flops_w;
}

/* Sets *out to the least bytes that an F of a block takes besides what it keeps. */
static tr_status measure_actions(const tr_config *c, tr_device *device, const tr_model *model,
                                 double *out) {
    const tr_layer_env env = {
        .context = {.device = device, .deterministic = c->train.deterministic}};
    const tr_layer *before = NULL;
    *out = INFINITY;
    for (int k = 0; k < model->count; k++) {
        tr_layer *layer = model->layers[k];
        if (!tr_layer_is_block(layer) || (before && are_alike(before, layer))) continue;
        if (tr_device_on_host(device)) TR_TRY(layer->ops->prepare(layer, &env));
        *out = fmin(*out, (double)(layer->unkept + layer->bytes[TR_LIFE_SCRATCH]));
        before = layer;
    }
    return TR_OK;
}

static void add(tr_least_part *sum, tr_least_part part) {
    sum->state += part.state;
    sum->kept += part.kept;
}

static tr_status sum_layers(const tr_layout *l, bool keeps, tr_least_memory *out) {
    const tr_model *model = l->model;
    bool(*read)[TR_LAYER_FLOWS];
    TR_TRY(tr_calloc((size_t)model->count, sizeof *read, &read));
    *out = (tr_least_memory){.block = {INFINITY, INFINITY}};
    for (int k = 0; k < model->count; k++) {
        const tr_layer *layer = model->layers[k];
        const double kept = kept_of(model, layer, read);
        const tr_least_part part = {.state = state_of(l, layer), .kept = keeps ? kept : 0};
        add(&out->all, part);
        if (!tr_layer_is_block(layer)) {
            add(out->blocks ? &out->back : &out->front, part);
            continue;
        }
        out->blocks++;
        out->block = (tr_least_part){.state = fmin(out->block.state, part.state),
                                     .kept = fmin(out->block.kept, part.kept)};
    }
    free(read);
    return TR_OK;
}

tr_status tr_least_memory_of(const tr_config *c, tr_device *device, tr_least_memory *out) {
    tr_whole whole;
    tr_config_offloads offload;
    const bool keeps = !tr_config_offload(c, &offload) || offload.stages == 0;
    TR_TRY(tr_whole_open(c, &whole));
    tr_status status = sum_layers(whole.layout, keeps, out);
    if (status == TR_OK) status = measure_actions(c, device, whole.layout->model, &out->action);
    tr_whole_close(&whole);
    if (status != TR_OK || !tr_config_cut(c)) return status;
    out->block = (tr_least_part){0};
    out->action = 0;
    return TR_OK;
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Returns the bytes of layers that hold `held` micro-batches at one time. */
static double bytes_of(tr_least_part part, int held) {
    return part.state + part.kept * held;
}

bool tr_least_memory_exceeds(const tr_least_memory *m, int64_t ranks, double limit) {
    const double block = bytes_of(m->block, 1), room = limit - m->action;
    const double end = fmax(bytes_of(m->front, 1), bytes_of(m->back, 1));
    return bytes_of(m->all, 1) > room * (double)ranks || end + block > room ||
           floor(room / block) * (double)ranks < m->blocks;
}

/* Returns by how many micro-batches of its stage a rank holds more after the action. */
static int held_by(tr_action action) {
    if (action.type == TR_ACTION_F) return 1;
    return action.type == TR_ACTION_I || action.type == TR_ACTION_B ? -1 : 0;
}

/* Counts the micro-batches of each of its stages that a rank holds when it holds most, to
 * held[stages]. */
static void count_held(const tr_schedule *s, int rank, int *held) {
    int sum = 0, most = 0, end = 0;
    for (int k = 0; k < s->count[rank]; k++) {
        sum += held_by(s->action[rank][k]);
        if (sum <= most) continue;
        most = sum;
        end = k + 1;
    }
    for (int k = 0; k < end; k++) {
        const tr_action action = s->action[rank][k];
        if (tr_action_computes(action)) held[action.stage] += held_by(action);
    }
}

/* Fills needs[ranks] with what they take when every stage has a block, the first and the last one
 * with the layers at the model's ends, and cheapest[ranks] with what another block adds at least.
 */
static void fill_ranks(const tr_least_memory *m, const tr_schedule *s, const int *held,
                       double *needs, double *cheapest) {
    for (int r = 0; r < s->ranks; r++) {
        needs[r] = m->action;
        cheapest[r] = INFINITY;
    }
    for (int k = 0; k < s->stages; k++) {
        const int r = s->rank_of[k];
        const double block = bytes_of(m->block, held[k]);
        needs[r] += block;
        cheapest[r] = fmin(cheapest[r], block);
        if (k == 0) needs[r] += bytes_of(m->front, held[k]);
        if (k == s->stages - 1) needs[r] += bytes_of(m->back, held[k]);
    }
}

tr_status tr_least_memory_exceeds_in(const tr_least_memory *m, const tr_schedule *s, double limit,
                                     bool *out) {
    int *held = NULL;
    double *needs = NULL, *cheapest = NULL, blocks = s->stages;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *held, &held));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *needs, &needs));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *cheapest, &cheapest));
    for (int r = 0; r < s->ranks; r++) count_held(s, r, held);
    fill_ranks(m, s, held, needs, cheapest);
    *out = false;
    for (int r = 0; r < s->ranks; r++) {
        *out = *out || needs[r] > limit;
        blocks += floor((limit - needs[r]) / cheapest[r]);
    }
    *out = *out || blocks < m->blocks;
out:
    free(cheapest);
    free(needs);
    free(held);
    return status;
}
