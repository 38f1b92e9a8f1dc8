#include "partition/least_memory.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "partition/param_memory.h"
#include "partition/whole.h"

#include <limits.h>
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

/* Sets *out to the least bytes that an F of a block takes and does not keep. */
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

static tr_least_part part_of(const tr_layout *l, const tr_layer *layer, double kept) {
    const tr_layout_desc *d = &l->desc;
    const bool gathers = tr_memory_gathers(&d->mesh, d->zero);
    const bool in_arena = tr_memory_in_arena(&d->mesh, d->zero);
    const size_t grad = tr_dtype_size(tr_optim_grad_dtype(d->optimizer, d->dtype));
    return (tr_least_part){
        .state = state_of(l, layer),
        .values = gathers ? (double)(tr_memory_layer_values(layer) * tr_dtype_size(d->dtype)) : 0,
        .grads = in_arena ? (double)(tr_memory_layer_grads(layer) * grad) : 0,
        .kept = kept};
}

static void add(tr_least_part *sum, tr_least_part part) {
    sum->state += part.state;
    sum->values += part.values;
    sum->grads += part.grads;
    sum->kept += part.kept;
}

static tr_least_part least_of(tr_least_part a, tr_least_part b) {
    return (tr_least_part){.state = fmin(a.state, b.state),
                           .values = fmin(a.values, b.values),
                           .grads = fmin(a.grads, b.grads),
                           .kept = fmin(a.kept, b.kept)};
}

tr_status tr_least_memory_measure(const tr_layout *l, bool keeps, tr_least_memory *out) {
    const tr_model *model = l->model;
    bool(*read)[TR_LAYER_FLOWS];
    TR_TRY(tr_calloc((size_t)model->count, sizeof *read, &read));
    *out = (tr_least_memory){.block = {INFINITY, INFINITY, INFINITY, INFINITY}};
    for (int k = 0; k < model->count; k++) {
        const tr_layer *layer = model->layers[k];
        const double kept = kept_of(model, layer, read);
        const tr_least_part part = part_of(l, layer, keeps ? kept : 0);
        add(&out->all, part);
        if (!tr_layer_is_block(layer)) {
            add(out->blocks ? &out->back : &out->front, part);
            continue;
        }
        out->blocks++;
        out->block = least_of(out->block, part);
    }
    free(read);
    return TR_OK;
}

tr_status tr_least_memory_of(const tr_config *c, tr_device *device, tr_least_memory *out) {
    tr_whole whole;
    tr_config_offloads offload;
    const bool keeps = !tr_config_offload(c, &offload) || offload.stages == 0;
    TR_TRY(tr_whole_open(c, &whole));
    tr_status status = tr_least_memory_measure(whole.layout, keeps, out);
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

/* Returns the stage of the rank's first computation from action `at` on if that is a B, or -1. */
static int next_backward(const tr_schedule *s, int rank, int at) {
    while (at < s->count[rank] && !tr_action_computes(s->action[rank][at])) at++;
    if (at == s->count[rank] || s->action[rank][at].type != TR_ACTION_B) return -1;
    return s->action[rank][at].stage;
}

/* Counts the micro-batches of each of its stages that a rank holds when it holds most, to
 * held[stages]. */
static void count_held(const tr_schedule *s, int rank, int *held, tr_held_rank *out) {
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
    *out = (tr_held_rank){.all = most,
                          .least = INT_MAX,
                          .last = end > 0 ? s->action[rank][end - 1].stage : -1,
                          .backward = next_backward(s, rank, end)};
}

tr_status tr_held_of(const tr_schedule *s, tr_held *out) {
    const int last = s->stages - 1;
    int *held = NULL;
    tr_status status = TR_OK;
    *out = (tr_held){.ranks = s->ranks, .stages = s->stages};
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *held, &held));
    TR_TRY_OUT(tr_calloc((size_t)s->ranks, sizeof *out->rank, &out->rank));
    for (int r = 0; r < s->ranks; r++) count_held(s, r, held, &out->rank[r]);
    for (int k = 0; k < s->stages; k++) {
        tr_held_rank *rank = &out->rank[s->rank_of[k]];
        rank->stages++;
        rank->least = tr_min_int(rank->least, held[k]);
    }
    out->first_owner = s->rank_of[0];
    out->last_owner = s->rank_of[last];
    out->first = held[0];
    out->final = held[last];
out:
    free(held);
    return status;
}

void tr_held_free(tr_held *held) {
    free(held->rank);
    *held = (tr_held){0};
}

/* Returns the layers of a stage that has one block; the first and the last stage have those at the
 * model's ends, too. Returns nothing for stage -1. */
static tr_least_part stage_of(const tr_least_memory *m, const tr_held *h, int stage) {
    tr_least_part part = {0};
    if (stage < 0) return part;
    add(&part, m->block);
    if (stage == 0) add(&part, m->front);
    if (stage == h->stages - 1) add(&part, m->back);
    return part;
}

/* Returns what a rank takes when each of its stages has one block. */
static double needs_of(const tr_least_memory *m, const tr_held *h, int rank) {
    const tr_held_rank *r = &h->rank[rank];
    const tr_least_part last = stage_of(m, h, r->last), next = stage_of(m, h, r->backward);
    const double ends = (rank == h->first_owner ? bytes_of(m->front, h->first) : 0) +
                        (rank == h->last_owner ? bytes_of(m->back, h->final) : 0);
    return fmax(m->action + last.values, next.values + next.grads) + ends +
           m->block.state * r->stages + m->block.kept * (double)r->all;
}

/* Returns how many blocks a rank has room for, each in the stage where it takes least; below 0: it
 * cannot hold one of each stage. */
static double room_of(const tr_least_memory *m, const tr_held *h, int rank, double limit) {
    const double another = bytes_of(m->block, h->rank[rank].least);
    const double left = limit - needs_of(m, h, rank);
    if (left < 0) return -1;
    return another > 0 ? h->rank[rank].stages + floor(left / another) : INFINITY;
}

/* Returns how many blocks the ranks have room for, `most` each; below 0: a rank has none. */
static double all_room(const tr_least_memory *m, const tr_held *h, double limit, double most) {
    double sum = 0;
    for (int r = 0; r < h->ranks; r++) {
        const double room = room_of(m, h, r, limit);
        if (room < 0) return -1;
        sum += fmin(room, most);
    }
    return sum;
}

double tr_least_memory_blocks(const tr_least_memory *m, const tr_held *h, double limit) {
    double low = 0, high = m->blocks;
    if (all_room(m, h, limit, high) < m->blocks) return INFINITY;
    while (high - low > 1) {
        const double middle = floor((low + high) / 2);
        if (all_room(m, h, limit, middle) < m->blocks) low = middle;
        else high = middle;
    }
    return high;
}

double tr_least_memory_in(const tr_least_memory *m, const tr_held *h, int64_t ranks) {
    double low = 1, high = INFINITY;
    while (high - low > fmax(0.5, 1e-15 * low)) { /* neighbouring numbers may be further apart */
        const double middle = isinf(high) ? 2 * low : (low + high) / 2;
        const bool exceeds = h ? all_room(m, h, middle, m->blocks) < m->blocks
                               : tr_least_memory_exceeds(m, ranks, middle);
        if (exceeds) low = middle;
        else high = middle;
    }
    return low;
}
