#include "train/generation.h"

#include "base/memory.h"
#include "layers/cached.h"
#include "partition/cut_for_schedule.h"
#include "partition/memory_plan.h"
#include "partition/param_memory.h"
#include "partition/request.h"

#include <stdlib.h>

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status make_model(tr_generation *s, int rows, int tp_rank, tr_model **out) {
    const tr_config *c = &s->config;
    const tr_model_shape shape = {.batch = rows,
                                  .seq = c->model.context,
                                  .dtype = tr_config_dtype(c),
                                  .decode = 1,
                                  .tp_rank = tp_rank,
                                  .tp_size = s->mesh.degree[TR_AXIS_TP]};
    return tr_model_create(&c->model, &shape, out);
}

/* Cuts the model as tensor rank 0 does, so that all tensor ranks have the same cut. */
static tr_status place_layers(tr_generation *s, int rows) {
    const int stages = s->mesh.degree[TR_AXIS_PP];
    tr_model *first_rank;
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *s->first, &s->first));
    TR_TRY(tr_calloc((size_t)stages, sizeof *s->owner, &s->owner));
    TR_TRY(make_model(s, rows, 0, &first_rank));
    tr_status status = tr_cut_model(first_rank, stages, s->first);
    tr_model_destroy(first_rank);
    for (int i = 0; i < stages; i++) s->owner[i] = i;
    s->placement = (tr_placement){.stages = stages, .first = s->first, .owner = s->owner};
    return status;
}

/* Opens what needs no other rank. */
static tr_status open_local(tr_generation *s, int rows) {
    const tr_config *c = &s->config;
    TR_TRY(tr_mesh_make((int)c->parallel.pp, 1, (int)c->parallel.tp, tr_world_rank(s->world),
                        tr_world_size(s->world), &s->mesh));
    TR_TRY(tr_trained_device(c, s->world, &s->device, &s->on_cpu_instead));
    TR_TRY(make_model(s, rows, s->mesh.index[TR_AXIS_TP], &s->model));
    return place_layers(s, rows);
}

/* Parameters that are only read have no masters. */
static const tr_optim_memory only_read = {.no_master = true};

/* Refuses a model that needs more memory than this rank may use: parameters, and what the texts are
 * decoded in. */
static tr_status check_fit(const tr_generation *s, int rows) {
    const tr_config *c = &s->config;
    const int pp_rank = s->mesh.index[TR_AXIS_PP];
    const bool wide = tr_dtype_size(tr_config_dtype(c)) > sizeof(uint16_t);
    const tr_param_memory params =
        tr_memory_of_params(s->model, &s->placement, pp_rank, NULL, 0, only_read);
    tr_memory_plan plan = {0};
    size_t grads, states; /* not allocated */
    tr_memory_params_bytes(&params, tr_config_dtype(c), &plan.of[TR_MEMORY_PARAMETERS], &grads,
                           &states);
    tr_cached_layers layers;
    size_t limit;
    TR_TRY(tr_request_memory(c, s->device, tr_world_sharers(s->world), &limit));
    tr_status status = TR_OK;
    tr_memory_sum(&plan);
    if (plan.total <= limit) { /* its layers are prepared only if they may fit */
        status = tr_cached_layers_create(s->model, rows, &s->placement, pp_rank, s->device, NULL,
                                         &layers);
        if (status == TR_OK) plan.of[TR_MEMORY_ACTIVATIONS] = tr_cached_bytes(&layers);
        tr_cached_layers_destroy(&layers);
        tr_memory_sum(&plan);
    }
    if (status != TR_OK || plan.total <= limit) return status;
    return tr_memory_refuse(&plan, pp_rank, limit, c->device.memory == 0,
                            wide ? "start it on more ranks (`trireme run -n RANKS sample ...`), or "
                                   "set train.precision to bf16"
                                 : "start it on more ranks (`trireme run -n RANKS sample ...`)");
}

tr_status tr_generation_open(const tr_trained *from, int rows, tr_world *world, tr_generation *s) {
    char note[192];
    s->world = world;
    TR_TRY(tr_world_agree(world, tr_trained_check(from, &s->config)));
    TR_TRY(tr_world_agree(world, open_local(s, rows)));
    TR_TRY(tr_world_choose_data_plane(world, s->device, tr_request_plane(&s->config), note,
                                      sizeof note));
    tr_world_set_own_sums(world, tr_request_own_sums(&s->config));
    TR_TRY(tr_world_agree(world, check_fit(s, rows)));
    TR_TRY(tr_mesh_groups_create(world, s->device, &s->mesh, &s->groups));
    TR_TRY(tr_world_agree(world,
                          tr_store_create(&(tr_store_desc){.device = s->device,
                                                           .world = world,
                                                           .mesh = &s->mesh,
                                                           .model = s->model,
                                                           .placement = &s->placement,
                                                           .optimizer = only_read,
                                                           .dtype = tr_config_dtype(&s->config)},
                                          &s->store)));
    TR_TRY(tr_trained_load(from, &s->config, world, &s->mesh, s->store));
    const tr_decoder_desc desc = {.world = world,
                                  .device = s->device,
                                  .mesh = s->mesh,
                                  .groups = s->groups,
                                  .model = s->model,
                                  .rows = rows,
                                  .placement = &s->placement};
    return tr_decoder_create(&desc, &s->decoder);
}

void tr_generation_close(tr_generation *s) {
    tr_decoder_destroy(s->decoder);
    tr_store_destroy(s->store);
    tr_model_destroy(s->model);
    if (s->groups) tr_mesh_groups_destroy(s->groups);
    if (s->device) tr_device_close(s->device);
    free(s->first);
    free(s->owner);
}
