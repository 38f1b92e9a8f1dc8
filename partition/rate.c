#include "partition/rate.h"

#include "device/cpu/cpu.h"
#include "device/speed.h"
#include "layers/placement.h"
#include "partition/optim_cost.h"
#include "partition/rate_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds of one micro-batch of the timed model: enough that products are as efficient as in
 * training, and short enough for some steps a second. */
static const double BATCH_S = 0.2;
/* How long a result is remembered, measured on an idle machine and on a busy one. */
static const int64_t IDLE_LASTS_S = 24 * 3600, BUSY_LASTS_S = 60;
/* MOST_PARAMETERS: on a host device a wider layer's products are hardly faster, but its initial
 * values and optimizer state take seconds and gigabytes. */
enum { LEAST_TOKENS = 16, MOST_VOCAB = 1024, MOST_PARAMETERS = 32 << 20 };
/* How many times the usual time of its step an optimizer takes at most. */
static const double SLOW_OPTIMIZER = 4;

/* What is timed. */
typedef struct timed {
    tr_rate_step step;
    double flops;    /* of a micro-batch */
    double optimize; /* seconds of the optimizer's step at the device's usual speed */
} timed;

static tr_status count_parameters(const tr_model_config *model, int64_t *count) {
    tr_model_shape shape = {.batch = 1, .seq = 1, .dtype = TR_F32, .tp_size = 1};
    tr_model *made;
    TR_TRY(tr_model_create(model, &shape, &made));
    *count = tr_model_parameters(made);
    tr_model_destroy(made);
    return TR_OK;
}

/* Halves the width, and what is proportional to it, until the model has few enough parameters or an
 * odd number of heads. A head keeps its size. */
static tr_status narrow(tr_model_config *model) {
    for (;;) {
        int64_t count = 0;
        TR_TRY(count_parameters(model, &count));
        bool even = model->width % 2 == 0 && model->heads % 2 == 0 && model->mlp_width % 2 == 0;
        if (count <= MOST_PARAMETERS || !even) return TR_OK;
        model->width /= 2;
        model->heads /= 2;
        model->mlp_width /= 2;
        if (model->kv_heads % 2 == 0) model->kv_heads /= 2;
    }
}

/* Returns the seconds that the optimizer's step of a whole model takes at the device's usual
 * speed. */
static double usual_optimize(const tr_model *model, const tr_device *device,
                             const tr_optim_config *optimizer) {
    const tr_device_speed *speed = tr_device_speed_of(device->name);
    const int first[] = {0, model->count}, owner[] = {0};
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    tr_mesh mesh;
    (void)tr_mesh_make(1, 1, 1, 0, 1, &mesh);
    const tr_optim_cost cost =
        tr_optim_cost_of(model, &placement, &mesh, 0, tr_optim_memory_of(optimizer));
    return cost.bytes / speed->memory_bytes + cost.flops / speed->flops_per_s;
}

/* Chooses a model of one layer and a micro-batch of at most `most` FLOPs: first narrower on a host
 * device, then with fewer sequences, then with shorter ones. */
static tr_status choose_model(const tr_config *c, const tr_device *device, double most, timed *t) {
    tr_model_config *model = &t->step.model;
    tr_model *made;
    *model = c->model;
    model->layers = 1;
    /* A rate is that of a step that trains everything. */
    model->tuning = (tr_tuning){.apart = model->tuning.apart};
    model->recompute[0] = '\0';
    if (model->vocab > MOST_VOCAB) model->vocab = MOST_VOCAB;
    t->step.micro_batch = c->train.micro_batch;
    if (tr_device_on_host(device)) TR_TRY(narrow(model));
    for (;;) {
        tr_model_shape shape = {.batch = t->step.micro_batch,
                                .seq = model->context,
                                .dtype = tr_config_dtype(c),
                                .documents = tr_config_packed(c),
                                .tp_size = 1};
        TR_TRY(tr_model_create(model, &shape, &made));
        double tokens = (double)t->step.micro_batch * (double)model->context;
        t->flops = tokens * tr_model_flops_per_token(made);
        t->optimize = usual_optimize(made, device, &t->step.optimizer);
        tr_model_destroy(made);
        if (t->flops <= most) return TR_OK;
        if (t->step.micro_batch > 1) t->step.micro_batch /= 2;
        else if (model->context > LEAST_TOKENS) model->context /= 2;
        else return TR_OK;
    }
}

/* Measures the rate by two steps that differ by one micro-batch; the optimizer's time is in both.
 * Other processes may disturb either, so the difference counts as at most the step of one, and as
 * at least that step without a slow optimizer. *one: the seconds of the step with one. */
static tr_status measure_steps(tr_device *device, tr_rate_time_fn time_step, timed *t, double *one,
                               double *rate) {
    double two;
    t->step.micro_batches = 1;
    TR_TRY(time_step(device, &t->step, one));
    t->step.micro_batches = 2;
    TR_TRY(time_step(device, &t->step, &two));
    const double least = *one - SLOW_OPTIMIZER * t->optimize;
    const double difference = fmax(two - *one, least);
    *rate = t->flops / (difference > 0 ? fmin(difference, *one) : *one);
    return TR_OK;
}

/* Measures with a micro-batch that takes BATCH_S at the device's usual speed, and again with a
 * larger one where the device is faster: larger products are more efficient, as those in training
 * are. */
static tr_status measure(const tr_config *c, tr_device *device, tr_rate_time_fn time_step,
                         double *rate) {
    const double usual = BATCH_S * tr_device_speed_of(device->name)->flops_per_s;
    timed t = {.step = {.dtype = tr_config_dtype(c),
                        .deterministic = c->train.deterministic,
                        .documents = tr_config_packed(c),
                        .optimizer = tr_optim_of(c)}};
    double one, larger;
    /* The end of a step is in both times, and not in the rate. */
    t.step.optimizer.offload = false;
    TR_TRY(choose_model(c, device, usual, &t));
    TR_TRY(measure_steps(device, time_step, &t, &one, rate));
    if (one >= BATCH_S) return TR_OK;
    const double flops = t.flops;
    TR_TRY(choose_model(c, device, usual * BATCH_S / one, &t));
    if (t.flops <= flops) return TR_OK;
    const tr_status status = measure_steps(device, time_step, &t, &one, &larger);
    if (status == TR_OK) *rate = larger;
    if (status != TR_ERR_FIT) return status;
    tr_error_clear(); /* the first one stands */
    return TR_OK;
}

/* Describes everything that the rate depends on. */
static void describe(const tr_config *c, tr_device *device, char *text, size_t size) {
    char host[256] = "", where[64] = "";
    (void)gethostname(host, sizeof host - 1);
    (void)tr_device_identity(device, where, sizeof where);
    const tr_model_config *m = &c->model;
    (void)snprintf(text, size,
                   "%s|%s|%s|%s|%s|%d|%s|%s|%lld|%lld|%lld|%lld|%lld|%s|%lld|%lld|%lld|%lld|%d|%d|%"
                   "d|%d|%d|%s|%s|%s",
                   TRIREME_VERSION, host, where, tr_cpu_isa(), device->name, device->threads,
                   c->train.precision, m->family, (long long)m->width, (long long)m->heads,
                   (long long)m->kv_heads, (long long)m->head_size, (long long)m->mlp_width,
                   m->activation, (long long)m->window, (long long)m->context, (long long)m->vocab,
                   (long long)c->train.micro_batch, m->qk_norm, m->dropout > 0,
                   c->train.deterministic, tr_config_packed(c), tr_optim_of(c).kind,
                   c->optim.moments, c->optim.master, c->optim.gradients);
}

/* Returns true when other processes ran on the CPUs in the last minute. The load is a mean, in
 * which what ran t seconds ago has a weight in proportion to exp(-t / 60); `own` is this process's
 * part, if it has run without a pause. */
static bool is_busy(const tr_device *device) {
    double load;
    const double own = 1 - exp(-(double)clock() / CLOCKS_PER_SEC / 60);
    return tr_device_on_host(device) && getloadavg(&load, 1) == 1 && load > own + 0.5;
}

tr_status tr_rate_measure(const tr_config *config, tr_device *device, tr_rate_time_fn time_step,
                          double *flops_per_s, bool *busy) {
    char key[1024], busy_key[sizeof key + 8];
    describe(config, device, key, sizeof key);
    (void)snprintf(busy_key, sizeof busy_key, "%s|busy", key);
    *busy = false;
    if (tr_rate_cache_read(key, IDLE_LASTS_S, flops_per_s)) return TR_OK;
    *busy = true;
    if (tr_rate_cache_read(busy_key, BUSY_LASTS_S, flops_per_s)) return TR_OK;
    *busy = is_busy(device);
    TR_TRY(measure(config, device, time_step, flops_per_s));
    tr_rate_cache_write(*busy ? busy_key : key, *flops_per_s);
    return TR_OK;
}
