#include "partition/request.h"

#include "device/cpu/cpu.h"
#include "partition/model_order.h"
#include "pipeline/orders/make.h"

#include <stdio.h>
#include <string.h>

/* Returns the stages of a rank; 0: the schedule's own number, which a file always has. like: as in
 * open_order. */
static int chunks_of(const tr_config *c, const tr_schedule *like, int cut_stages) {
    if (like) return like->stages / like->ranks;
    if (c->parallel.virtual_stages) return (int)c->parallel.virtual_stages;
    return tr_schedule_is_path(c->parallel.schedule) ? 0 : cut_stages / (int)c->parallel.pp;
}

/* Opens the order of a batch. like: with its stages; NULL: any. */
static tr_status open_order(const tr_config *c, int64_t batch, const tr_schedule *like,
                            tr_schedule **out, tr_schedule_report *report) {
    int stages = 0;
    TR_TRY(tr_config_cut_stages(c, &stages));
    tr_schedule_request request = {.name = c->parallel.schedule,
                                   .ranks = (int)c->parallel.pp,
                                   .micro_batches =
                                       (int)(batch / c->parallel.dp / c->train.micro_batch),
                                   .chunks = chunks_of(c, like, stages),
                                   .rank_of = like ? like->rank_of : NULL};
    tr_schedule *schedule;
    if (tr_order_is_made(c)) TR_TRY(tr_order_make(c, &request, &schedule));
    else TR_TRY(tr_schedule_open(&request, &schedule));
    tr_status status = tr_config_check_offload_stages(c, schedule->stages);
    if (status == TR_OK) status = tr_schedule_check(schedule, NULL, report);
    if (status == TR_OK) *out = schedule;
    else tr_schedule_destroy(schedule);
    return status;
}

tr_status tr_request_schedule(const tr_config *c, tr_schedule **out, tr_schedule_report *report) {
    return open_order(c, c->train.batch, NULL, out, report);
}

tr_status tr_request_orders(const tr_config *c, tr_orders *out, tr_schedule_report *report) {
    tr_batch_size size[TR_CONFIG_BATCHES];
    const int smaller = tr_config_batches(c, size) - 1;
    *out = (tr_orders){0};
    TR_TRY(tr_request_schedule(c, &out->schedule, report));
    for (int k = 0; k < smaller; k++) {
        tr_schedule_report own;
        tr_schedule *schedule;
        tr_status status = open_order(c, size[k].batch, out->schedule, &schedule, &own);
        if (status != TR_OK) tr_orders_close(out);
        TR_TRY(status);
        out->smaller[out->smaller_count++] = (tr_smaller_batch){size[k].batch, schedule};
        if (report->sums_ascending) *report = own;
    }
    return TR_OK;
}

void tr_orders_close(tr_orders *orders) {
    tr_schedule_destroy(orders->schedule);
    for (int k = 0; k < orders->smaller_count; k++)
        tr_schedule_destroy((tr_schedule *)orders->smaller[k].schedule); /* made by open_order */
    *orders = (tr_orders){0};
}

bool tr_request_is_auto(const tr_config *c) {
    return strcmp(c->parallel.schedule, "auto") == 0;
}

void tr_request_costs(const tr_config *c, char *text, size_t size) {
    double tokens = (double)(c->train.micro_batch * c->model.context);
    double square = tokens * (double)(c->model.heads / c->parallel.tp * c->model.context);
    text[0] = '\0';
    const tr_dtype dtype = tr_config_dtype(c);
    if (!tr_config_on_gpu(c)) {
        if (!strcmp(c->device.name, "ref") && tr_dtype_size(dtype) < sizeof(float))
            (void)snprintf(text, size,
                           "train.precision is %s: device ref stores it and computes in fp64, "
                           "which saves memory but not time",
                           c->train.precision);
        else if (dtype == TR_F16)
            (void)snprintf(text, size,
                           "train.precision is fp16: CPUs store it and multiply in fp32, which "
                           "saves memory but not time");
        else if (dtype == TR_BF16 && !tr_cpu_bf16_native())
            (void)snprintf(
                text, size,
                "train.precision is bf16: this processor has no fast BF16 instructions and "
                "multiplies in fp32, which saves memory but not time");
        return;
    }
    if (dtype == TR_F16)
        (void)snprintf(text, size,
                       "train.precision is fp16: cuDNN's attention is not used, and a step takes "
                       "longer than in bf16");
    else if (dtype != TR_BF16)
        (void)snprintf(
            text, size,
            "train.precision is fp32: a GPU's tensor cores and cuDNN's attention are not "
            "used, and a step takes many times as long as in bf16");
    else if (c->train.deterministic)
        (void)snprintf(text, size,
                       "train.deterministic is true: cuDNN's attention may write %.1f MiB a "
                       "micro-batch and layer that it does not need otherwise",
                       square * (double)tr_dtype_size(TR_BF16) / (1 << 20));
}

static tr_optim_memory optimizer_of(const tr_config *c) {
    const tr_optim_config config = tr_optim_of(c);
    return tr_optim_memory_of(&config);
}

tr_mesh tr_request_mesh(const tr_config *c) {
    return (tr_mesh){.degree = {[TR_AXIS_PP] = (int)c->parallel.pp,
                                [TR_AXIS_DP] = (int)c->parallel.dp,
                                [TR_AXIS_TP] = (int)c->parallel.tp},
                     .near = tr_config_near(c)};
}

tr_layout_desc tr_request_layout(const tr_config *c, const tr_orders *orders, const tr_mesh *mesh) {
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check refuses a bad one */
    return (tr_layout_desc){.mesh = *mesh,
                            .model = c->model,
                            .batch = c->train.batch,
                            .micro_batch = c->train.micro_batch,
                            .dtype = tr_config_dtype(c),
                            .optimizer = optimizer_of(c),
                            .noise = c->log.noise_scale,
                            .zero = (int)c->parallel.zero,
                            .reduce = tr_request_reduce(c),
                            .offload_first = offload.first,
                            .offload_stages = offload.stages,
                            .apart = !tr_config_on_host(c),
                            .background = c->checkpoint.background,
                            .documents = tr_config_packed(c),
                            .decodes = c->train.sample_every > 0,
                            .schedule = orders->schedule,
                            .cut = tr_config_cut(c),
                            .smaller = orders->smaller,
                            .smaller_count = orders->smaller_count};
}

tr_reduce tr_request_reduce(const tr_config *config) {
    return strcmp(config->parallel.reduce, "bf16") == 0 ? TR_REDUCE_SUM_BF16 : TR_REDUCE_SUM;
}

tr_own_sums tr_request_own_sums(const tr_config *config) {
    return (tr_own_sums){.ordered = config->train.deterministic,
                         .bf16 = tr_request_reduce(config) == TR_REDUCE_SUM_BF16};
}

tr_plane tr_request_plane(const tr_config *config) {
    const char *name = config->parallel.transport;
    return strcmp(name, "nccl") == 0  ? TR_PLANE_NCCL
           : strcmp(name, "mpi") == 0 ? TR_PLANE_MPI
                                      : TR_PLANE_AUTO;
}

tr_status tr_request_memory(const tr_config *config, tr_device *device, int sharers, size_t *out) {
    size_t total;
    *out = (size_t)config->device.memory;
    if (*out) return TR_OK;
    TR_TRY(tr_device_memory(device, out, &total));
    *out /= (size_t)sharers;
    return TR_OK;
}

tr_status tr_request_host_memory(const tr_config *config, tr_device *device, size_t *out) {
    size_t total;
    *out = (size_t)config->device.host_memory;
    if (*out) return TR_OK;
    *out = SIZE_MAX;
    if (tr_config_on_gpu(config) && tr_device_on_host(device)) return TR_OK;
    return tr_device_host_memory(out, &total);
}
