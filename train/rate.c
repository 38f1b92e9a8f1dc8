#include "train/rate.h"

#include "base/clock.h"
#include "comm/comm.h"
#include "device/cpu/cpu.h"
#include "pipeline/orders/make.h"
#include "train/engine.h"
#include "train/rate_cache.h"
#include "train/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* FLOPs of one micro-batch of the model that is timed: enough for products that are as efficient as
 * training's, little enough for some steps a second at 20 GFLOP/s on a CPU, 20 TFLOP/s on a GPU. */
static const double HOST_FLOPS = 4e9, GPU_FLOPS = 4e12;
static const double STEPS_S = 0.25; /* for steps of one length, of which the fastest counts */
/* How long a result is remembered, measured on an idle machine and on a busy one. */
static const int64_t IDLE_LASTS_S = 24 * 3600, BUSY_LASTS_S = 60;
enum { LEAST_STEPS = 2, LEAST_TOKENS = 16, MOST_VOCAB = 1024 };

/* A model of one layer whose micro-batch is bounded by `flops`: first fewer sequences, then shorter
 * ones. */
static tr_status choose_model(const tr_config *c, double flops, tr_model_config *model,
                              int64_t *micro_batch) {
    tr_model *made;
    *model = c->model;
    model->layers = 1;
    if (model->vocab > MOST_VOCAB) model->vocab = MOST_VOCAB;
    *micro_batch = c->train.micro_batch;
    for (;;) {
        tr_model_shape shape = {.batch = *micro_batch,
                                .seq = model->context,
                                .dtype = tr_config_dtype(c),
                                .tp_size = 1};
        TR_TRY(tr_model_create(model, &shape, &made));
        double tokens = (double)*micro_batch * (double)model->context;
        bool fits = tokens * tr_model_flops_per_token(made) <= flops;
        tr_model_destroy(made);
        if (fits) return TR_OK;
        if (*micro_batch > 1) *micro_batch /= 2;
        else if (model->context > LEAST_TOKENS) model->context /= 2;
        else return TR_OK;
    }
}

/* Every input is token numbers. */
static tr_status fetch_nothing(void *context, bool validation, int64_t sample,
                               const tr_fetch *wanted, int count) {
    const tr_model_config *model = context;
    (void)validation, (void)sample;
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < model->context; i++)
            ((int32_t *)wanted[k].to)[i] = (int32_t)(i % model->vocab);
    return TR_OK;
}

/* Seconds of the fastest of some steps, after one that warms up. */
static tr_status time_steps(tr_engine *engine, double *seconds) {
    tr_step_result result;
    double begun = 0;
    *seconds = 0;
    for (int64_t step = 0; step <= LEAST_STEPS || tr_now_s() - begun < STEPS_S; step++) {
        double start = tr_now_s();
        TR_TRY(tr_engine_step(engine, step + 1, step + 1, 0, 0, &result));
        double taken = tr_now_s() - start;
        if (step == 0) begun = tr_now_s();
        else if (step == 1 || taken < *seconds) *seconds = taken;
    }
    return TR_OK;
}

/* Seconds of a step of `count` micro-batches, and the FLOPs of one of them. */
static tr_status time_step(const tr_config *c, tr_device *device, tr_world *world, int count,
                           double *seconds, double *flops) {
    tr_status status = TR_OK;
    tr_engine *engine = NULL;
    tr_schedule *schedule = NULL;
    tr_engine_desc desc = {.world = world,
                           .device = device,
                           .dtype = tr_config_dtype(c),
                           .adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f},
                           .fetch = fetch_nothing,
                           .fetch_context = &desc.model};
    TR_TRY(choose_model(c, tr_device_on_host(device) ? HOST_FLOPS : GPU_FLOPS, &desc.model,
                        &desc.micro_batch));
    desc.batch = count * desc.micro_batch;
    tr_schedule_request request = {.name = "1f1b", .ranks = 1, .micro_batches = count, .chunks = 1};
    TR_TRY(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh));
    TR_TRY_OUT(tr_schedule_open(&request, &schedule));
    desc.schedule = schedule;
    TR_TRY_OUT(tr_engine_create(&desc, &engine));
    TR_TRY_OUT(tr_store_init(tr_engine_store(engine), 1, NULL));
    *flops = tr_model_flops_per_token(tr_engine_model(engine)) * (double)desc.micro_batch *
             (double)desc.model.context;
    TR_TRY_OUT(time_steps(engine, seconds));
out:
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    return status;
}

/* Two steps that differ by one micro-batch differ by its time: the optimizer's is in both. */
static tr_status measure(const tr_config *c, tr_device *device, double *rate) {
    double one, two, flops;
    tr_world *world = NULL;
    TR_TRY(tr_world_open_local(1, &world));
    tr_status status = time_step(c, device, world, 1, &one, &flops);
    if (status == TR_OK) status = time_step(c, device, world, 2, &two, &flops);
    tr_world_close(world);
    TR_TRY(status);
    *rate = flops / (two > one ? two - one : one);
    return TR_OK;
}

/* All that the rate depends on. */
static void describe(const tr_config *c, tr_device *device, char *text, size_t size) {
    char host[256] = "", where[64] = "";
    (void)gethostname(host, sizeof host - 1);
    (void)tr_device_identity(device, where, sizeof where);
    (void)snprintf(text, size, "%s|%s|%s|%s|%s|%d|%s|%lld|%lld|%lld|%lld|%d", TRIREME_VERSION, host,
                   where, tr_cpu_isa(), device->name, device->threads, c->train.precision,
                   (long long)c->model.width, (long long)c->model.heads,
                   (long long)c->model.context, (long long)c->train.micro_batch,
                   c->model.dropout > 0);
}

/* Other processes ran on the CPUs in the last minute. */
static bool is_busy(const tr_device *device) {
    double load;
    return tr_device_on_host(device) && getloadavg(&load, 1) == 1 && load > 0.5;
}

tr_status tr_rate_measure(const tr_config *config, tr_device *device, double *flops_per_s) {
    char key[1024];
    describe(config, device, key, sizeof key);
    if (tr_rate_cache_read(key, flops_per_s)) return TR_OK;
    bool busy = is_busy(device);
    TR_TRY(measure(config, device, flops_per_s));
    tr_rate_cache_write(key, *flops_per_s, busy ? BUSY_LASTS_S : IDLE_LASTS_S);
    return TR_OK;
}
