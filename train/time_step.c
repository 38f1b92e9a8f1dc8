#include "train/time_step.h"

#include "base/clock.h"
#include "comm/comm.h"
#include "pipeline/orders/make.h"
#include "train/engine.h"

#include <string.h>

static const double STEPS_S = 0.25; /* how long to repeat steps of one kind; the fastest counts */
enum { LEAST_STEPS = 2 };

/* Fills inputs with valid token numbers, and with the starts of a single document. */
static tr_status fetch_nothing(void *context, bool validation, int64_t sample,
                               const tr_fetch *wanted, int count) {
    const tr_model_config *model = context;
    (void)validation, (void)sample;
    for (int k = 0; k < count; k++) {
        const bool starts = !strcmp(wanted[k].input->name, TR_STEP_INPUT_DOCUMENT_STARTS);
        for (int64_t i = 0; i < model->context; i++)
            ((int32_t *)wanted[k].to)[i] = starts ? 0 : (int32_t)(i % model->vocab);
    }
    return TR_OK;
}

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

tr_status tr_time_step(tr_device *device, const tr_rate_step *step, double *seconds) {
    tr_status status = TR_OK;
    tr_engine *engine = NULL;
    tr_schedule *schedule = NULL;
    tr_engine_desc desc = {.device = device,
                           .model = step->model,
                           .batch = step->micro_batches * step->micro_batch,
                           .micro_batch = step->micro_batch,
                           .dtype = step->dtype,
                           .deterministic = step->deterministic,
                           .documents = step->documents,
                           .optimizer = step->optimizer,
                           .fetch = fetch_nothing,
                           .fetch_context = &desc.model};
    tr_schedule_request request = {
        .name = "1f1b", .ranks = 1, .micro_batches = step->micro_batches, .chunks = 1};
    TR_TRY(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh));
    TR_TRY(tr_world_open_local(1, &desc.world));
    TR_TRY_OUT(tr_schedule_open(&request, &schedule));
    desc.schedule = schedule;
    TR_TRY_OUT(tr_engine_create(&desc, &engine));
    TR_TRY_OUT(tr_store_init(tr_engine_store(engine), 1, NULL));
    TR_TRY_OUT(time_steps(engine, seconds));
out:
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    tr_world_close(desc.world);
    return status;
}
