#include "train/request.h"

#include "base/memory.h"
#include "pipeline/open.h"
#include "train/layout.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tr_model_config tr_request_model(const tr_config *c) {
    tr_model_config model = {.layers = c->model.layers,
                             .width = c->model.width,
                             .heads = c->model.heads,
                             .context = c->model.context,
                             .vocab = c->model.vocab,
                             .dropout = (float)c->model.dropout};
    memcpy(model.family, c->model.family, sizeof model.family);
    return model;
}

/* --- costs for auto --------------------------------------------------------------------------- */

/* FLOPs that a rank computes while a byte travels to another: of a CPU and shared memory, and of a
 * GPU and its links. Orders of magnitude are enough to choose the number of stages by. */
static const double flops_per_byte_cpu = 20, flops_per_byte_cuda = 2000;

/* What the layers' descriptions say of a model cut into stages: FLOPs. */
static tr_status stage_flops(void *context, int stages, double *f, double *i, double *w) {
    const tr_model *model = context;
    int *first;
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *first, &first));
    tr_status status = tr_layout_cut(model, stages, first);
    for (int s = 0; s < stages && status == TR_OK; s++) {
        f[s] = i[s] = w[s] = 0;
        for (int k = first[s]; k < first[s + 1]; k++) {
            f[s] += model->layers[k]->flops_f;
            i[s] += model->layers[k]->flops_i;
            w[s] += model->layers[k]->flops_w;
        }
    }
    free(first);
    return status;
}

/* Costs and memory of a rank's share, a p-th of the model, and as much memory as 1F1B takes. */
static void describe_costs(const tr_config *c, const tr_model *model, tr_schedule_request *r) {
    double mb = 0, mw = 0, share = 1.0 / r->ranks;
    double edge = (double)(c->train.micro_batch * c->model.context * c->model.width) *
                  (double)tr_dtype_size(model->shape.dtype);
    bool cuda = strncmp(c->device.name, "cuda", 4) == 0;
    r->costs = (tr_schedule_costs){.c = edge * (cuda ? flops_per_byte_cuda : flops_per_byte_cpu)};
    for (int k = 0; k < model->count; k++) {
        const tr_layer *layer = model->layers[k];
        r->costs.f += layer->flops_f * share;
        r->costs.i += layer->flops_i * share;
        r->costs.w += layer->flops_w * share;
        mb += (double)(layer->bytes[TR_LIFE_FI] + layer->bytes[TR_LIFE_FW]);
        mw += (double)(layer->bytes[TR_LIFE_FW] + layer->bytes[TR_LIFE_IW]);
    }
    double most = mw > mb ? mw / mb : 1; /* a micro-batch must fit between its I and W too */
    r->memory = (tr_schedule_memory){.mb = 1, .mw = mb > 0 ? mw / mb : 0, .cap = r->ranks * most};
}

static tr_status open_auto(const tr_config *c, tr_schedule_request *request, tr_schedule **out) {
    tr_model_config config = tr_request_model(c);
    tr_model_shape shape = {.batch = c->train.micro_batch,
                            .seq = c->model.context,
                            .dtype = tr_config_dtype(c),
                            .tp_size = (int)c->parallel.tp};
    tr_model *model;
    TR_TRY(tr_model_create(&config, &shape, &model));
    describe_costs(c, model, request);
    request->stage_costs = stage_flops;
    request->context = model;
    int64_t most = c->model.layers / request->ranks;
    request->most_chunks = most < 1 ? 1 : most > INT32_MAX ? INT32_MAX : (int)most;
    tr_status status = tr_schedule_make(request, out);
    tr_model_destroy(model);
    return status;
}

tr_status tr_request_schedule(const tr_config *c, tr_schedule **out, tr_schedule_report *report) {
    tr_schedule_request request = {
        .name = c->parallel.schedule,
        .ranks = (int)c->parallel.pp,
        .micro_batches = (int)(c->train.batch / c->parallel.dp / c->train.micro_batch),
        .chunks = (int)c->parallel.virtual_stages};
    tr_schedule *schedule;
    if (tr_request_is_auto(c)) TR_TRY(open_auto(c, &request, &schedule));
    else TR_TRY(tr_schedule_open(&request, &schedule));
    tr_status status = tr_schedule_check(schedule, NULL, report);
    if (status == TR_OK) *out = schedule;
    else tr_schedule_destroy(schedule);
    return status;
}

bool tr_request_is_auto(const tr_config *c) {
    return strcmp(c->parallel.schedule, "auto") == 0;
}

/* Where a rank's device memory is. */
typedef struct place {
    char host[64], device[64];
} place;

tr_status tr_request_sharers(tr_world *world, tr_device *device, bool *shares, int *count) {
    int size = tr_world_size(world);
    place mine = {0}, *all = NULL;
    (void)gethostname(mine.host, sizeof mine.host - 1);
    tr_status status = tr_device_identity(device, mine.device, sizeof mine.device);
    if (status == TR_OK) status = tr_calloc((size_t)size, sizeof *all, &all);
    status = tr_world_agree(world, status);
    if (status != TR_OK) {
        free(all);
        return status;
    }
    status = tr_world_gather_all(world, &mine, all, sizeof mine);
    *count = 0;
    for (int r = 0; r < size && status == TR_OK; r++) {
        shares[r] = memcmp(&mine, &all[r], sizeof mine) == 0;
        *count += shares[r];
    }
    free(all);
    return status;
}

tr_status tr_request_memory(const tr_config *config, tr_device *device, int sharers, size_t *out) {
    size_t total;
    *out = (size_t)config->device.memory;
    if (*out) return TR_OK;
    TR_TRY(tr_device_memory(device, out, &total));
    *out /= (size_t)sharers;
    return TR_OK;
}
