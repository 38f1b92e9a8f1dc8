#include "train/trainer.h"

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "train/data.h"
#include "train/engine.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/request.h"
#include "train/snapshot.h"
#include "train/trace.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

typedef struct trainer {
    const tr_config *config;
    const tr_train_options *options;
    tr_world *world;
    tr_mesh mesh;
    tr_device *device;
    tr_data *data;
    tr_schedule *schedule;
    tr_engine *engine;
    tr_ckpt_tensor *tensors;
    int tensors_count;
    char root[TR_CONFIG_PATH + 8]; /* of the checkpoints */
    tr_ckpt_state *state;
    int64_t saved_step;  /* newest step that is saved; -1: none */
    tr_metrics *metrics; /* rank 0 */
    bool unrecorded;     /* the last step's metrics could not be written */
    tr_progress progress;
    size_t planned_bytes;
    char transport[192];    /* a line for people; "": the usual one */
    double val_loss;        /* the last one */
    tr_record *trace;       /* NULL: none, or written */
    int64_t trace_from;     /* the first step recorded */
    tr_memory_rank *memory; /* [ranks] */
    /* Rank 0, for the report; each may be NULL: */
    tr_timeline *planned, *measured; /* measured: when a trace was recorded */
    bool unreported;                 /* the last report could not be written */
} trainer;

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool leads(const trainer *t) {
    return tr_world_rank(t->world) == 0;
}

static tr_status fetch(void *context, bool validation, int64_t sample, int32_t *tokens,
                       int32_t *labels) {
    const tr_data *data = context;
    if (validation) tr_data_validation_sample(data, sample, tokens, labels);
    else tr_data_sample(data, sample, tokens, labels);
    return TR_OK;
}

/* The board shows what this rank does; between instructions it does nothing. */
static void observe(void *context, const tr_instr *instr, bool begin) {
    const trainer *t = context;
    static const char letter[TR_INSTR_KINDS] = {
        [TR_INSTR_F] = 'F',         [TR_INSTR_I] = 'I',      [TR_INSTR_W] = 'W',
        [TR_INSTR_B] = 'B',         [TR_INSTR_RECV] = 'R',   [TR_INSTR_SEND] = 'S',
        [TR_INSTR_WAIT_SENT] = 'S', [TR_INSTR_REDUCE] = 'G', [TR_INSTR_FINISH] = 'O'};
    bool at_once = tr_device_on_host(t->device);
    if (t->trace && !at_once)
        tr_record_enqueue(t->trace, tr_device_compute(t->device), instr, begin);
    if (t->trace && at_once && !begin) tr_record_observe(t->trace, instr, false);
    tr_board_set_action(t->options->board, instr->stage, instr->micro_batch,
                        begin ? letter[instr->kind] : 0);
    if (t->trace && at_once && begin) tr_record_observe(t->trace, instr, true);
}

/* A line for people that ends no run. */
__attribute__((format(printf, 2, 3))) static void warn(trainer *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tr_progress_close(&t->progress); /* leaves a refreshed line whole */
    fputs("trireme: warning: ", t->options->warnings);
    vfprintf(t->options->warnings, format, args);
    fputc('\n', t->options->warnings);
    va_end(args);
}

/* --- set-up ----------------------------------------------------------------------------------- */

/* The order of a step; one line when its sums have another order than other schedules'. */
static tr_status open_schedule(trainer *t) {
    tr_schedule_report report;
    TR_TRY(tr_request_schedule(t->config, &t->schedule, &report));
    if (!report.w_ascending && leads(t)) warn(t, "%s", report.note);
    return TR_OK;
}

/* What a rank does by itself: failures here are agreed on afterwards. */
static tr_status open_local(trainer *t) {
    const tr_config *c = t->config;
    TR_TRY(tr_config_check(c, tr_world_size(t->world)));
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(t->world), tr_world_size(t->world), &t->mesh));
    tr_device_options device = {.threads = (int)c->train.threads,
                                .host_rank = tr_world_host_rank(t->world),
                                .ranks = tr_world_size(t->world),
                                .deterministic = c->train.deterministic};
    TR_TRY(tr_device_open(c->device.name, &device, &t->device));
    TR_TRY(open_schedule(t));
    return tr_data_open(c->data.path, c->data.format, c->data.validation, c->model.context,
                        (uint64_t)c->train.seed, &t->data);
}

/* Collective. What carries the data between the ranks' devices. */
static tr_status choose_transport(trainer *t) {
    const char *name = t->config->parallel.transport;
    tr_data_plane want = strcmp(name, "nccl") == 0  ? TR_DATA_NCCL
                         : strcmp(name, "mpi") == 0 ? TR_DATA_MPI
                                                    : TR_DATA_AUTO;
    TR_TRY(tr_world_use(t->world, t->device, want, t->transport, sizeof t->transport));
    if (tr_world_uses_nccl(t->world)) tr_world_nccl_text(t->transport, sizeof t->transport);
    return TR_OK;
}

/* Collective. Hosts whose files differ, or whose search for an order came to another, would meet in
 * a wait that never ends. */
static tr_status compare_orders(trainer *t) {
    char *text = NULL;
    size_t ranks = (size_t)tr_world_size(t->world);
    uint64_t mine, *all = NULL;
    tr_status status = tr_schedule_print(t->schedule, &text);
    if (status == TR_OK) status = tr_calloc(ranks, sizeof *all, &all);
    TR_TRY_OUT(tr_world_agree(t->world, status));
    mine = XXH3_64bits(text, strlen(text));
    TR_TRY_OUT(tr_world_gather_all(t->world, &mine, all, sizeof mine));
    for (size_t r = 1; r < ranks && status == TR_OK; r++)
        if (all[r] != all[0])
            status = TR_FAIL(TR_ERR_CONFIG,
                             "rank %zu has another order of micro-batches than rank 0: give every "
                             "rank the same config and the same file as parallel.schedule",
                             r);
out:
    free(all);
    free(text);
    return status;
}

static tr_status make_engine(trainer *t) {
    const tr_config *c = t->config;
    tr_engine_desc desc = {.world = t->world,
                           .device = t->device,
                           .mesh = t->mesh,
                           .model = tr_request_model(c),
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = t->schedule,
                           .seed = (uint64_t)c->train.seed,
                           .max_norm = (float)c->optim.clip,
                           .adamw = {.beta1 = (float)c->optim.beta1,
                                     .beta2 = (float)c->optim.beta2,
                                     .eps = (float)c->optim.eps,
                                     .weight_decay = (float)c->optim.weight_decay},
                           .fetch = fetch,
                           .fetch_context = t->data,
                           .observe = observe,
                           .observe_context = t};
    TR_TRY(tr_request_memory(c, t->device, tr_world_sharers(t->world), &desc.memory));
    TR_TRY(tr_engine_create(&desc, &t->engine));
    return tr_snapshot_tensors(tr_engine_store(t->engine), &t->mesh, &t->tensors,
                               &t->tensors_count);
}

static tr_status start_state(trainer *t) {
    char *text;
    TR_TRY(tr_calloc(1, sizeof *t->state, &t->state));
    (void)snprintf(t->root, sizeof t->root, "%s/ckpt", t->config->log.dir);
    t->saved_step = -1;
    t->state->seed = (uint64_t)t->config->train.seed;
    TR_TRY(tr_config_text(t->config, &text));
    bool fits = strlen(text) < sizeof t->state->config;
    if (fits) strcpy(t->state->config, text);
    free(text);
    return fits ? TR_OK
                : TR_FAIL(TR_ERR_CONFIG,
                          "the resolved config is longer than %zu bytes: shorten its "
                          "paths",
                          sizeof t->state->config);
}

/* Rank 0: is there something to resume from, and is it of this model? Shapes alone would not tell
 * other heads from these. */
static tr_status check_saved(trainer *t) {
    tr_ckpt_state *saved;
    tr_config *then = NULL;
    TR_TRY(tr_calloc(1, sizeof *saved, &saved));
    tr_status status = tr_ckpt_read_state(t->root, -1, saved);
    if (status == TR_ERR_NOFILE)
        status = TR_FAIL(TR_ERR_NOFILE,
                         "there is no checkpoint under '%s' to resume from: start the run without "
                         "--resume",
                         t->root);
    if (status == TR_OK) status = tr_calloc(1, sizeof *then, &then);
    /* A config that this version cannot read leaves it to the tensors. */
    if (status == TR_OK &&
        tr_config_parse(saved->config, strlen(saved->config), t->root, NULL, 0, then) == TR_OK)
        status = tr_config_check_model(t->config, then, t->root);
    free(then);
    free(saved);
    return status;
}

/* Collective. Parameters and counters from the newest valid step. */
static tr_status resume(trainer *t) {
    char skipped[256] = "", *config;
    TR_TRY(tr_world_agree(t->world, leads(t) ? check_saved(t) : TR_OK));
    TR_TRY(tr_strdup(t->state->config, &config));
    tr_status status =
        tr_ckpt_load(t->world, t->root, -1, t->tensors, t->tensors_count, t->state, skipped);
    strcpy(t->state->config, config); /* this run's, which may have another layout */
    free(config);
    TR_TRY(status);
    if (skipped[0] && leads(t))
        warn(t, "resuming from step %lld, because a newer one is not valid: %s",
             (long long)t->state->step, skipped);
    if (t->state->seed != (uint64_t)t->config->train.seed)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "train.seed is %lld, but the checkpoint was made with %llu: a run is resumed "
            "with the seed it began with",
            (long long)t->config->train.seed, (unsigned long long)t->state->seed);
    t->saved_step = t->state->step;
    return tr_store_publish(tr_engine_store(t->engine));
}

/* The order that auto found, to be looked at, or to be named as parallel.schedule elsewhere. */
static tr_status write_order(trainer *t) {
    char path[TR_CONFIG_PATH + 16], *text;
    (void)snprintf(path, sizeof path, "%s/schedule.csv", t->config->log.dir);
    TR_TRY(tr_schedule_print(t->schedule, &text));
    FILE *f = fopen(path, "w");
    bool written = f && fputs(text, f) >= 0;
    if (f && fclose(f)) written = false;
    free(text);
    return written ? TR_OK
                   : TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(errno));
}

/* Rank 0 keeps the records of the run. */
static tr_status open_records(trainer *t) {
    if (!leads(t)) return TR_OK;
    int64_t done = t->options->resume ? t->state->step : -1;
    TR_TRY(tr_metrics_open(t->config, done, &t->metrics));
    return tr_request_is_auto(t->config) ? write_order(t) : TR_OK;
}

static tr_status open_trace(trainer *t) {
    if (!t->options->trace) return TR_OK;
    const tr_program_set *programs = tr_engine_programs(t->engine);
    size_t count = (size_t)programs->program[t->mesh.index[TR_AXIS_PP]].count;
    t->trace_from = t->state->step + 2; /* the first step warms up */
    return tr_record_open(count * (size_t)t->options->trace, &t->trace);
}

static void print_plan(trainer *t) {
    tr_memory_plan plan;
    char cut[512];
    const tr_config *c = t->config;
    tr_engine_plan(t->engine, &plan);
    tr_engine_cut(t->engine, cut, sizeof cut);
    t->planned_bytes = plan.total;
    FILE *out = t->options->out;
    fprintf(out, "model    %s, %lld layers, width %lld, %.2f M parameters, %s\n", c->model.family,
            (long long)c->model.layers, (long long)c->model.width,
            (double)tr_model_parameters(tr_engine_model(t->engine)) * 1e-6, c->train.precision);
    fprintf(out, "layout   pp %d x tp %d x dp %d, %s, %lld micro-batches; stages of layers %s\n",
            t->mesh.degree[TR_AXIS_PP], t->mesh.degree[TR_AXIS_TP], t->mesh.degree[TR_AXIS_DP],
            c->parallel.schedule,
            (long long)(c->train.batch / c->parallel.dp / c->train.micro_batch), cut);
    tr_memory_print_plan(&plan, out);
    if (t->transport[0]) fprintf(out, "transport %s\n", t->transport);
    fflush(out);
}

/* What a GPU holds beside the plans of the ranks on it: CUDA's contexts, the libraries' memory. */
static void print_device(const trainer *t) {
    const double mib = 1 << 20;
    char where[64];
    size_t available, total, planned = 0;
    if (tr_device_identity(t->device, where, sizeof where) != TR_OK || !strcmp(where, "host") ||
        tr_device_memory(t->device, &available, &total) != TR_OK)
        return;
    for (int r = 0; r < tr_world_size(t->world); r++)
        if (tr_world_shares(t->world, r)) planned += t->memory[r].taken_total;
    double used = (double)(total - available);
    int sharers = tr_world_sharers(t->world);
    fprintf(t->options->out,
            "device   %s %s, %d rank%s: %.1f of %.1f MiB in use, %.1f of them beside the plan "
            "(context, libraries, others)\n",
            t->device->name, where, sharers, sharers == 1 ? "" : "s", used / mib,
            (double)total / mib, (used - (double)planned) / mib);
    fflush(t->options->out);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Collective. A failed save is a warning unless it is the run's last. */
static tr_status save(trainer *t, bool last) {
    tr_status status = tr_ckpt_save(t->world, t->root, t->state, t->tensors, t->tensors_count);
    if (status == TR_OK) {
        t->saved_step = t->state->step;
        if (leads(t)) status = tr_ckpt_retain(t->root, (int)t->config->checkpoint.keep);
        if (status != TR_OK) /* what is kept too long harms nobody */
            warn(t, "%s", tr_error_message());
        return TR_OK;
    }
    if (last || status != TR_ERR_IO) return status;
    if (leads(t))
        warn(t, "step %lld was not saved: %s", (long long)t->state->step, tr_error_message());
    return TR_OK;
}

static tr_status validate(trainer *t, double *loss) {
    int64_t batches = t->config->train.validate_batches;
    int64_t whole = tr_data_validation_windows(t->data) / t->config->train.batch;
    if (batches == 0 || batches > whole) batches = whole > 0 ? whole : 1;
    return tr_engine_validate(t->engine, batches, loss);
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static tr_status not_finite(const trainer *t, int64_t step, const tr_step_result *result) {
    char saved[64] = "no step is saved";
    if (t->saved_step >= 0)
        (void)snprintf(saved, sizeof saved, "step %lld is saved", (long long)t->saved_step);
    return TR_FAIL(
        TR_ERR_DATA,
        "training has diverged: at step %lld the loss is %g and the gradient's norm %g; lower "
        "optim.lr, lengthen optim.warmup, or set a smaller optim.clip (%s)",
        (long long)step, result->loss, result->grad_norm, saved);
}

/* A step without its record is worth more than no step: one warning until records come again. */
static void record(trainer *t, const tr_step_result *result, double lr, double seconds,
                   double val_loss) {
    const tr_metrics_record line = {.step = t->state->step,
                                    .loss = result->loss,
                                    .grad_norm = result->grad_norm,
                                    .lr = lr,
                                    .tokens_per_s = result->tokens / seconds,
                                    .val_loss = val_loss};
    if (!isnan(val_loss)) t->val_loss = val_loss;
    tr_progress_state shown = {.step = line.step,
                               .steps = t->config->train.steps,
                               .loss = line.loss,
                               .grad_norm = line.grad_norm,
                               .lr = lr,
                               .tokens_per_s = line.tokens_per_s,
                               .val_loss = t->val_loss,
                               .memory = tr_memory_taken(t->device),
                               .memory_planned = t->planned_bytes};
    tr_progress_show(&t->progress, &shown, now_s());
    bool failed = tr_metrics_write(t->metrics, &line) != TR_OK;
    if (failed && !t->unrecorded)
        warn(t, "the metrics of step %lld and maybe more are lost: %s", (long long)line.step,
             tr_error_message());
    t->unrecorded = failed;
}

/* Collective. The recorded steps as a file of the run directory; that it cannot be written ends no
 * run. */
static tr_status write_trace(trainer *t) {
    tr_timeline *measured = NULL, *planned = NULL;
    char path[TR_CONFIG_PATH + 16];
    if (!t->trace) return TR_OK;
    tr_status status = tr_trace_gather(t->world, &t->mesh, tr_engine_programs(t->engine), t->trace,
                                       &measured, &planned);
    tr_record_close(t->trace);
    t->trace = NULL;
    if (!leads(t)) return status;
    (void)snprintf(path, sizeof path, "%s/trace.json", t->config->log.dir);
    if (status != TR_OK) warn(t, "no trace: %s", tr_error_message());
    else if (!measured)
        warn(t, "no trace: it begins at step %lld, and the run ended before",
             (long long)t->trace_from);
    else if (tr_trace_write(path, measured, planned) != TR_OK)
        warn(t, "no trace: %s", tr_error_message());
    if (measured) { /* the report shows them from now on */
        tr_timeline_destroy(t->planned);
        t->planned = planned;
        t->measured = measured;
    }
    return TR_OK;
}

/* Collective. What every rank has taken by now. */
static tr_status gather_memory(trainer *t) {
    tr_memory_plan plan;
    tr_engine_plan(t->engine, &plan);
    tr_memory_rank mine = tr_memory_measure(t->device, &plan);
    return tr_world_gather_all(t->world, &mine, t->memory, sizeof mine);
}

/* Collective. What the report tells of memory and of the plan; without it there is less in it. */
static tr_status open_report(trainer *t) {
    size_t ranks = (size_t)tr_world_size(t->world);
    /* A rank without memory keeps the others from waiting for its part. */
    TR_TRY(tr_world_agree(t->world, tr_calloc(ranks, sizeof *t->memory, &t->memory)));
    TR_TRY(gather_memory(t));
    if (leads(t) && tr_report_plan(tr_engine_programs(t->engine), tr_engine_table(t->engine),
                                   &t->planned) != TR_OK)
        warn(t, "the report has no timeline: %s", tr_error_message());
    return TR_OK;
}

/* Rank 0. That it cannot be written ends no run: one warning until it can be again, and none where
 * the metrics have told of a full disk. */
static void write_report(trainer *t) {
    const tr_timeline *timelines[2];
    int count = 0;
    if (!leads(t)) return;
    if (t->planned) timelines[count++] = t->planned;
    if (t->measured) timelines[count++] = t->measured;
    const tr_report report = {.config = t->config,
                              .memory = t->memory,
                              .ranks = tr_world_size(t->world),
                              .timelines = timelines,
                              .timelines_count = count};
    bool failed = tr_report_write(&report) != TR_OK;
    if (failed && !t->unreported && !t->unrecorded) warn(t, "no report: %s", tr_error_message());
    t->unreported = failed;
}

/* Collective. One step with all that belongs to it; *stop when a rank asked to stop. */
static tr_status take_step(trainer *t, bool *stop, bool *alone) {
    const tr_config *c = t->config;
    const tr_lr lr = {.highest = c->optim.lr,
                      .lowest = c->optim.min_lr,
                      .warmup = c->optim.warmup,
                      .steps = c->train.steps};
    int64_t step = t->state->step + 1;
    double begin = now_s(), val_loss = NAN;
    tr_step_result result;
    tr_board_set_step(t->options->board, step);
    int64_t traced = step - t->trace_from;
    if (t->trace) tr_record_step(t->trace, traced >= 0 ? (int32_t)traced : -1);
    *alone = true; /* inside a step nobody waits for an agreement */
    TR_TRY(tr_engine_step(t->engine, step, t->state->optimizer_step + 1, t->state->next_sample,
                          (float)tr_lr_at(&lr, step), tr_board_stop_requested(t->options->board),
                          &result));
    *alone = false;
    if (!result.finite) { /* every rank sees the same result */
        write_report(t);
        return not_finite(t, step, &result);
    }
    t->state->step = step;
    t->state->optimizer_step++;
    t->state->next_sample += c->train.batch;
    t->state->tokens_seen += result.tokens;
    *stop = result.stop;
    double seconds = now_s() - begin;
    if (t->trace) tr_record_step(t->trace, -1);
    *alone = true;
    if (traced + 1 == t->options->trace) TR_TRY(write_trace(t));
    if (c->data.validation > 0 && (due(c->train.validate_every, step) || step == c->train.steps))
        TR_TRY(validate(t, &val_loss));
    *alone = false;
    if (leads(t)) record(t, &result, tr_lr_at(&lr, step), seconds, val_loss);
    return TR_OK;
}

/* Collective. A request to stop that came during set-up: *stop, and what was set up is saved, so
 * that such a run too can be resumed. */
static tr_status stop_before_steps(trainer *t, bool *stop) {
    bool mine = tr_board_stop_requested(t->options->board);
    tr_status all =
        tr_world_agree(t->world, mine ? TR_FAIL(TR_ERR_STOPPED, "stopped by a signal") : TR_OK);
    *stop = all == TR_ERR_STOPPED;
    if (!*stop) return all;
    tr_error_clear();
    return t->saved_step == t->state->step ? TR_OK : save(t, true);
}

static tr_status train_steps(trainer *t, bool *alone) {
    const tr_config *c = t->config;
    bool stop = false;
    TR_TRY(stop_before_steps(t, &stop));
    while (t->state->step < c->train.steps && !stop) {
        TR_TRY(take_step(t, &stop, alone));
        bool last = t->state->step == c->train.steps || stop;
        if (last || due(c->checkpoint.every, t->state->step)) TR_TRY(save(t, last));
        /* Not where a save has just found no room; after the last step it comes with the trace. */
        if (!last && t->saved_step == t->state->step) write_report(t);
    }
    if (leads(t)) tr_progress_close(&t->progress);
    *alone = true;
    TR_TRY(write_trace(t)); /* of fewer steps than were asked for */
    *alone = false;
    TR_TRY(gather_memory(t));
    write_report(t);
    if (leads(t)) {
        tr_memory_print_taken(t->memory, tr_world_size(t->world), t->options->out);
        print_device(t);
    }
    if (leads(t) && t->saved_step == t->state->step)
        fprintf(t->options->out, "saved    %s/step-%08lld\n", t->root, (long long)t->saved_step);
    if (stop && t->state->step < c->train.steps)
        return TR_FAIL(
            TR_ERR_STOPPED,
            "stopped by a signal after step %lld, which is saved: continue with the same command "
            "and --resume",
            (long long)t->state->step);
    return TR_OK;
}

static void close_all(trainer *t) {
    if (leads(t)) tr_progress_close(&t->progress);
    tr_metrics_close(t->metrics);
    tr_timeline_destroy(t->planned);
    tr_timeline_destroy(t->measured);
    free(t->memory);
    free(t->tensors);
    free(t->state);
    tr_engine_destroy(t->engine);
    tr_schedule_destroy(t->schedule);
    tr_data_close(t->data);
    if (t->device) tr_device_close(t->device);
    tr_record_close(t->trace); /* after the stream that may still write to it */
}

tr_status tr_train(const tr_config *config, tr_world *world, const tr_train_options *options,
                   bool *alone) {
    trainer t = {
        .config = config,
        .options = options,
        .world = world,
        .val_loss = NAN,
    };
    tr_status status;
    *alone = false;
    TR_TRY_OUT(tr_world_agree(world, open_local(&t)));
    TR_TRY_OUT(compare_orders(&t));
    TR_TRY_OUT(choose_transport(&t));
    TR_TRY_OUT(tr_world_agree(world, make_engine(&t)));
    TR_TRY_OUT(tr_world_agree(world, start_state(&t)));
    if (options->resume) TR_TRY_OUT(tr_world_agree(world, resume(&t)));
    TR_TRY_OUT(tr_world_agree(world, open_records(&t)));
    if (!options->resume)
        TR_TRY_OUT(tr_world_agree(
            world, tr_store_init(tr_engine_store(t.engine), (uint64_t)config->train.seed)));
    TR_TRY_OUT(tr_world_agree(world, open_trace(&t)));
    TR_TRY_OUT(open_report(&t));
    if (leads(&t)) {
        print_plan(&t);
        print_device(&t);
        if (options->resume)
            fprintf(options->out, "resumed  after step %lld of %lld\n", (long long)t.state->step,
                    (long long)config->train.steps);
        tr_progress_open(options->out, config->log.every, t.state->step, now_s(), &t.progress);
    }
    TR_TRY_OUT(train_steps(&t, alone));
out:
    if (*alone) tr_world_give_up(world, status);
    close_all(&t);
    return status;
}
