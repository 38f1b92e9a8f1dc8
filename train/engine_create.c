#include "base/memory.h"
#include "layers/layer_stage.h"
#include "partition/rank_groups.h"
#include "train/engine_impl.h"

#include <stdlib.h>
#include <string.h>

static tr_status open_all_groups(tr_engine *e) {
    const tr_mesh *mesh = &e->desc.mesh;
    tr_mesh_part all = tr_mesh_self(mesh), line = all;
    TR_TRY(tr_mesh_groups_create(e->desc.world, e->desc.device, mesh, &e->groups));
    TR_TRY(tr_rank_groups_open(e->groups, mesh, e->layout->model, &e->layout->placement,
                               e->desc.zero, e->desc.forward_only));
    for (tr_axis axis = 0; axis < TR_AXIS_COUNT; axis++) TR_TRY(tr_mesh_widen(mesh, axis, 0, &all));
    TR_TRY(tr_mesh_widen(mesh, TR_AXIS_TP, 0, &line));
    TR_TRY(tr_mesh_groups_get(e->groups, &all, &e->world));
    return tr_mesh_groups_get(e->groups, &line, &e->tp);
}

static tr_status open_groups(tr_engine *e) {
    const tr_status status = open_all_groups(e);
    if (status != TR_OK) tr_world_give_up(e->desc.world, status);
    return status;
}

static tr_status alloc_data(tr_engine *e) {
    tr_device *device = e->desc.device;
    TR_TRY(tr_feed_create(device, &e->desc.mesh, e->layout, e->desc.micro_batch, &e->feed));
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, sizeof *e->state, (void **)&e->state));
    TR_TRY(tr_device_staging_alloc(device, sizeof *e->given, (void **)&e->given));
    TR_TRY(tr_device_staging_alloc(device, sizeof *e->result, (void **)&e->result));
    return tr_device_staging_alloc(device, (size_t)e->desc.batch * sizeof *e->losses,
                                   (void **)&e->losses);
}

/* Makes the stages of this rank for steps of a size. */
static tr_status make_stages(tr_engine *e, tr_step_size *size) {
    TR_TRY(tr_calloc((size_t)e->layout->placement.stages, sizeof *size->stage, &size->stage));
    tr_step_data data[TR_STEP_INPUTS];
    tr_layer_source source = {.device = e->desc.device,
                              .state = e->state,
                              .input = data,
                              .inputs = tr_feed_inputs(e->feed, data),
                              .loss = tr_optimizer_loss(e->optimizer, size->micro_batches),
                              .loss_stride = tr_optimizer_loss_stride(e->optimizer),
                              .first_sample = tr_feed_offset(e->feed, size->batch),
                              .sample_stride = e->desc.micro_batch,
                              .probe = e->desc.probe};
    for (int s = 0; s < e->layout->placement.stages; s++) {
        if (e->layout->owner[s] != e->desc.mesh.index[TR_AXIS_PP]) continue;
        TR_TRY(tr_layer_stage_create(e->layout->model, e->layout->first,
                                     e->layout->placement.stages, s, &source, &size->stage[s]));
    }
    return TR_OK;
}

/* Lists the sizes of a training step. */
static tr_status list_sizes(tr_engine *e) {
    const int64_t rows = e->desc.batch / e->layout->micro_batches; /* of all data ranks */
    TR_TRY(tr_calloc((size_t)e->desc.smaller_count + 1, sizeof *e->size, &e->size));
    for (int k = 0; k <= e->desc.smaller_count; k++) {
        const int64_t batch = k > 0 ? e->desc.smaller[k - 1].batch : e->desc.batch;
        e->size[k] = (tr_step_size){.batch = batch, .micro_batches = (int)(batch / rows)};
    }
    e->now = e->next = e->size;
    return TR_OK;
}

static tr_status make_optimizer(tr_engine *e) {
    int *smaller;
    TR_TRY(tr_calloc((size_t)e->desc.smaller_count + 1, sizeof *smaller, &smaller));
    for (int k = 0; k < e->desc.smaller_count; k++) smaller[k] = e->size[k + 1].micro_batches;
    tr_optimizer_desc desc = {.device = e->desc.device,
                              .store = e->store,
                              .model = e->layout->model,
                              .mesh = &e->desc.mesh,
                              .world = e->world,
                              .tensor = e->tp,
                              .state = e->state,
                              .micro_batches = e->layout->micro_batches,
                              .smaller = smaller,
                              .smaller_count = e->desc.smaller_count,
                              .forward_only = e->desc.forward_only,
                              .noise = e->desc.noise,
                              .reduce = e->desc.reduce,
                              .config = e->desc.optimizer};
    tr_status status = tr_optimizer_create(&desc, &e->optimizer);
    free(smaller);
    return status;
}

static tr_status on_first_gradients(void *context, int stage, bool in_forward) {
    tr_engine *e = context;
    return tr_optimizer_first_gradients(e->optimizer, stage, in_forward);
}

static tr_status on_reduce_start(void *context, int stage, int bucket) {
    tr_engine *e = context;
    return tr_optimizer_start(e->optimizer, stage, bucket);
}

static tr_status on_reduce_wait(void *context, int stage, int bucket) {
    tr_engine *e = context;
    return tr_optimizer_wait(e->optimizer, stage, bucket);
}

static tr_status on_gather_start(void *context, int stage, int bucket, void *memory) {
    tr_engine *e = context;
    return tr_values_start(e->values, tr_device_compute(e->desc.device), stage, bucket, memory);
}

static tr_status on_gather_wait(void *context, int stage, int bucket, void *memory) {
    tr_engine *e = context;
    return tr_values_wait(e->values, tr_device_compute(e->desc.device), stage, bucket, memory);
}

static tr_status on_finish_training(void *context) {
    return tr_optimizer_finish(((tr_engine *)context)->optimizer, true);
}

static tr_status on_finish_validation(void *context) {
    return tr_optimizer_finish(((tr_engine *)context)->optimizer, false);
}

static void on_observe(void *context, const tr_instr *instr, bool begin) {
    tr_engine *e = context;
    e->desc.observe(e->desc.observe_context, instr, begin);
}

/* Adds the places to which a program gathers values. */
static tr_status add_gathers(tr_engine *e, const tr_program *program) {
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        if (instr->action.type == TR_ACTION_GATHER_START)
            TR_TRY(tr_values_add(e->values, instr->action.stage, instr->action.micro_batch,
                                 instr->offset == TR_NO_PLACE ? NULL : e->arena + instr->offset));
    }
    return TR_OK;
}

static tr_status make_runner(tr_engine *e, bool trains, tr_stage *const *stage,
                             const tr_program_set *set, tr_runner **out) {
    const tr_program *program = &set->program[e->desc.mesh.index[TR_AXIS_PP]];
    TR_TRY(add_gathers(e, program));
    const tr_runner_options options = {
        .device = e->desc.device,
        .links = e->links,
        .program = program,
        .stages = stage,
        .arena = e->arena,
        .host = e->host,
        .hooks = {.reduce_start = on_reduce_start,
                  .reduce_wait = on_reduce_wait,
                  .gather_start = on_gather_start,
                  .gather_wait = on_gather_wait,
                  .first_gradients = trains ? on_first_gradients : NULL,
                  .finish = trains ? on_finish_training : on_finish_validation,
                  .observe = e->desc.observe ? on_observe : NULL,
                  .context = e}};
    return tr_runner_create(&options, out);
}

static tr_status open_links(tr_engine *e) {
    const tr_mesh *mesh = &e->desc.mesh;
    int pp = mesh->degree[TR_AXIS_PP], *line;
    TR_TRY(tr_calloc((size_t)pp, sizeof *line, &line));
    tr_mesh_line(mesh, TR_AXIS_PP, line);
    tr_status status =
        tr_links_open(e->desc.world, e->desc.device, &e->layout->table, e->layout->owner, line, pp,
                      mesh->index[TR_AXIS_PP], &e->links);
    free(line);
    return status;
}

static tr_status make_runners(tr_engine *e) {
    const size_t host = tr_layout_host(e->layout, e->desc.mesh.index[TR_AXIS_PP]);
    if (host > 0)
        TR_TRY(tr_device_kept_alloc(e->desc.device, TR_MEMORY_OFFLOAD, host, (void **)&e->host));
    TR_TRY(tr_device_alloc(e->desc.device, TR_MEMORY_ACTIVATIONS,
                           tr_layout_arena(e->layout, e->desc.mesh.index[TR_AXIS_PP]),
                           (void **)&e->arena));
    if (!e->desc.forward_only) tr_engine_place_buckets(e);
    for (int k = 0; k <= e->desc.smaller_count && !e->desc.forward_only; k++)
        TR_TRY(make_runner(e, true, e->size[k].stage, tr_layout_step(e->layout, e->size[k].batch),
                           &e->size[k].runner));
    return make_runner(e, false, e->size[0].stage, e->layout->program[TR_LAYOUT_VALIDATE],
                       &e->validation);
}

/* Refuses a plan that does not fit. */
static tr_status check_fit(const tr_engine *e) {
    return tr_layout_check_fit(e->layout, e->desc.device, e->desc.mesh.index[TR_AXIS_PP], &e->plan,
                               e->desc.memory, e->desc.memory_is_free);
}

/* Makes the layout of this rank, and refuses a model that is too large by its parameters alone
 * before it is prepared and lowered. */
static tr_status make_layout(tr_engine *e) {
    const tr_engine_desc *d = &e->desc;
    tr_layout_desc desc = {.mesh = d->mesh,
                           .model = d->model,
                           .batch = d->batch,
                           .micro_batch = d->micro_batch,
                           .dtype = d->dtype,
                           .optimizer = tr_optim_memory_of(&d->optimizer),
                           .noise = d->noise,
                           .zero = d->zero,
                           .reduce = d->reduce,
                           .own = tr_world_own_sums(d->world),
                           .offload_first = d->offload_first,
                           .offload_stages = d->offload_stages,
                           .apart = !tr_device_on_host(d->device),
                           .background = d->background,
                           .documents = d->documents,
                           .seq = d->seq,
                           .forward_only = d->forward_only,
                           .decodes = d->decodes,
                           .schedule = d->schedule,
                           .room = d->room,
                           .cut = d->cut,
                           .smaller = e->smaller,
                           .smaller_count = d->smaller_count};
    TR_TRY(tr_layout_create(&desc, &e->layout));
    tr_layout_memory_known(e->layout, d->mesh.index[TR_AXIS_PP], d->mesh.index[TR_AXIS_DP],
                           &e->plan);
    return check_fit(e);
}

/* Lowers the layout, if it fits. */
static tr_status lower_layout(tr_engine *e) {
    const tr_engine_desc *d = &e->desc;
    int pp_rank = d->mesh.index[TR_AXIS_PP];
    const tr_op_context context = {.device = d->device,
                                   .deterministic = d->deterministic,
                                   .choice = d->plans ? TR_OP_RECORDED : TR_OP_PROPOSED,
                                   .book = d->plans};
    TR_TRY(
        tr_layout_prepare(e->layout, &context, tr_world_receive_units(d->world), e->tp, pp_rank));
    TR_TRY(tr_layout_lower(e->layout));
    TR_TRY(tr_layout_memory(e->layout, d->device, &d->mesh, &e->plan));
    tr_engine_plan(e, &e->plan); /* now with NCCL's groups */
    return check_fit(e);
}

/* Rounds the optimizer's scalars as the device does, so that values computed from them here agree
 * with the device's. */
static void round_scalars(tr_engine_desc *desc) {
    tr_optim_config *o = &desc->optimizer;
    double *scalar[] = {&o->beta1,      &o->beta2, &o->eps, &o->weight_decay, &o->momentum,
                        &o->clip_value, &o->l1,    &o->l2,  &desc->max_norm};
    for (size_t i = 0; i < sizeof scalar / sizeof *scalar; i++)
        if (desc->dtype != TR_F64) *scalar[i] = (double)(float)*scalar[i];
}

/* Makes the parts that work without open links. */
static tr_status make_before_links(tr_engine *e) {
    const tr_engine_desc *d = &e->desc;
    TR_TRY(tr_store_create(&(tr_store_desc){.device = d->device,
                                            .world = d->world,
                                            .mesh = &d->mesh,
                                            .model = e->layout->model,
                                            .placement = &e->layout->placement,
                                            .dtype = d->dtype,
                                            .groups = d->forward_only ? NULL : e->groups,
                                            .optimizer = tr_optim_memory_of(&d->optimizer),
                                            .zero = d->zero},
                           &e->store));
    TR_TRY(tr_values_create(e->store, &e->values));
    TR_TRY(list_sizes(e));
    TR_TRY(alloc_data(e));
    TR_TRY(make_optimizer(e));
    for (int k = 0; k <= d->smaller_count; k++) TR_TRY(make_stages(e, &e->size[k]));
    return TR_OK;
}

static tr_status make_after_links(tr_engine *e) {
    TR_TRY(make_runners(e));
    if (e->desc.decodes) TR_TRY(tr_engine_make_decoder(e));
    return e->desc.forward_only ? TR_OK : tr_feed_read_ahead(e->feed);
}

static tr_status create_layout(const tr_engine_desc *desc, tr_engine **out) {
    tr_engine *e;
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    *out = e;
    e->desc = *desc;
    e->loss_scale = 1;
    round_scalars(&e->desc);
    TR_TRY(tr_calloc((size_t)desc->smaller_count + 1, sizeof *e->smaller, &e->smaller));
    if (desc->smaller_count > 0)
        memcpy(e->smaller, desc->smaller, (size_t)desc->smaller_count * sizeof *e->smaller);
    return make_layout(e);
}

/* Ranks open their groups and links together, and close them together. So they agree before each,
 * and at the end; and before a rank allocates, that the plan fits all of them, because a plan with
 * another cut may follow. A rank that fails in between gives up, since closing would wait for the
 * others. */
tr_status tr_engine_create(const tr_engine_desc *desc, tr_engine **out) {
    tr_world *world = desc->world;
    tr_engine *e = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_world_agree(world, create_layout(desc, &e)));
    TR_TRY_OUT(open_groups(e));
    TR_TRY_OUT(tr_world_agree(world, lower_layout(e)));
    TR_TRY_OUT(tr_world_agree(world, make_before_links(e)));
    TR_TRY_OUT(open_links(e));
    TR_TRY_OUT(tr_world_agree(world, make_after_links(e)));
out:
    if (status != TR_OK) tr_engine_destroy(e);
    else *out = e;
    return status;
}

static void destroy_stages(const tr_engine *e, tr_step_size *size) {
    for (int s = 0; size->stage && s < e->layout->placement.stages; s++)
        if (size->stage[s]) size->stage[s]->ops->destroy(size->stage[s]);
    free(size->stage);
}

void tr_engine_destroy(tr_engine *e) {
    if (!e) return;
    tr_decoder_destroy(e->decoder);
    tr_runner_destroy(e->validation);
    for (int k = 0; e->size && k <= e->desc.smaller_count; k++)
        tr_runner_destroy(e->size[k].runner);
    tr_links_close(e->links);
    for (int k = 0; e->size && k <= e->desc.smaller_count; k++) destroy_stages(e, &e->size[k]);
    free(e->size);
    tr_mesh_groups_destroy(e->groups); /* before the memory that they may still reduce */
    tr_feed_destroy(e->feed);
    if (tr_world_keeps_memory(e->desc.world)) return; /* that of messages is among the rest */
    tr_optimizer_destroy(e->optimizer);
    tr_values_destroy(e->values);
    tr_store_destroy(e->store);
    tr_layout_destroy(e->layout);
    tr_device_free(e->desc.device, e->arena);
    tr_device_kept_free(e->desc.device, e->host);
    tr_device_free(e->desc.device, e->state);
    tr_device_staging_free(e->desc.device, e->given);
    tr_device_staging_free(e->desc.device, e->result);
    tr_device_staging_free(e->desc.device, e->losses);
    free(e->smaller);
    free(e);
}
