#include "train/recorder.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "config/batches.h"
#include "partition/network.h"
#include "partition/request.h"
#include "train/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINE = 2048 };

/* Writes lines only to log.txt. */
static void keep(tr_recorder *r, const char *text) {
    tr_error before;
    if (!r->leads || r->log.fd < 0) return;
    tr_error_save(&before);
    bool failed = tr_append_write(&r->log, text, strlen(text)) != TR_OK, first = !r->unlogged;
    r->unlogged = failed;
    if (failed && first && !r->unrecorded)
        tr_recorder_warn(r, "lines are missing in log.txt: %s", tr_error_message());
    tr_error_restore(&before);
}

/* Notes a text of the set-up. Returns true when it was printed before. */
static bool is_repeated(tr_said *said, const char *text) {
    const uint64_t hash = tr_hash_name(text);
    for (int i = 0; i < said->count; i++)
        if (said->text[i] == hash) return true;
    if ((size_t)said->count < sizeof said->text / sizeof *said->text)
        said->text[said->count++] = hash;
    return false;
}

/* Prints whole lines for people. */
static void print(tr_recorder *r, FILE *file, const char *text) {
    if (r->said && is_repeated(r->said, text)) return;
    tr_progress_hold(&r->progress);
    fputs(text, file);
    tr_progress_release(&r->progress);
    keep(r, text);
}

__attribute__((format(printf, 4, 0))) static void
print_line(tr_recorder *r, FILE *file, const char *begin, const char *format, va_list args) {
    char line[MOST_LINE], whole[MOST_LINE + 32];
    (void)vsnprintf(line, sizeof line, format, args);
    (void)snprintf(whole, sizeof whole, "%s%s\n", begin, line);
    print(r, file, whole);
}

void tr_recorder_say(tr_recorder *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_line(r, r->out, "", format, args);
    va_end(args);
}

void tr_recorder_warn(tr_recorder *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_line(r, r->warnings, "trireme: warning: ", format, args);
    va_end(args);
}

void tr_recorder_keep(tr_recorder *r, const char *format, ...) {
    char text[2 * MOST_LINE];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(r, text);
}

/* Opens log.txt unless it is open. */
static void open_log(tr_recorder *r) {
    char path[TR_CONFIG_PATH + 16];
    if (r->log.fd >= 0) return;
    (void)snprintf(path, sizeof path, "%s/log.txt", r->config->log.dir);
    if (tr_append_open(path, -1, &r->log) == TR_OK) return;
    tr_append_close(&r->log);
    tr_recorder_warn(r, "log.txt is not written: %s", tr_error_message());
}

void tr_recorder_begin(tr_recorder *r, const tr_board *board) {
    const tr_config *c = r->config;
    tr_progress_options options = {.file = r->out,
                                   .every = c->log.every,
                                   .micro_batches =
                                       c->train.batch / c->parallel.dp / c->train.micro_batch,
                                   .board = board};
    r->val_loss = NAN;
    r->log.fd = -1;
    tr_progress_open(&options, tr_now_s(), &r->progress);
    if (r->leads) tr_progress_watch(&r->progress);
}

/* Only rank 0 has records to open. */
tr_status tr_recorder_open(tr_recorder *r, int64_t done) {
    if (!r->leads) return TR_OK;
    bool moved = false;
    if (done < 0) TR_TRY(tr_metrics_set_aside(r->config->log.dir, &moved));
    if (moved)
        tr_recorder_say(r,
                        "begin    at step 1: an earlier run in '%s' saved nothing; its metrics are "
                        "now in metrics.old.jsonl",
                        r->config->log.dir);
    return tr_metrics_open(r->config, done, &r->metrics);
}

void tr_recorder_reopen(tr_recorder *r, int64_t done) {
    tr_metrics *again;
    tr_append_close(&r->log);
    open_log(r);
    if (tr_metrics_open(r->config, done, &again) != TR_OK) return; /* the next record warns */
    tr_metrics_close(r->metrics);
    r->metrics = again;
}

void tr_recorder_go_back(tr_recorder *r, int64_t done) {
    if (tr_metrics_go_back(r->metrics, done) != TR_OK)
        tr_recorder_warn(r, "the metrics of steps after %lld stay and will be repeated: %s",
                         (long long)done, tr_error_message());
}

void tr_recorder_show_plan(tr_recorder *r, const tr_engine *engine, const char *transport) {
    tr_memory_plan plan;
    char cut[512], costs[256], batches[MOST_LINE], mesh[TR_CONFIG_MESH];
    const tr_config *c = r->config;
    tr_engine_plan(engine, &plan);
    tr_layout_cut(tr_engine_layout(engine), cut, sizeof cut);
    r->planned_bytes = plan.total;
    r->flops_per_token = tr_model_flops_per_token(tr_engine_layout(engine)->model);
    char *text = NULL;
    size_t size;
    open_log(r);
    FILE *out = open_memstream(&text, &size);
    if (!out) return; /* no memory: the run fails later */
    tr_request_costs(c, costs, sizeof costs);
    if (costs[0]) fprintf(out, "slow     %s\n", costs);
    const int64_t parameters = tr_model_parameters(tr_engine_model(engine));
    const int64_t trained = tr_model_trained_parameters(tr_engine_model(engine));
    fprintf(out, "model    %s, %lld layers, width %lld, %.2f M parameters, %s\n", c->model.family,
            (long long)c->model.layers, (long long)c->model.width, (double)parameters * 1e-6,
            c->train.precision);
    if (strcmp(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_NONE)) != 0)
        fprintf(out, "recompute %s\n", c->model.recompute);
    if (trained < parameters)
        fprintf(out, "trained  %.2f M parameters, %.2f M frozen\n", (double)trained * 1e-6,
                (double)(parameters - trained) * 1e-6);
    fprintf(out, "layout   %s, %s, %lld micro-batches; stages of layers %s\n",
            tr_config_mesh_text(c, mesh, sizeof mesh), c->parallel.schedule,
            (long long)(c->train.batch / c->parallel.dp / c->train.micro_batch), cut);
    if (tr_engine_layout(engine)->for_room)
        fprintf(out, "cut      for the memory of a rank, in which the fastest cut does not fit\n");
    if (tr_config_batches_text(c, batches, sizeof batches)[0])
        fprintf(out, "batch    %s\n", batches);
    tr_memory_print_plan(&plan, out);
    if (transport[0]) fprintf(out, "transport %s\n", transport);
    if (tr_engine_sums_freely(engine))
        fprintf(out, "sums     NCCL adds the gradients of three or more ranks in an order of its "
                     "own, so that bits may depend on parallel.zero and the cut; with "
                     "train.deterministic=true ranks add them in their order\n");
    if (fclose(out) == 0) print(r, r->out, text);
    free(text);
}

tr_status tr_recorder_show_fallbacks(tr_recorder *r, const tr_device *device) {
    struct fallbacks {
        int32_t count;
        char text[252];
    } mine = {0}, *all;
    int ranks = tr_world_size(r->world), first = ranks;
    long long total = 0;
    TR_TRY(tr_world_calloc(r->world, (size_t)ranks, sizeof *all, &all));
    mine.count = tr_device_fallbacks(device, mine.text, sizeof mine.text);
    tr_status status = tr_world_gather_all(r->world, &mine, all, sizeof mine);
    for (int k = ranks - 1; k >= 0 && status == TR_OK; k--) {
        total += all[k].count;
        if (all[k].count) first = k;
    }
    if (r->leads && total > 0)
        tr_recorder_say(
            r, "slow     %lld operator%s not run whole by cuBLASLt, cuDNN or oneDNN; rank %d: %s",
            total, total == 1 ? "" : "s", first, all[first].text);
    free(all);
    return status;
}

/* Prints how much of the GPU's memory is outside its ranks' plans: CUDA's contexts and the
 * libraries'. */
static void print_device(tr_recorder *r, tr_device *device) {
    const double mib = 1 << 20;
    char where[64];
    size_t available, total, planned = 0;
    if (tr_device_identity(device, where, sizeof where) != TR_OK || !strcmp(where, "host") ||
        tr_device_memory(device, &available, &total) != TR_OK)
        return;
    for (int k = 0; k < tr_world_size(r->world); k++)
        if (tr_world_shares(r->world, k)) planned += r->memory[k].taken_total;
    double used = (double)(total - available);
    int sharers = tr_world_sharers(r->world);
    tr_recorder_say(r,
                    "device   %s %s, %d rank%s: %.1f of %.1f MiB in use, %.1f of them outside the "
                    "plan (context, libraries, others)",
                    device->name, where, sharers, sharers == 1 ? "" : "s", used / mib,
                    (double)total / mib, (used - (double)planned) / mib);
}

tr_status tr_recorder_gather_memory(tr_recorder *r, tr_device *device, const tr_engine *engine) {
    tr_memory_plan plan;
    tr_engine_plan(engine, &plan);
    tr_memory_rank mine = tr_memory_measure(device, &plan);
    return tr_world_gather_all(r->world, &mine, r->memory, sizeof mine);
}

tr_status tr_recorder_gather_waits(tr_recorder *r, const tr_waits *mine) {
    return tr_world_gather_all(r->world, mine, r->waits, sizeof *mine);
}

tr_status tr_recorder_open_report(tr_recorder *r, tr_device *device, const tr_engine *engine,
                                  const tr_mesh *mesh) {
    size_t ranks = (size_t)tr_world_size(r->world);
    /* All ranks agree first, so that they do not wait for a rank without memory. */
    TR_TRY(tr_world_calloc(r->world, ranks, sizeof *r->memory, &r->memory));
    TR_TRY(tr_world_calloc(r->world, ranks, sizeof *r->waits, &r->waits));
    TR_TRY(tr_recorder_gather_memory(r, device, engine));
    if (!r->leads) return TR_OK;
    const tr_layout *layout = tr_engine_layout(engine);
    const tr_simulated_links links = tr_network_links(r->config, mesh, 0);
    if (tr_report_plan(layout->program[TR_LAYOUT_TRAIN], &layout->table, &links, &r->planned) !=
            TR_OK ||
        tr_traffic_of(r->config, layout, 0, &r->traffic) != TR_OK)
        tr_recorder_warn(r, "the report has no planned step: %s", tr_error_message());
    return TR_OK;
}

void tr_recorder_start(tr_recorder *r, tr_device *device, int64_t done, bool resumed) {
    const long long steps = (long long)r->config->train.steps, last = (long long)done;
    char remedy[96] = "";
    print_device(r, device);
    if (last >= steps)
        (void)snprintf(remedy, sizeof remedy,
                       ": no step is left; to continue, set train.steps above %lld", last);
    if (resumed) tr_recorder_say(r, "resumed  after step %lld of %lld%s", last, steps, remedy);
    tr_progress_start(&r->progress, done, tr_now_s());
}

/* Returns the work of the steps after `step`, in steps like the mean of those that measure the time
 * left. */
static double work_left(const tr_recorder *r, int64_t step) {
    const int64_t first = tr_progress_paced_from(&r->progress, step);
    const double mean = tr_config_sequences(r->config, first + 1, step) / (double)(step - first);
    return step > first ? tr_config_sequences(r->config, step + 1, r->config->train.steps) / mean
                        : 0;
}

void tr_recorder_step(tr_recorder *r, tr_device *device, const tr_metrics_record *line) {
    tr_error before;
    tr_error_save(&before);
    if (!isnan(line->val_loss)) r->val_loss = line->val_loss;
    tr_progress_state shown = {.step = line->step,
                               .steps = r->config->train.steps,
                               .loss = line->loss,
                               .grad_norm = line->grad_norm,
                               .lr = line->lr,
                               .tokens_per_s = line->tokens_per_s,
                               .flops_per_s = line->tokens_per_s * r->flops_per_token /
                                              tr_world_size(r->world),
                               .val_loss = r->val_loss,
                               .noise_scale = line->noise_scale,
                               .memory = tr_memory_taken(device),
                               .memory_planned = r->planned_bytes,
                               .left = work_left(r, line->step)};
    tr_progress_show(&r->progress, &shown, tr_now_s());
    char text[TR_LINE_SIZE];
    if (tr_progress_is_due(&r->progress, line->step, shown.steps))
        tr_recorder_keep(r, "%s\n", tr_line_step(&r->progress.state, NULL, 0, false, text));
    bool failed = tr_metrics_write(r->metrics, line) != TR_OK;
    if (failed && !r->unrecorded)
        tr_recorder_warn(r, "the metrics of step %lld and possibly of more are lost: %s",
                         (long long)line->step, tr_error_message());
    r->unrecorded = failed;
    tr_error_restore(&before);
}

static void write_share(const tr_proportion *share, char *text, size_t size) {
    (void)snprintf(text, size, "%.4f", share->share);
    if (!isnan(share->error)) tr_text_add(text, size, " (+- %.4f)", share->error);
}

void tr_recorder_answers(tr_recorder *r, int64_t step, const tr_questions *questions) {
    tr_error before;
    tr_error_save(&before);
    for (int k = 0; k < questions->count; k++) {
        const char *path = questions->file[k].path;
        const tr_choices_score *score = &questions->file[k].score;
        char accuracy[48], normalised[48];
        write_share(&score->accuracy, accuracy, sizeof accuracy);
        write_share(&score->normalised, normalised, sizeof normalised);
        tr_recorder_say(r, "eval     step %lld, %s: accuracy %s, normalised %s", (long long)step,
                        path, accuracy, normalised);
        bool failed = tr_metrics_write_answers(r->metrics, step, path, score) != TR_OK;
        if (failed && !r->unanswered && !r->unrecorded)
            tr_recorder_warn(r, "the answers of step %lld and possibly of more are lost: %s",
                             (long long)step, tr_error_message());
        r->unanswered = failed;
    }
    tr_error_restore(&before);
}

/* Prints a text in one line, whatever characters it has. */
static void show_sample(tr_recorder *r, int64_t step, const char *prompt,
                        const tr_byte_list *text) {
    char *line = NULL;
    size_t size;
    FILE *out = open_memstream(&line, &size);
    if (!out) return; /* no memory: the run fails later */
    (void)fprintf(out, "sample   step %lld, ", (long long)step);
    tr_json_write_string(out, prompt, strlen(prompt));
    (void)fputs(": ", out);
    tr_json_write_string(out, text->byte, text->count);
    (void)fputc('\n', out);
    if (fclose(out) == 0) print(r, r->out, line);
    free(line);
}

void tr_recorder_samples(tr_recorder *r, int64_t step, const tr_samples *samples) {
    tr_error before;
    tr_error_save(&before);
    for (int k = 0; k < samples->texts.prompts; k++) {
        const char *prompt = samples->texts.prompt[k];
        show_sample(r, step, prompt, &samples->text[k]);
        bool failed = tr_metrics_write_sample(r->metrics, step, prompt, &samples->text[k]) != TR_OK;
        if (failed && !r->unsampled && !r->unrecorded)
            tr_recorder_warn(r, "the samples of step %lld and possibly of more are lost: %s",
                             (long long)step, tr_error_message());
        r->unsampled = failed;
    }
    tr_error_restore(&before);
}

void tr_recorder_sync(tr_recorder *r) {
    tr_error before;
    if (!r->metrics) return;
    tr_error_save(&before);
    bool failed = tr_metrics_sync(r->metrics) != TR_OK;
    if (failed && !r->unsynced && !r->unrecorded)
        tr_recorder_warn(r, "a power cut may remove the newest metrics: %s", tr_error_message());
    r->unsynced = failed;
    tr_error_restore(&before);
}

tr_status tr_recorder_write_trace(tr_recorder *r, const tr_mesh *mesh,
                                  const tr_program_set *programs, const tr_record *trace,
                                  int64_t first_step) {
    tr_timeline *measured = NULL, *planned = NULL;
    char path[TR_CONFIG_PATH + 16];
    /* A FLOP takes a second, so that times are in seconds. */
    const tr_simulated_links links = tr_network_links(r->config, mesh, 1);
    tr_status status =
        tr_tracing_gather(r->world, mesh, programs, &links, trace, first_step, &measured, &planned);
    if (status == TR_ERR_RANK) return status;
    if (!r->leads) return TR_OK;
    (void)snprintf(path, sizeof path, "%s/trace.json", r->config->log.dir);
    if (status != TR_OK) tr_recorder_warn(r, "no trace: %s", tr_error_message());
    else if (!measured)
        tr_recorder_warn(r, "no trace: it would begin at step %lld, but the run ended before",
                         (long long)first_step);
    else if (tr_tracing_write(path, measured, planned) != TR_OK)
        tr_recorder_warn(r, "no trace: %s", tr_error_message());
    if (measured) { /* the report shows them from now on */
        tr_timeline_destroy(r->planned);
        r->planned = planned;
        r->measured = measured;
    }
    return TR_OK;
}

void tr_recorder_write_report(tr_recorder *r) {
    const tr_timeline *timelines[2];
    int count = 0;
    tr_error before;
    if (!r->leads) return;
    tr_error_save(&before);
    if (r->planned) timelines[count++] = r->planned;
    if (r->measured) timelines[count++] = r->measured;
    const tr_report report = {.config = r->config,
                              .memory = r->memory,
                              .waits = r->waits,
                              .traffic = r->traffic.makespan > 0 ? &r->traffic : NULL,
                              .ranks = tr_world_size(r->world),
                              .timelines = timelines,
                              .timelines_count = count};
    bool failed = tr_report_write(&report) != TR_OK;
    if (failed && !r->unreported && !r->unrecorded)
        tr_recorder_warn(r, "no report: %s", tr_error_message());
    r->unreported = failed;
    tr_error_restore(&before);
}

void tr_recorder_finish(tr_recorder *r, tr_device *device) {
    if (!r->leads) return;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (out) tr_memory_print_taken(r->memory, tr_world_size(r->world), out);
    if (out && fclose(out) == 0) print(r, r->out, text);
    free(text);
    print_device(r, device);
}

void tr_recorder_close(tr_recorder *r) {
    tr_progress_close(&r->progress);
    tr_metrics_close(r->metrics);
    tr_append_close(&r->log);
    tr_timeline_destroy(r->planned);
    tr_timeline_destroy(r->measured);
    free(r->memory);
    free(r->waits);
}
