#include "train/request.h"

#include "pipeline/open.h"
#include "train/order.h"

#include <string.h>

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

tr_status tr_request_schedule(const tr_config *c, tr_schedule **out, tr_schedule_report *report) {
    tr_schedule_request request = {
        .name = c->parallel.schedule,
        .ranks = (int)c->parallel.pp,
        .micro_batches = (int)(c->train.batch / c->parallel.dp / c->train.micro_batch),
        .chunks = (int)c->parallel.virtual_stages};
    tr_schedule *schedule;
    if (tr_request_is_auto(c)) TR_TRY(tr_order_make(c, &request, &schedule));
    else TR_TRY(tr_schedule_open(&request, &schedule));
    tr_status status = tr_schedule_check(schedule, NULL, report);
    if (status == TR_OK) *out = schedule;
    else tr_schedule_destroy(schedule);
    return status;
}

bool tr_request_is_auto(const tr_config *c) {
    return strcmp(c->parallel.schedule, "auto") == 0;
}

tr_status tr_request_memory(const tr_config *config, tr_device *device, int sharers, size_t *out) {
    size_t total;
    *out = (size_t)config->device.memory;
    if (*out) return TR_OK;
    TR_TRY(tr_device_memory(device, out, &total));
    *out /= (size_t)sharers;
    return TR_OK;
}
