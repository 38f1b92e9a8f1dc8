#include "partition/layout.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/text.h"
#include "layers/cached.h"
#include "layers/layer_cut.h"
#include "layers/layer_stage.h"
#include "layers/param_layout.h"
#include "partition/buckets.h"
#include "partition/offload.h"
#include "partition/owners.h"
#include "partition/param_memory.h"
#include "partition/rank_groups.h"
#include "partition/written.h"
#include "pipeline/orders/generate.h"
#include "pipeline/program/run.h"

#include <stdlib.h>
#include <string.h>

/* Counts the micro-batches. The product is checked, because it may overflow here. */
static tr_status count_micro_batches(tr_layout *l) {
    const tr_layout_desc *d = &l->desc;
    int64_t micro_batches = d->batch / d->mesh.degree[TR_AXIS_DP] / d->micro_batch, tokens;
    if (micro_batches < 1 || micro_batches > INT32_MAX ||
        __builtin_mul_overflow(micro_batches * d->micro_batch, d->seq, &tokens) ||
        tokens > INT64_MAX / 64)
        return TR_FAIL(TR_ERR_CONFIG,
                       "train.batch %lld of %lld tokens cannot be cut into micro-batches of %lld",
                       (long long)d->batch, (long long)d->seq, (long long)d->micro_batch);
    l->micro_batches = (int)micro_batches;
    return TR_OK;
}

/* Checks the step inputs' sizes, so that the sums of tr_layout_memory_known cannot overflow. */
static tr_status check_step_inputs(const tr_layout *l) {
    tr_flow input[TR_STEP_INPUTS];
    int inputs = 0;
    size_t bytes;
    TR_TRY(tr_layer_step_inputs(l->model, 0, l->model->count, input, &inputs));
    for (int i = 0; i < inputs; i++)
        if (!tr_flow_bytes(&input[i], &bytes) ||
            !tr_mul_size(bytes, (size_t)l->micro_batches, &bytes) || bytes > SIZE_MAX / 64)
            return TR_FAIL(TR_ERR_CONFIG,
                           "the step input \"%s\" of train.batch %lld overflows a size: lower "
                           "train.batch",
                           input[i].name, (long long)l->desc.batch);
    return TR_OK;
}

static tr_status check_schedule(const tr_layout *l) {
    const tr_schedule *s = l->desc.schedule;
    int pp = l->desc.mesh.degree[TR_AXIS_PP];
    if (s->forward_only && !l->desc.forward_only)
        return TR_FAIL(TR_ERR_CONFIG, "schedule %s has no backward: it cannot train", s->name);
    if (s->ranks != pp || s->micro_batches != l->micro_batches)
        return TR_FAIL(TR_ERR_CONFIG,
                       "schedule %s has %d ranks and %d micro-batches, not %d and %d", s->name,
                       s->ranks, s->micro_batches, pp, l->micro_batches);
    if (s->stages > l->desc.model.layers && !l->desc.cut)
        return TR_FAIL(TR_ERR_CONFIG,
                       "schedule %s has %d stages, and model.layers is %lld: a stage needs a layer",
                       s->name, s->stages, (long long)l->desc.model.layers);
    return TR_OK;
}

/* Checks the orders of the smaller batches, which run on the same stages. */
static tr_status check_smaller(const tr_layout *l) {
    const tr_schedule *whole = l->desc.schedule;
    const int64_t row = (int64_t)l->desc.mesh.degree[TR_AXIS_DP] * l->desc.micro_batch;
    for (int k = 0; k < l->desc.smaller_count; k++) {
        const tr_smaller_batch *b = &l->desc.smaller[k];
        const tr_schedule *s = b->schedule;
        if (b->batch < 1 || b->batch >= l->desc.batch || b->batch % row ||
            s->micro_batches != b->batch / row || s->forward_only != whole->forward_only)
            return TR_FAIL(TR_ERR_CONFIG,
                           "schedule %s with %d micro-batches is not one of a batch of %lld that "
                           "is below %lld",
                           s->name, s->micro_batches, (long long)b->batch,
                           (long long)l->desc.batch);
        if (s->ranks != whole->ranks || s->stages != whole->stages ||
            memcmp(s->rank_of, whole->rank_of, (size_t)s->stages * sizeof *s->rank_of) != 0)
            return TR_FAIL(TR_ERR_CONFIG,
                           "schedule %s places the stages in another way for a batch of %lld than "
                           "for one of %lld",
                           s->name, (long long)b->batch, (long long)l->desc.batch);
    }
    return TR_OK;
}

static tr_status make_model(const tr_layout_desc *d, int tp_rank, tr_model **out) {
    tr_model_shape shape = {.batch = d->micro_batch,
                            .seq = d->seq,
                            .dtype = d->dtype,
                            .documents = d->documents,
                            .tp_rank = tp_rank,
                            .tp_size = d->mesh.degree[TR_AXIS_TP]};
    return tr_model_create(&d->model, &shape, out);
}

/* Returns the mesh as its first rank sees it. */
static tr_mesh as_first_rank(const tr_layout_desc *d) {
    tr_mesh mesh = d->mesh;
    memset(mesh.index, 0, sizeof mesh.index);
    return mesh;
}

/* Cuts as tensor rank 0 does, so that all tensor ranks have the same cut. Rank 0 has the largest
 * part of a vocabulary or MLP that does not divide evenly. Without room parameters and their state
 * count as a whole, also when data ranks divide them, so that parallel.zero does not move the
 * cut. */
static tr_status cut_as_first_rank(tr_layout *l) {
    const tr_layout_desc *d = &l->desc;
    const tr_mesh first_rank = as_first_rank(d);
    const tr_cut_memory memory = {.optimizer = d->optimizer,
                                  .divided =
                                      d->room ? tr_memory_divided(&first_rank, d->zero) : NULL,
                                  .zero = d->zero,
                                  .room = d->room};
    tr_model *model = NULL;
    const bool is_first = d->mesh.index[TR_AXIS_TP] == 0;
    if (!is_first) TR_TRY(make_model(d, 0, &model));
    const tr_status status =
        tr_cut_for_schedule(is_first ? l->model : model, d->schedule, &memory, l->first);
    tr_model_destroy(model);
    return status;
}

tr_status tr_layout_needs(const tr_layout *l, double *need) {
    const tr_layout_desc *d = &l->desc;
    const tr_mesh first_rank = as_first_rank(d);
    const tr_cut_memory memory = {.optimizer = d->optimizer,
                                  .divided = tr_memory_divided(&first_rank, d->zero),
                                  .zero = d->zero};
    double time;
    tr_model *model;
    TR_TRY(make_model(d, 0, &model));
    const tr_status status = tr_cut_measure(model, d->schedule, &memory, l->first, &time, need);
    tr_model_destroy(model);
    return status;
}

/* Cuts the layers into the schedule's stages. */
static tr_status place_layers(tr_layout *l) {
    int stages = l->desc.schedule->stages;
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *l->first, &l->first));
    TR_TRY(tr_calloc((size_t)stages, sizeof *l->owner, &l->owner));
    TR_TRY(tr_calloc((size_t)l->desc.schedule->ranks, sizeof *l->decoding, &l->decoding));
    if (l->desc.first) memcpy(l->first, l->desc.first, ((size_t)stages + 1) * sizeof *l->first);
    else if (l->desc.cut)
        TR_TRY(tr_layer_cut_read(l->desc.cut, l->desc.model.layers, stages, l->first));
    else TR_TRY(cut_as_first_rank(l));
    for (int s = 0; s < stages; s++) l->owner[s] = l->desc.schedule->rank_of[s];
    l->placement = (tr_placement){.stages = stages, .first = l->first, .owner = l->owner};
    return tr_owners_choose(l->model, &l->placement, tr_memory_divided(&l->desc.mesh, l->desc.zero),
                            l->desc.optimizer.kind);
}

tr_status tr_layout_create(const tr_layout_desc *desc, tr_layout **out) {
    tr_status status = TR_OK;
    tr_layout *l = NULL;
    TR_TRY(tr_calloc(1, sizeof *l, &l));
    l->desc = *desc;
    l->for_room = desc->room;
    if (l->desc.seq == 0) l->desc.seq = desc->model.context;
    if (desc->forward_only) l->desc.optimizer.offload = false; /* there is no state */
    TR_TRY_OUT(count_micro_batches(l));
    TR_TRY_OUT(check_schedule(l));
    TR_TRY_OUT(check_smaller(l));
    TR_TRY_OUT(tr_calloc((size_t)desc->smaller_count + 1, sizeof(tr_program_set *), &l->smaller));
    TR_TRY_OUT(make_model(&l->desc, desc->mesh.index[TR_AXIS_TP], &l->model));
    TR_TRY_OUT(check_step_inputs(l));
    TR_TRY_OUT(place_layers(l));
    TR_TRY_OUT(tr_layer_table_make(l->model, l->first, l->placement.stages, &l->table));
    l->desc.room = NULL;
    l->desc.first = NULL;
    l->desc.cut = NULL;
out:
    if (status != TR_OK) tr_layout_destroy(l);
    else *out = l;
    return status;
}

void tr_layout_destroy(tr_layout *l) {
    if (!l) return;
    for (int k = 0; k < TR_LAYOUT_PROGRAMS; k++) tr_program_set_destroy(l->program[k]);
    for (int k = 0; l->smaller && k < l->desc.smaller_count; k++)
        tr_program_set_destroy(l->smaller[k]);
    free(l->smaller);
    tr_model_destroy(l->model);
    tr_stage_table_free(&l->table);
    tr_step_end_vector_free(&l->vector);
    free(l->first);
    free(l->owner);
    free(l->decoding);
    free(l);
}

tr_op_context tr_layout_context(const tr_layout *l, const tr_op_context *common, int receive_units,
                                int pp_rank) {
    tr_op_context context = *common;
    tr_op_context_leave(&context, tr_layout_neighbours(l, pp_rank) * receive_units);
    return context;
}

/* Computes the bytes that a pipeline rank decodes in, and those of its messages. */
static tr_status size_decoding(tr_layout *l, tr_device *device, int pp_rank) {
    tr_cached_layers layers;
    tr_status status =
        tr_cached_layers_create(l->model, 1, &l->placement, pp_rank, device, NULL, &layers);
    if (status == TR_OK) {
        l->decoding[pp_rank] = tr_cached_bytes(&layers);
        l->decoding_message = layers.message;
    }
    tr_cached_layers_destroy(&layers);
    return status;
}

tr_status tr_layout_prepare(tr_layout *l, const tr_op_context *common, int receive_units,
                            tr_group *tp, int pp_rank) {
    for (int s = 0; s < l->placement.stages; s++) {
        if (pp_rank >= 0 && l->owner[s] != pp_rank) continue;
        tr_layer_env env = {.context = tr_layout_context(l, common, receive_units, l->owner[s]),
                            .tp = tp};
        for (int i = l->first[s]; i < l->first[s + 1]; i++)
            TR_TRY(l->model->layers[i]->ops->prepare(l->model->layers[i], &env));
    }
    for (int r = 0; l->desc.decodes && r < l->desc.mesh.degree[TR_AXIS_PP]; r++)
        if (pp_rank < 0 || r == pp_rank) TR_TRY(size_decoding(l, common->device, r));
    return TR_OK;
}

tr_status tr_layout_lower(tr_layout *l) {
    tr_schedule *forward = NULL;
    tr_stage_table_free(&l->table); /* made again, because the operators' scratch is known now */
    TR_TRY(tr_layer_table_make(l->model, l->first, l->placement.stages, &l->table));
    l->table.message = l->decoding_message;
    TR_TRY(tr_buckets_make(l->model, &l->placement, &l->desc.mesh,
                           tr_optim_grad_dtype(l->desc.optimizer, l->desc.dtype), l->desc.reduce,
                           l->desc.zero, &l->table));
    tr_offload_mark(l->desc.offload_first, l->desc.offload_stages, &l->table);
    TR_TRY(tr_step_end_vector_make(l->model, &l->desc.mesh, l->micro_batches, l->desc.noise,
                                   &l->vector));
    TR_TRY(tr_schedule_forward_of(l->desc.schedule, &l->table, l->micro_batches, &forward));
    tr_status status = TR_OK;
    if (!l->desc.forward_only)
        status = tr_lower(l->desc.schedule, &l->table, &l->program[TR_LAYOUT_TRAIN]);
    for (int k = 0; k < l->desc.smaller_count && !l->desc.forward_only && status == TR_OK; k++)
        status = tr_lower(l->desc.smaller[k].schedule, &l->table, &l->smaller[k]);
    if (status == TR_OK) status = tr_lower(forward, &l->table, &l->program[TR_LAYOUT_VALIDATE]);
    tr_schedule_destroy(forward);
    return status;
}

void tr_layout_cut(const tr_layout *l, char *text, size_t size) {
    text[0] = '\0';
    for (int s = 0; s < l->placement.stages; s++) {
        if (s) tr_text_add(text, size, " | ");
        tr_text_add_range(text, size, l->first[s], l->first[s + 1] - 1);
    }
}

int tr_layout_neighbours(const tr_layout *l, int pp_rank) {
    int count = 0;
    for (int e = 0; e < l->table.edges; e++)
        count += tr_links_peer(&l->table, l->owner, pp_rank, e) >= 0;
    return count;
}

/* Returns the bytes in which a pipeline rank decodes: those of the decoding layers, then, if data
 * ranks divide values, the whole values of all its layers, in the order of stages and buckets, each
 * bucket aligned to TR_ALIGN. 0 if it does not decode. */
static size_t decoding_bytes(const tr_layout *l, int pp_rank) {
    size_t bytes = l->decoding[pp_rank];
    for (int s = 0; s < l->placement.stages && l->desc.decodes; s++)
        for (int k = 0; k < l->table.cost[s].buckets && l->owner[s] == pp_rank; k++)
            bytes += tr_align_up(l->table.cost[s].bucket[k].values);
    return bytes;
}

/* Returns the rank's next program of those that were lowered, or NULL after the last one; *at
 * begins with 0. */
static const tr_program *next_program(const tr_layout *l, int pp_rank, int *at) {
    while (*at < TR_LAYOUT_PROGRAMS + l->desc.smaller_count) {
        const int k = (*at)++ - TR_LAYOUT_PROGRAMS;
        const tr_program_set *set = k < 0 ? l->program[k + TR_LAYOUT_PROGRAMS] : l->smaller[k];
        if (set) return &set->program[pp_rank];
    }
    return NULL;
}

size_t tr_layout_arena(const tr_layout *l, int pp_rank) {
    size_t most = decoding_bytes(l, pp_rank);
    int at = 0;
    for (const tr_program *p; (p = next_program(l, pp_rank, &at));)
        most = tr_max_size(most, p->arena_bytes);
    return most;
}

/* Returns the most bytes of the arena that are alive at one time. */
static size_t live_peak(const tr_layout *l, int pp_rank) {
    size_t most = decoding_bytes(l, pp_rank);
    int at = 0;
    for (const tr_program *p; (p = next_program(l, pp_rank, &at));)
        most = tr_max_size(most, p->live_peak_bytes);
    return most;
}

size_t tr_layout_host(const tr_layout *l, int pp_rank) {
    size_t most = 0;
    int at = 0;
    for (const tr_program *p; (p = next_program(l, pp_rank, &at));)
        most = tr_max_size(most, p->host_bytes);
    return most;
}

const tr_program_set *tr_layout_step(const tr_layout *l, int64_t batch) {
    for (int k = 0; k < l->desc.smaller_count; k++)
        if (l->desc.smaller[k].batch == batch) return l->smaller[k];
    return l->program[TR_LAYOUT_TRAIN];
}

void tr_layout_step_inputs(const tr_layout *l, int pp_rank, tr_flow *input, int *inputs) {
    *inputs = 0;
    /* Cannot fail, because it did not in tr_layout_create for all layers. */
    for (int s = 0; s < l->placement.stages; s++)
        if (l->owner[s] == pp_rank)
            (void)tr_layer_step_inputs(l->model, l->first[s], l->first[s + 1], input, inputs);
}

size_t tr_layout_step_bytes(const tr_layout *l, const tr_flow *input) {
    size_t bytes;
    (void)tr_flow_bytes(input, &bytes);
    return bytes * (size_t)l->micro_batches;
}

bool tr_layout_sums_freely(const tr_layout *l) {
    if (l->desc.own.ordered || l->desc.reduce == TR_REDUCE_SUM_BF16) return false;
    for (int i = 0; i < l->model->count; i++)
        for (int k = 0; k < l->model->layers[i]->params_count; k++) {
            const tr_param *param = &l->model->layers[i]->params[k];
            tr_param_layout layout;
            if (!param->frozen && tr_param_layout_make(param, &l->desc.mesh, &layout) == TR_OK &&
                (tr_mesh_part_size(&layout.sum) > 2 || tr_mesh_part_size(&layout.across) > 2))
                return true;
        }
    return false;
}

tr_param_memory tr_layout_params(const tr_layout *l, int pp_rank, int dp_rank) {
    tr_mesh mesh = l->desc.mesh;
    mesh.index[TR_AXIS_DP] = dp_rank;
    return tr_memory_of_params(l->model, &l->placement, pp_rank,
                               tr_memory_divided(&mesh, l->desc.zero), l->desc.zero,
                               l->desc.optimizer);
}

void tr_layout_memory_known(const tr_layout *l, int pp_rank, int dp_rank, tr_memory_plan *out) {
    tr_flow input[TR_STEP_INPUTS];
    int inputs;
    tr_layout_step_inputs(l, pp_rank, input, &inputs);
    *out = (tr_memory_plan){.of = {[TR_MEMORY_DATA] = tr_align_up(sizeof(tr_step_state))},
                            .apart = l->desc.apart};
    for (int i = 0; i < inputs; i++)
        out->of[TR_MEMORY_DATA] += tr_align_up(tr_layout_step_bytes(l, &input[i]));
    const tr_param_memory params = tr_layout_params(l, pp_rank, dp_rank);
    tr_memory_params_bytes(&params, l->desc.dtype, &out->of[TR_MEMORY_PARAMETERS],
                           &out->of[TR_MEMORY_GRADIENTS], &out->of[TR_MEMORY_OPTIMIZER]);
    out->of[TR_MEMORY_OFFLOAD] = tr_offload_bytes(&params, l->desc.dtype);
    if (l->desc.forward_only) out->of[TR_MEMORY_GRADIENTS] = out->of[TR_MEMORY_OPTIMIZER] = 0;
    tr_memory_sum(out);
}

tr_status tr_layout_memory(const tr_layout *l, tr_device *device, const tr_mesh *mesh,
                           tr_memory_plan *out) {
    const int pp_rank = mesh->index[TR_AXIS_PP];
    size_t step_end, groups;
    TR_TRY(tr_step_end_bytes(&(tr_step_end_desc){.device = device,
                                                 .model = l->model,
                                                 .placement = &l->placement,
                                                 .vector = &l->vector,
                                                 .mesh = mesh,
                                                 .dtype = l->desc.dtype,
                                                 .optimizer = l->desc.optimizer,
                                                 .zero = l->desc.zero,
                                                 .forward_only = l->desc.forward_only},
                             &step_end));
    TR_TRY(tr_rank_groups_bytes(l->model, &l->placement, mesh, l->desc.zero, l->desc.forward_only,
                                l->desc.own, &groups));
    tr_layout_memory_known(l, pp_rank, mesh->index[TR_AXIS_DP], out);
    if (l->desc.background)
        TR_TRY(tr_written_snapshot(&(tr_written_desc){.model = l->model,
                                                      .placement = &l->placement,
                                                      .mesh = mesh,
                                                      .dtype = l->desc.dtype,
                                                      .optimizer = l->desc.optimizer,
                                                      .zero = l->desc.zero},
                                   &out->of[TR_MEMORY_SNAPSHOT]));
    out->of[TR_MEMORY_DATA] += step_end;
    out->of[TR_MEMORY_TRANSFERS] = tr_links_bytes(&l->table, l->owner, pp_rank) + groups;
    out->of[TR_MEMORY_ACTIVATIONS] = tr_layout_arena(l, pp_rank);
    out->of[TR_MEMORY_OFFLOAD] += tr_align_up(tr_layout_host(l, pp_rank));
    out->live_peak = live_peak(l, pp_rank);
    tr_memory_sum(out);
    return TR_OK;
}

/* Writes the changes to text[size] that are possible and make the plan smaller. */
static void write_remedies(const tr_layout *l, const tr_device *device, const tr_memory_plan *plan,
                           char *text, size_t size) {
    const tr_layout_desc *d = &l->desc;
    const int *degree = d->mesh.degree;
    const int64_t chunks = l->placement.stages / degree[TR_AXIS_PP];
    const bool trains = !d->forward_only;
    const bool pp = (degree[TR_AXIS_PP] + 1) * chunks <= d->model.layers;
    const bool tp = degree[TR_AXIS_TP] < d->model.heads;
    const struct {
        bool possible;
        const char *change;
    } all[] = {
        {trains && !d->zero && tr_mesh_near(&d->mesh) > 1, "set parallel.zero to 1"},
        {trains && !tr_device_on_host(device) && !d->optimizer.offload,
         "set device.offload to optimizer"},
        {d->background && !plan->apart, "set checkpoint.background to false"},
        {pp && tp, "raise parallel.pp or parallel.tp"},
        {pp && !tp, "raise parallel.pp"},
        {tp && !pp, "raise parallel.tp"},
        {trains && strcmp(d->model.recompute, tr_recompute_name(TR_RECOMPUTE_FULL)) != 0,
         "set train.recompute"},
        {d->micro_batch > 1, "lower train.micro_batch"},
    };
    const char *found[sizeof all / sizeof *all];
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].possible) found[count++] = all[i].change;
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        tr_text_add(text, size, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : ", or ", found[i]);
    if (count == 0)
        tr_text_add(text, size, "give each rank more memory, or make model or context smaller");
    else if (trains) tr_text_add(text, size, " (`trireme plan` finds values that fit)");
}

tr_status tr_layout_check_fit(const tr_layout *l, tr_device *device, int pp_rank,
                              const tr_memory_plan *plan, size_t limit, bool is_free) {
    char remedies[320];
    if (!limit || plan->total <= limit) return TR_OK;
    write_remedies(l, device, plan, remedies, sizeof remedies);
    return tr_memory_refuse(plan, pp_rank, limit, is_free, remedies);
}
