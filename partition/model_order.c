#include "partition/model_order.h"

#include "base/memory.h"
#include "layers/layer_stage.h"
#include "partition/cut_for_schedule.h"
#include "partition/network.h"
#include "partition/offload.h"
#include "partition/owners.h"
#include "partition/param_memory.h"
#include "partition/request.h"
#include "pipeline/orders/make.h"
#include "pipeline/program/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- costs ------------------------------------------------------------------------------------ */

/* A model cut into stages, with costs and bytes from the layers' descriptions. */
typedef struct cut {
    int *first; /* [stages + 1] */
    tr_stage_table table;
} cut;

static void cut_close(cut *x) {
    tr_stage_table_free(&x->table);
    free(x->first);
}

/* Takes parallel.cut if it has as many stages. s: the schedule for which the model is cut into
 * `stages` otherwise; NULL: none yet. */
static tr_status cut_open(const tr_config *c, const tr_model *model, const tr_schedule *s,
                          tr_optim_memory optimizer, int stages, cut *x) {
    int given;
    *x = (cut){0};
    TR_TRY(tr_config_cut_stages(c, &given));
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *x->first, &x->first));
    const tr_cut_memory memory = {.optimizer = optimizer};
    tr_status status = given == stages
                           ? tr_layer_cut_read(tr_config_cut(c), c->model.layers, stages, x->first)
                       : s ? tr_cut_for_schedule(model, s, &memory, x->first)
                           : tr_cut_model(model, stages, x->first);
    if (status == TR_OK) status = tr_layer_table_make(model, x->first, stages, &x->table);
    if (status != TR_OK) cut_close(x);
    return status;
}

/* The context of `describe`: the model, and its cuts so far. auto asks several times for the same
 * few numbers of stages. */
typedef struct described {
    const tr_config *config;
    const tr_model *model;
    struct known_cut {
        int stages, *first; /* [stages + 1] */
    } * known;
    size_t count, room;
} described;

static void described_close(described *d) {
    for (size_t k = 0; k < d->count; k++) free(d->known[k].first);
    free(d->known);
}

/* A tr_schedule_request.describe. */
static tr_status describe(void *context, int stages, tr_stage_table *out) {
    described *d = context;
    for (size_t k = 0; k < d->count; k++)
        if (d->known[k].stages == stages)
            return tr_layer_table_make(d->model, d->known[k].first, stages, out);
    cut x;
    TR_TRY(tr_grow(&d->known, &d->room, d->count + 1, sizeof *d->known));
    TR_TRY(
        cut_open(d->config, d->model, NULL, (tr_optim_memory){.kind = TR_OPTIM_ADAMW}, stages, &x));
    d->known[d->count++] = (struct known_cut){stages, x.first};
    *out = x.table;
    return TR_OK;
}

/* Returns the bytes of the largest tensor between two layers. */
static double largest_message(const tr_model *model) {
    size_t largest = 0;
    for (int k = 0; k < model->count; k++)
        for (int o = 0; o < model->layers[k]->outputs; o++) {
            size_t bytes;
            if (tr_flow_bytes(&model->layers[k]->output[o], &bytes) && bytes > largest)
                largest = bytes;
        }
    return (double)largest;
}

/* Sets the costs of a rank's share, a p-th of the model, and of a message. */
static void describe_costs(const tr_config *c, const tr_model *model, tr_schedule_request *r) {
    double share = 1.0 / r->ranks;
    const tr_mesh mesh = tr_request_mesh(c);
    const tr_link link = tr_network_message(c, tr_network_is_far(c, &mesh, TR_AXIS_PP), 0);
    r->latency = link.latency + link.per_byte * largest_message(model);
    for (int k = 0; k < model->count; k++) {
        r->share.f += model->layers[k]->flops_f * share;
        r->share.i += model->layers[k]->flops_i * share;
        r->share.w += model->layers[k]->flops_w * share;
    }
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Sets the memory of a micro-batch, in units of its largest share on a rank of the plain cut. */
static tr_status describe_memory(const tr_config *c, const tr_model *model,
                                 tr_schedule_request *r) {
    cut x;
    TR_TRY(cut_open(c, model, NULL, (tr_optim_memory){.kind = TR_OPTIM_ADAMW}, r->ranks, &x));
    double whole = 0, kept = 0;
    for (int s = 0; s < r->ranks; s++) {
        whole = fmax(whole, x.table.cost[s].m_b);
        kept = fmax(kept, x.table.cost[s].m_w);
    }
    cut_close(&x);
    r->share.m_b = 1;
    r->share.m_w = kept / whole;
    return TR_OK;
}

/* The bytes of the rank that takes most under the order. */
typedef struct need {
    double total, arena;
} need;

/* Returns the bytes of what data ranks divide, and of the values. */
static size_t owned_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    size_t values, gradients, states;
    tr_memory_params_bytes(memory, dtype, &values, &gradients, &states);
    return values + states;
}

/* Returns the parameters' memory of the data rank that needs most. */
static tr_param_memory fullest(const tr_model *model, const tr_placement *placement, int pp_rank,
                               const tr_mesh *divided, tr_optim_memory optimizer) {
    const bool equal = !divided || !tr_optim_row_of(optimizer.kind)->whole;
    tr_param_memory most = tr_memory_of_params(model, placement, pp_rank, divided, 1, optimizer);
    for (int d = 1; !equal && d < tr_mesh_near(divided); d++) {
        tr_mesh mesh = *divided;
        mesh.index[TR_AXIS_DP] = d;
        const tr_param_memory memory =
            tr_memory_of_params(model, placement, pp_rank, &mesh, 1, optimizer);
        if (owned_bytes(&memory, model->shape.dtype) > owned_bytes(&most, model->shape.dtype))
            most = memory;
    }
    return most;
}

/* Measures everything except the operators' scratch, which only prepared layers know. Gradients
 * and values count as a whole, also with parallel.zero 2 and 3: orders that are made here have
 * those of all stages at one time. */
static tr_status measure(const tr_config *c, const tr_model *model, const tr_schedule *s,
                         const tr_mesh *divided, tr_optim_memory optimizer,
                         const tr_config_offloads *offload, need *out) {
    cut x;
    size_t *arena = NULL;
    *out = (need){0};
    TR_TRY(cut_open(c, model, s, optimizer, s->stages, &x));
    tr_placement placement = {.stages = s->stages, .first = x.first, .owner = s->rank_of};
    tr_offload_mark(offload->first, offload->stages, &x.table);
    tr_status status = tr_calloc((size_t)s->ranks, sizeof *arena, &arena);
    if (status == TR_OK) status = tr_lower_arenas(s, &x.table, arena);
    if (status == TR_OK) status = tr_owners_choose(model, &placement, divided, optimizer.kind);
    for (int r = 0; r < s->ranks && status == TR_OK; r++) {
        size_t values, gradients, moments;
        tr_param_memory params = fullest(model, &placement, r, divided, optimizer);
        tr_memory_params_bytes(&params, model->shape.dtype, &values, &gradients, &moments);
        need n = {.arena = (double)arena[r]};
        n.total = (double)values + (double)gradients + (double)moments + n.arena +
                  (double)tr_links_bytes(&x.table, s->rank_of, r);
        if (n.total > out->total) *out = n;
    }
    free(arena);
    cut_close(&x);
    return status;
}

/* Makes the order with as many micro-batches on a rank as fit: lowers the cap by the excess until
 * there is none. */
static tr_status make_under(const tr_config *c, const tr_model *model, const tr_mesh *divided,
                            tr_optim_memory optimizer, const tr_config_offloads *offload,
                            double limit, tr_schedule_request *request, tr_schedule **out) {
    enum { TRIES = 8 };
    double one = fmax(1, request->share.m_w), least = INFINITY;
    tr_status status = TR_OK;
    tr_schedule *best = NULL;
    request->cap = request->micro_batches * one;
    for (int n = 0; n < TRIES && least > limit; n++) {
        tr_schedule *s = NULL;
        need needed;
        TR_TRY_OUT(tr_schedule_make(request, &s));
        status = measure(c, model, s, divided, optimizer, offload, &needed);
        bool better = status == TR_OK && needed.total < least;
        tr_schedule_destroy(better ? best : s);
        if (better) {
            best = s;
            least = needed.total;
        }
        if (status != TR_OK || request->cap <= one) break;
        double part = (limit - (needed.total - needed.arena)) / needed.arena;
        request->cap = fmax(one, request->cap * fmin(part, 0.95));
    }
out:
    if (status == TR_OK) *out = best;
    else tr_schedule_destroy(best);
    return status;
}

/* Makes the order auto: within device.memory, or, without that key, with the memory of 1f1b. */
static tr_status make_auto(const tr_config *c, tr_model *model, tr_schedule_request *request,
                           tr_schedule **out) {
    const double known = 0.95; /* the remaining part is for scratch, tokens and the norm */
    const tr_mesh mesh = tr_request_mesh(c);
    const tr_optim_config optimizer = tr_optim_of(c);
    const int64_t most = c->model.layers / request->ranks;
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check refuses a bad one */
    described context = {.config = c, .model = model};
    request->describe = describe;
    request->context = &context;
    request->most_chunks = most < 1 ? 1 : most > INT32_MAX ? INT32_MAX : (int)most;
    request->cap = request->ranks * fmax(1, request->share.m_w);
    const tr_status status =
        c->device.memory ? make_under(c, model, tr_memory_divided(&mesh, (int)c->parallel.zero),
                                      tr_optim_memory_of(&optimizer), &offload,
                                      known * (double)c->device.memory, request, out)
                         : tr_schedule_make(request, out);
    described_close(&context);
    request->describe = NULL;
    request->context = NULL;
    return status;
}

bool tr_order_is_made(const tr_config *c) {
    return strcmp(c->parallel.schedule, "auto") == 0 || tr_schedule_is_capped(c->parallel.schedule);
}

tr_status tr_order_make(const tr_config *c, tr_schedule_request *request, tr_schedule **out) {
    tr_model_shape shape = {.batch = c->train.micro_batch,
                            .seq = c->model.context,
                            .dtype = tr_config_dtype(c),
                            .documents = tr_config_packed(c),
                            .tp_size = (int)c->parallel.tp};
    tr_model *model;
    TR_TRY(tr_model_create(&c->model, &shape, &model));
    describe_costs(c, model, request);
    tr_status status = describe_memory(c, model, request);
    if (status == TR_OK)
        status = tr_schedule_is_capped(request->name) ? tr_schedule_make(request, out)
                                                      : make_auto(c, model, request, out);
    tr_model_destroy(model);
    return status;
}
