#include "train/engine_impl.h"

#include <math.h>

/* Begins a step of this size with the samples of `from`. The other ranks will wait for this one, so
 * a rank that cannot read its samples takes the step with zeros, and spoils it. */
static tr_status begin(tr_engine *e, const tr_step_size *size, const tr_feed_batch *from) {
    bool complete;
    TR_TRY(
        tr_feed_load(e->feed, from, e->next->batch, tr_device_compute(e->desc.device), &complete));
    TR_TRY(tr_optimizer_begin(e->optimizer, size->micro_batches));
    return complete ? TR_OK : tr_optimizer_spoil(e->optimizer);
}

/* Returns x, and a NaN without the sign that x86 gives it, which would be printed. */
static double without_sign(double x) {
    return isnan(x) ? NAN : x;
}

/* Waits for the device and reads the step's result. The rest of a step is only enqueued. */
static tr_status read_result(tr_engine *e, tr_step_result *out) {
    tr_stream *stream = tr_device_compute(e->desc.device);
    TR_TRY(tr_stream_copy(stream, e->result, e->state, sizeof *e->result));
    TR_TRY(tr_optimizer_read(e->optimizer));
    TR_TRY(tr_world_sync(e->desc.world,
                         stream)); /* the copies must be done before the host reads them */
    *out = (tr_step_result){.loss = without_sign(e->result->loss),
                            .grad_norm = without_sign(e->result->grad_norm),
                            .tokens = e->result->valid,
                            .finite = isfinite(e->result->loss) && isfinite(e->result->grad_norm) &&
                                      e->result->valid > 0,
                            .skipped = e->result->skip,
                            .loss_scale = e->result->loss_scale,
                            .noise = tr_optimizer_noise(e->optimizer, e->result->loss_scale),
                            .stop = tr_optimizer_stop_requested(e->optimizer)};
    if (!out->finite) out->unread = tr_world_agree(e->desc.world, tr_feed_status(e->feed));
    return out->unread == TR_ERR_RANK ? TR_ERR_RANK : TR_OK; /* a lost rank cannot agree */
}

tr_status tr_engine_step(tr_engine *e, int64_t step, int64_t optimizer_step, int64_t first_sample,
                         double lr, tr_step_result *out) {
    tr_stream *stream = tr_device_compute(e->desc.device);
    const tr_optim_config *o = &e->desc.optimizer;
    *e->given = (tr_step_state){.seed = e->desc.seed,
                                .step = step,
                                .first_sample = first_sample,
                                .train = 1,
                                .loss_scale = e->loss_scale,
                                .lr = lr,
                                .bias_correction1 = 1 - pow(o->beta1, (double)optimizer_step),
                                .bias_correction2 = 1 - pow(o->beta2, (double)optimizer_step),
                                .square_weight = pow((double)optimizer_step, -0.8),
                                .max_norm = e->desc.max_norm,
                                .loss_limit = e->loss_limit,
                                .norm_limit = e->norm_limit};
    TR_TRY(tr_stream_copy(stream, e->state, e->given, sizeof *e->given));
    const tr_feed_batch from = {e->desc.fetch, e->desc.fetch_context, false, e->now->batch,
                                first_sample};
    TR_TRY(begin(e, e->now, &from));
    TR_TRY(tr_runner_step(e->now->runner));
    return read_result(e, out);
}

void tr_engine_place_buckets(tr_engine *e) {
    const tr_program_set *set = tr_layout_step(e->layout, e->now->batch);
    const tr_program *program = &set->program[e->desc.mesh.index[TR_AXIS_PP]];
    for (int b = 0; b < program->buckets; b++) {
        const tr_program_bucket *place = &program->bucket[b];
        tr_store_place_bucket(e->store, place->stage, place->bucket, e->arena + place->offset);
    }
}

static const tr_step_size *size_of(const tr_engine *e, int64_t batch) {
    for (int k = 1; k <= e->desc.smaller_count; k++)
        if (e->size[k].batch == batch) return &e->size[k];
    return e->size;
}

void tr_engine_set_batch(tr_engine *e, int64_t batch, int64_t next) {
    const tr_step_size *before = e->now;
    e->now = size_of(e, batch);
    e->next = size_of(e, next);
    if (e->now != before) tr_engine_place_buckets(e);
}

void tr_engine_set_limits(tr_engine *e, double loss, double norm) {
    e->loss_limit = loss;
    e->norm_limit = norm;
}

void tr_engine_set_loss_scale(tr_engine *e, double scale) {
    e->loss_scale = scale;
}

/* Runs the validation program on one batch. */
static tr_status validate(tr_engine *e, const tr_feed_batch *from, tr_step_result *out) {
    tr_stream *stream = tr_device_compute(e->desc.device);
    TR_TRY(tr_store_complete(e->store));
    *e->given = (tr_step_state){.seed = e->desc.seed, .loss_scale = 1};
    TR_TRY(tr_stream_copy(stream, e->state, e->given, sizeof *e->given));
    TR_TRY(begin(e, e->size, from));
    TR_TRY(tr_runner_step(e->validation));
    TR_TRY(tr_stream_copy(stream, e->losses, tr_optimizer_losses(e->optimizer),
                          (size_t)e->desc.batch * sizeof *e->losses));
    return read_result(e, out);
}

tr_status tr_engine_evaluate(tr_engine *e, tr_fetch_fn fetch, void *context, int64_t first,
                             tr_step_result *out, const tr_sequence_loss **sequence) {
    const tr_feed_batch from = {fetch, context, true, e->desc.batch, first};
    *sequence = e->losses;
    return validate(e, &from, out);
}

tr_status tr_engine_validate(tr_engine *e, int64_t batches, tr_step_result *out) {
    double sum = 0;
    *out = (tr_step_result){0};
    for (int64_t b = 0; b < batches && out->unread == TR_OK; b++) {
        tr_step_result result;
        const tr_feed_batch from = {e->desc.fetch, e->desc.fetch_context, true, e->desc.batch,
                                    b * e->desc.batch};
        TR_TRY(validate(e, &from, &result));
        if (result.tokens > 0) sum += result.loss * result.tokens; /* otherwise the loss is 0 / 0 */
        out->tokens += result.tokens;
        out->stop |= result.stop;
        out->unread = result.unread;
    }
    out->loss = out->tokens > 0 ? sum / out->tokens : NAN;
    return TR_OK;
}

_Atomic double *tr_engine_stop_word(tr_engine *e) {
    return tr_optimizer_stop_word(e->optimizer);
}

double tr_engine_tensor_waited(const tr_engine *e) {
    return tr_group_waited(e->tp);
}

tr_status tr_engine_complete(tr_engine *e) {
    TR_TRY(tr_store_complete(e->store));
    return tr_world_sync(e->desc.world, tr_device_compute(e->desc.device));
}

tr_store *tr_engine_store(tr_engine *e) {
    return e->store;
}

const tr_model *tr_engine_model(const tr_engine *e) {
    return e->layout->model;
}

const tr_program_set *tr_engine_programs(const tr_engine *e, int64_t batch) {
    if (e->desc.forward_only) return e->layout->program[TR_LAYOUT_VALIDATE];
    return tr_layout_step(e->layout, batch);
}

const tr_layout *tr_engine_layout(const tr_engine *e) {
    return e->layout;
}

bool tr_engine_sums_freely(const tr_engine *e) {
    return tr_world_uses_nccl(e->desc.world) && tr_layout_sums_freely(e->layout);
}

void tr_engine_plan(const tr_engine *e, tr_memory_plan *out) {
    *out = e->plan;
    out->of[TR_MEMORY_NCCL] = tr_device_peak(e->desc.device, TR_MEMORY_NCCL);
    tr_memory_sum(out);
}
