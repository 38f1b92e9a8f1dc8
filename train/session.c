#include "train/session.h"

#include "base/clock.h"
#include "base/output.h"
#include "config/batches.h"
#include "config/hf.h"
#include "partition/param_memory.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "pipeline/orders/csv.h"
#include "train/data_options.h"
#include "train/lr.h"
#include "train/origin.h"
#include "train/room.h"
#include "train/same_data.h"
#include "train/same_given.h"
#include "train/saved_step.h"
#include "train/store_tensors.h"
#include "train/tokenize_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool tr_session_leads(const tr_session *s) {
    return tr_world_rank(s->world) == 0;
}

void tr_session_begin(tr_session *s, tr_activity_phase phase, int64_t total) {
    tr_board *board = s->options->board;
    int64_t step = s->state ? s->state->step + (phase == TR_ACTIVITY_STEP) : 0;
    s->work_done = 0;
    s->work_total = total;
    tr_board_begin_work(board, (int)phase);
    tr_board_set_work(board, 0, total);
    if (tr_session_leads(s)) tr_progress_phase(&s->recorder.progress, phase, step, tr_now_s());
}

/* Returns the forwards and gradients of an action; a B computes two gradients. */
static int64_t actions_of(tr_action a) {
    return a.type == TR_ACTION_B ? 2 : tr_action_computes(a);
}

int64_t tr_session_actions(const tr_session *s, int64_t batch, bool forwards_alone) {
    const tr_program *program =
        &tr_engine_programs(s->engine, batch)->program[s->mesh.index[TR_AXIS_PP]];
    int64_t actions = 0;
    for (int k = 0; k < program->count; k++)
        if (!forwards_alone || program->instr[k].action.type == TR_ACTION_F)
            actions += actions_of(program->instr[k].action);
    return actions;
}

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    tr_data *data = context;
    return validation ? tr_data_validation_sample(data, sample, wanted, count)
                      : tr_data_sample(data, sample, wanted, count);
}

/* Shows the current instruction on the board, and nothing between instructions. A GATHER_WAIT has
 * no letter, since it is within an action, which the board still shows. */
static void observe(void *context, const tr_instr *instr, bool begin) {
    tr_session *s = context;
    static const char letter[TR_ACTION_TYPES] = {
        [TR_ACTION_F] = 'F',           [TR_ACTION_I] = 'I',
        [TR_ACTION_W] = 'W',           [TR_ACTION_B] = 'B',
        [TR_ACTION_RECV] = 'R',        [TR_ACTION_SEND] = 'S',
        [TR_ACTION_WAIT_SENT] = 'S',   [TR_ACTION_REDUCE_START] = 'G',
        [TR_ACTION_REDUCE_WAIT] = 'G', [TR_ACTION_GATHER_START] = 'P',
        [TR_ACTION_OFFLOAD] = 'C',     [TR_ACTION_OFFLOAD_WAIT] = 'C',
        [TR_ACTION_FETCH] = 'C',       [TR_ACTION_FETCH_WAIT] = 'C',
        [TR_ACTION_FINISH] = 'O'};
    bool at_once = tr_device_on_host(s->device);
    if (s->trace && !at_once)
        tr_record_enqueue(s->trace, tr_device_compute(s->device), instr, begin);
    if (s->trace && at_once && !begin) tr_record_observe(s->trace, instr, false);
    if (at_once && !begin)
        tr_waits_observe(&s->waits, instr, false, tr_engine_tensor_waited(s->engine));
    if (letter[instr->action.type])
        tr_board_set_action(s->options->board, instr->action.stage, instr->action.micro_batch,
                            begin ? letter[instr->action.type] : 0);
    if (!begin) {
        s->work_done += actions_of(instr->action);
        tr_board_set_work(s->options->board, s->work_done, s->work_total);
    }
    if (at_once && begin)
        tr_waits_observe(&s->waits, instr, true, tr_engine_tensor_waited(s->engine));
    if (s->trace && at_once && begin) tr_record_observe(s->trace, instr, true);
}

/* Opens the orders of all steps. Prints a line when its sums have another order than other
 * schedules'. Then the stages may begin with different micro-batches, so there is no noise
 * scale. */
static tr_status open_schedule(tr_session *s) {
    tr_schedule_report report;
    TR_TRY(tr_request_orders(s->config, &s->orders, &report));
    if (report.sums_ascending) return TR_OK;
    if (s->config->log.noise_scale)
        return TR_FAIL(TR_ERR_CONFIG,
                       "log.noise_scale needs a schedule that adds the weight gradients of every "
                       "stage in ascending order of the micro-batches: choose another "
                       "parallel.schedule, or leave log.noise_scale out");
    if (tr_session_leads(s)) tr_recorder_warn(&s->recorder, "%s", report.note);
    return TR_OK;
}

/* Opens the weights that a new run starts from, and compares them and config.json with the
 * model. */
static tr_status open_origin(tr_session *s) {
    if (s->resumes || !s->config->init_from[0]) return TR_OK;
    TR_TRY(tr_config_check_origin(s->config));
    return tr_start_open(s->config, &s->start);
}

static tr_device_options device_options(const tr_session *s) {
    return (tr_device_options){.threads = (int)s->config->train.threads,
                               .host_rank = tr_world_host_rank(s->world),
                               .ranks = tr_world_size(s->world)};
}

/* Replaces train.recompute auto by its choice. The operators of all ranks are prepared for it, on
 * another device than the run's, which counts those that it runs. */
static tr_status choose_recompute(tr_session *s) {
    const tr_device_options options = device_options(s);
    tr_device *device;
    if (strcmp(s->own.model.recompute, TR_RECOMPUTE_AUTO) != 0) return TR_OK;
    TR_TRY(tr_device_open(s->own.device.name, &options, &device));
    tr_status status = tr_request_recompute(&s->own, device);
    tr_device_close(device);
    return status;
}

/* Does the part of the set-up that needs no other rank; its failures are agreed on afterwards. */
static tr_status open_local(tr_session *s) {
    const tr_config *c = s->config;
    TR_TRY(tr_config_check(c, tr_world_size(s->world)));
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(s->world), tr_world_size(s->world), &s->mesh));
    s->mesh.near = tr_config_near(c);
    TR_TRY(open_origin(s)); /* before anything as large as the config's model is made */
    const tr_device_options device = device_options(s);
    TR_TRY(tr_device_open(c->device.name, &device, &s->device));
    tr_session_begin(s, TR_ACTIVITY_SCHEDULE, 0);
    TR_TRY(choose_recompute(s));
    TR_TRY(open_schedule(s));
    tr_session_begin(s, TR_ACTIVITY_OPEN, 0);
    return TR_OK;
}

/* Chooses how data travel between the ranks' devices. Collective. */
static tr_status choose_transport(tr_session *s) {
    const tr_plane want = tr_request_plane(s->config);
    TR_TRY(
        tr_world_choose_data_plane(s->world, s->device, want, s->transport, sizeof s->transport));
    tr_world_set_own_sums(s->world, tr_request_own_sums(s->config));
    if (tr_world_uses_nccl(s->world)) tr_world_nccl_text(s->transport, sizeof s->transport);
    return TR_OK;
}

/* Creates the engine; when the fastest cut does not fit, with one that is made for the ranks'
 * memory, unless the config has a cut. */
static tr_status create_engine(tr_session *s, tr_engine_desc *desc) {
    const tr_device_options device = device_options(s);
    double *room;
    tr_status status = tr_engine_create(desc, &s->engine);
    if (status != TR_ERR_FIT || !tr_error_is_agreed() || s->config->parallel.pp == 1 || desc->cut)
        return status;
    tr_error_clear();
    TR_TRY(tr_room_agree(s->world, s->config, &device, desc->memory, &room));
    desc->room = room;
    status = tr_engine_create(desc, &s->engine);
    free(room);
    return status;
}

static tr_status make_engine(tr_session *s) {
    const tr_config *c = s->config;
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check has read it */
    tr_engine_desc desc = {.world = s->world,
                           .device = s->device,
                           .mesh = s->mesh,
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .deterministic = c->train.deterministic,
                           .plans = s->plans.book,
                           .documents = tr_config_packed(c),
                           .decodes = c->train.sample_every > 0,
                           .schedule = s->orders.schedule,
                           .smaller = s->orders.smaller,
                           .smaller_count = s->orders.smaller_count,
                           .cut = tr_config_cut(c),
                           .seed = (uint64_t)c->train.seed,
                           .max_norm = c->optim.clip,
                           .optimizer = tr_optim_of(c),
                           .noise = c->log.noise_scale,
                           .zero = (int)c->parallel.zero,
                           .reduce = tr_request_reduce(c),
                           .offload_first = offload.first,
                           .offload_stages = offload.stages,
                           .background = c->checkpoint.background,
                           .memory_is_free = c->device.memory == 0,
                           .fetch = fetch,
                           .fetch_context = s->data,
                           .observe = observe,
                           .observe_context = s,
                           .probe = s->options->debug_nan ? &s->fault.probe : NULL};
    if (s->options->debug_nan)
        TR_TRY(tr_world_agree(s->world,
                              tr_first_fault_open(tr_world_rank(s->world), s->device, &s->fault)));
    TR_TRY(tr_world_agree(
        s->world, tr_request_memory(c, s->device, tr_world_sharers(s->world), &desc.memory)));
    TR_TRY(create_engine(s, &desc));
    tr_board_set_stop_word(s->options->board, tr_engine_stop_word(s->engine));
    return TR_OK;
}

static tr_status list_tensors(tr_session *s) {
    TR_TRY(tr_store_list_tensors(tr_engine_store(s->engine), &s->mesh, &s->tensors,
                                 &s->tensors_count));
    return tr_store_list_replicas(tr_engine_store(s->engine), &s->replicas, &s->replicas_count);
}

static tr_status open_saver(tr_session *s) {
    tr_memory_plan plan;
    tr_engine_plan(s->engine, &plan);
    const tr_saver_desc desc = {.world = s->world,
                                .device = s->device,
                                .root = s->root,
                                .tensors = s->tensors,
                                .count = s->tensors_count,
                                .background = s->config->checkpoint.background,
                                .snapshot = plan.of[TR_MEMORY_SNAPSHOT]};
    return tr_saver_open(&desc, &s->saver);
}

/* --- a new run, or a saved one ---------------------------------------------------------------- */

/* On rank 0: locks log.dir before anything in it is read or written. */
static tr_status take_directory(tr_session *s) {
    char note[TR_RUNDIR_NOTE];
    const char *job = s->options->job;
    bool make = s->options->resume != TR_RESUME_YES;
    if (s->dir.fd >= 0)
        return tr_saved_step_find(s); /* it is locked since a checkpoint was tried */
    const double end_s = tr_now_s() + s->options->patience_s;
    tr_status status = tr_rundir_take(s->config->log.dir, make, false, job, &s->dir, note);
    while (status == TR_ERR_CONFIG && tr_now_s() < end_s) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 100 * 1000000}, NULL);
        status = tr_rundir_take(s->config->log.dir, make, false, job, &s->dir, note);
    }
    if (status != TR_OK && (make || status != TR_ERR_NOFILE)) return status;
    if (note[0]) tr_recorder_warn(&s->recorder, "%s", note);
    TR_TRY(tr_saved_step_find(s));
    tr_rundir_begin(&s->dir);
    return TR_OK;
}

/* Checks that all ranks have the directory that rank 0 has locked. Collective. */
static tr_status share_directory(tr_session *s) {
    static const double patience_s = 30; /* sshfs shows a new file up to 20 s late */
    char holder[TR_RUNDIR_HOLDER] = "";
    if (tr_session_leads(s)) tr_rundir_holder(&s->dir, holder);
    TR_TRY(tr_world_broadcast(s->world, 0, holder, sizeof holder));
    return tr_world_agree(s->world, tr_rundir_check_holder(s->config->log.dir, holder, patience_s));
}

/* Tells every rank whether a saved run is continued, and its state. Collective. */
static tr_status open_directory(tr_session *s) {
    (void)snprintf(s->root, sizeof s->root, "%s/ckpt", s->config->log.dir);
    TR_TRY(tr_world_calloc(s->world, 1, sizeof *s->state, &s->state));
    TR_TRY(tr_world_agree(s->world, tr_session_leads(s) ? take_directory(s) : TR_OK));
    TR_TRY(share_directory(s));
    TR_TRY(tr_world_broadcast(s->world, 0, &s->resumes, sizeof s->resumes));
    return tr_world_broadcast(s->world, 0, s->state, sizeof *s->state);
}

/* Sets the config text to save: this run's, which may have another layout than the saved one. */
static tr_status set_config_text(tr_session *s) {
    char *text;
    TR_TRY(tr_config_text(s->config, &text));
    bool fits = strlen(text) < sizeof s->state->config;
    if (fits) strcpy(s->state->config, text);
    free(text);
    return fits ? TR_OK
                : TR_FAIL(TR_ERR_CONFIG,
                          "the resolved config is longer than %zu bytes: shorten its "
                          "paths",
                          sizeof s->state->config);
}

static tr_status open_data(tr_session *s) {
    char note[TR_DATA_NOTE];
    TR_TRY(tr_train_open_data(&s->own, note, &s->tokenizer, &s->data));
    if (note[0] && tr_session_leads(s)) tr_recorder_warn(&s->recorder, "%s", note);
    return TR_OK;
}

/* Decides which part of the data is read, by the checkpoint if there is one. Collective. */
static tr_status settle_data(tr_session *s) {
    char note[TR_SAME_DATA_NOTE];
    tr_data_note(s->data, note, sizeof note);
    if (note[0] && tr_session_leads(s)) tr_recorder_warn(&s->recorder, "%s", note);
    TR_TRY(tr_same_data_settle(s->world, s->config, s->resumes, s->data, s->state, note));
    if (note[0] && tr_session_leads(s)) tr_recorder_warn(&s->recorder, "%s", note);
    return TR_OK;
}

/* On rank 0: keeps what an export passes on, in log.dir. */
static tr_status keep_origin(const tr_session *s) {
    const char *folder = tr_config_origin(s->config);
    cJSON *config;
    tr_hf hf;
    TR_TRY(tr_hf_read(folder, &hf, &config));
    tr_status status = tr_origin_write(s->config->log.dir, folder, config, &s->start.weights,
                                       tr_engine_model(s->engine));
    cJSON_Delete(config);
    return status;
}

/* Sets the parameters of a new run. Collective. */
static tr_status make_parameters(tr_session *s) {
    const bool loads = s->config->init_from[0];
    tr_store *store = tr_engine_store(s->engine);
    tr_session_begin(s, loads ? TR_ACTIVITY_LOAD : TR_ACTIVITY_DRAW, 0);
    if (!loads && s->config->model.lora.rank > 0 && tr_session_leads(s))
        tr_recorder_warn(&s->recorder,
                         "model.lora.rank is set and model.init_from is not: the updates are "
                         "trained on frozen random weights");
    if (s->start.dropout > 0 && tr_session_leads(s))
        tr_recorder_warn(&s->recorder,
                         "the adapter '%s' was trained with lora_dropout %g, which is not applied",
                         s->config->init_from, s->start.dropout);
    if (!loads) return tr_store_init(store, (uint64_t)s->config->train.seed, s->options->board);
    TR_TRY(tr_world_agree(s->world, tr_store_clear_states(store)));
    TR_TRY(tr_world_agree(s->world,
                          tr_start_load(&s->start, s->world, store, (uint64_t)s->config->train.seed,
                                        s->tensors, s->tensors_count)));
    TR_TRY(tr_store_publish(store));
    if (tr_session_leads(s)) TR_TRY(keep_origin(s));
    tr_start_close(&s->start);
    return TR_OK;
}

/* Sets parameters and counters to those of step 0, or of the saved step. Collective. */
static tr_status start_state(tr_session *s) {
    if (s->resumes) TR_TRY(tr_world_agree(s->world, tr_saved_step_load(s)));
    s->state->seed = (uint64_t)s->config->train.seed;
    tr_board_set_saved(s->options->board, s->saved_step);
    return tr_world_agree(s->world, set_config_text(s));
}

/* Writes the order that auto found, for inspection, or as parallel.schedule of another run. */
static tr_status write_order(tr_session *s) {
    char path[TR_CONFIG_PATH + 16], *text;
    (void)snprintf(path, sizeof path, "%s/schedule.csv", s->config->log.dir);
    TR_TRY(tr_schedule_print(s->orders.schedule, false, &text));
    FILE *f;
    tr_status status = tr_output_open(path, &f);
    if (status == TR_OK) {
        (void)fputs(text, f);
        status = tr_output_close(path, f, TR_OK);
    }
    free(text);
    return status;
}

/* Opens the records of the run on rank 0. */
static tr_status open_records(tr_session *s) {
    TR_TRY(tr_recorder_open(&s->recorder, s->resumes ? s->state->step : -1));
    if (!tr_session_leads(s)) return TR_OK;
    TR_TRY(tr_plans_write(&s->plans, s->config));
    return tr_request_is_auto(s->config) ? write_order(s) : TR_OK;
}

/* Keeps the tokenizer of the data in log.dir, after the files of model.init_from, which may have
 * another one. */
static tr_status keep_tokenizer(const tr_session *s) {
    if (!s->tokenizer || !tr_session_leads(s)) return TR_OK;
    return tr_origin_keep_tokenizer(s->config->log.dir, s->tokenizer);
}

/* Opens the record of the traced steps, which must have the same program. */
static tr_status open_trace(tr_session *s) {
    if (!s->options->trace) return TR_OK;
    s->trace_from = s->state->step + 2; /* the first step is a warm-up */
    const int64_t batch = tr_config_batch_at(s->config, s->trace_from);
    for (int64_t k = 1; k < s->options->trace; k++)
        if (tr_config_batch_at(s->config, s->trace_from + k) != batch)
            return TR_FAIL(TR_ERR_CONFIG,
                           "--trace %lld begins with step %lld, but train.batch_warmup changes the "
                           "batch after step %lld: record at most %lld steps",
                           (long long)s->options->trace, (long long)s->trace_from,
                           (long long)(s->trace_from + k - 1), (long long)k);
    const tr_program_set *programs = tr_engine_programs(s->engine, batch);
    const size_t entries = tr_record_entries(&programs->program[s->mesh.index[TR_AXIS_PP]]);
    return tr_record_open(entries * (size_t)s->options->trace, &s->trace);
}

/* Called after every part of the set-up: a request to stop ends the run before the next part. There
 * is nothing to save, since no step was taken. The command of a job that started again does not
 * continue what it has saved. */
static tr_status go_on(tr_session *s, tr_status status) {
    const bool asked = tr_board_stop_requested(s->options->board);
    const bool goes_on = s->resumes && s->options->resume == TR_RESUME_NO;
    if (asked && (status == TR_OK || status == TR_ERR_STOPPED))
        status = TR_FAIL(TR_ERR_STOPPED,
                         "stopped by a signal before a step was taken, so there was nothing to "
                         "save: %s",
                         goes_on ? "continue with the same command and --resume"
                                 : "start again with the same command");
    return tr_world_agree(s->world, status);
}

/* Starts the time limit, which counts from the start of the command. */
static void start_limit(tr_session *s) {
    const tr_optim_config optimizer = tr_optim_of(s->config);
    const double bytes =
        tr_memory_of_checkpoint(tr_engine_model(s->engine), tr_optim_memory_of(&optimizer));
    bool limited = s->options->time_limit && tr_session_leads(s);
    tr_time_limit_open(limited ? s->options->time_end_s : INFINITY, bytes, &s->limit);
}

/* Prints the run's plan on rank 0, before the parts of the set-up that may take long, and after
 * those that may refuse the run. */
static void show_plan(tr_session *s) {
    char text[96], warmup[TR_LR_NOTE];
    const tr_lr lr = tr_lr_of(s->config);
    tr_recorder_show_plan(&s->recorder, s->engine, s->transport);
    tr_plans_text(&s->plans, text, sizeof text);
    if (text[0]) tr_recorder_say(&s->recorder, "plans    %s", text);
    if (tr_optim_of(s->config).moments == TR_U8 && s->config->parallel.tp > 1)
        tr_recorder_say(&s->recorder,
                        "moments  in 8 bits by blocks of 256, which parallel.tp divides: another "
                        "parallel.tp rounds them differently");
    tr_lr_note_warmup(&lr, s->config->train.steps, warmup);
    if (warmup[0]) tr_recorder_warn(&s->recorder, "%s", warmup);
    if (s->plans.refused)
        tr_recorder_warn(&s->recorder,
                         "the library does not offer all plans of '%s/plans.txt' here (it may have "
                         "another version): it proposes others for these operators, and bits may "
                         "change",
                         s->config->log.dir);
}

/* Does the set-up part by part; the ranks agree on a failure before the next part begins.
 * Collective. */
static tr_status open_agreed(tr_session *s) {
    tr_session_begin(s, TR_ACTIVITY_OPEN, 0);
    TR_TRY(tr_same_given(s->world, s->config, s->options));
    TR_TRY(open_directory(s));
    if (s->resumes) TR_TRY(go_on(s, tr_saved_run_check(s->state, s->root, &s->own, &s->saved)));
    TR_TRY(go_on(s, open_local(s)));
    TR_TRY(go_on(s, tr_train_tokenize_data(s->world, s->config, s->options->board)));
    TR_TRY(go_on(s, open_data(s)));
    TR_TRY(go_on(s, tr_questions_open(s->config, s->tokenizer, &s->questions)));
    TR_TRY(go_on(s, tr_samples_open(s->config, s->tokenizer, &s->samples)));
    TR_TRY(settle_data(s));
    TR_TRY(tr_same_orders(s->world, s->config, &s->orders));
    TR_TRY(choose_transport(s));
    tr_session_begin(s, TR_ACTIVITY_PREPARE, 0);
    TR_TRY(go_on(s, tr_plans_settle(s->world, s->config, s->device, &s->mesh, &s->orders,
                                    s->resumes, &s->plans)));
    TR_TRY(make_engine(s));
    TR_TRY(go_on(s, list_tensors(s)));
    TR_TRY(go_on(s, open_saver(s)));
    start_limit(s);
    if (tr_session_leads(s)) show_plan(s);
    TR_TRY(start_state(s));
    TR_TRY(go_on(s, open_records(s)));
    if (!s->resumes) TR_TRY(go_on(s, make_parameters(s)));
    TR_TRY(go_on(s, keep_tokenizer(s)));
    tr_session_begin(s, TR_ACTIVITY_NONE, 0);
    TR_TRY(go_on(s, open_trace(s)));
    return tr_recorder_open_report(&s->recorder, s->device, s->engine, &s->mesh);
}

static void begin(const tr_config *config, tr_world *world, const tr_train_options *options,
                  tr_said *said, tr_session *s) {
    *s = (tr_session){.config = &s->own,
                      .own = *config,
                      .options = options,
                      .world = world,
                      .dir.fd = -1,
                      .saved_step = -1,
                      .recorder = {.config = &s->own,
                                   .world = world,
                                   .out = options->out,
                                   .warnings = options->warnings,
                                   .leads = tr_world_rank(world) == 0,
                                   .said = said}};
    tr_recorder_begin(&s->recorder, options->board);
}

/* Begins again after a step that could not be loaded: an older one may be of a run with another
 * config and other data, and parameters that are loaded in part must not stay. The lock and log.txt
 * stay open. */
static void begin_again(const tr_config *config, tr_session *s) {
    const tr_session before = *s;
    s->dir.fd = -1;
    s->recorder.log = (tr_append){.fd = -1};
    s->unloaded = NULL;
    tr_session_close(s);
    begin(config, before.world, before.options, before.recorder.said, s);
    s->dir = before.dir;
    s->recorder.log = before.recorder.log;
    s->unloaded = before.unloaded;
    s->unloaded_count = before.unloaded_count;
    s->skipped = before.skipped;
}

/* Opens the session from the newest saved step that can be loaded, if a run is continued.
 * Collective. */
static tr_status open_newest(const tr_config *config, tr_session *s) {
    tr_status status = open_agreed(s);
    for (size_t tried = 0; status == TR_ERR_DATA && s->unloaded_count > tried;) {
        tried = s->unloaded_count;
        begin_again(config, s);
        status = open_agreed(s);
    }
    const bool none = status == TR_ERR_DATA && !s->resumes; /* then the error names the cause */
    if (status != TR_OK && !none && s->unloaded_count > 0 && s->saved_step < 0 &&
        tr_session_leads(s))
        tr_recorder_warn(&s->recorder, "step %lld cannot be loaded: %s",
                         (long long)s->unloaded[0].step, s->unloaded[0].why);
    return status;
}

tr_status tr_session_open(const tr_config *config, tr_world *world, const tr_train_options *options,
                          tr_session *s) {
    tr_said said = {.count = 0};
    begin(config, world, options, &said, s);
    tr_status status = open_newest(config, s);
    s->recorder.said = NULL;
    TR_TRY(status);
    TR_TRY(tr_recorder_show_fallbacks(&s->recorder, s->device));
    if (tr_session_leads(s)) tr_recorder_start(&s->recorder, s->device, s->state->step, s->resumes);
    return TR_OK;
}

void tr_session_close(tr_session *s) {
    tr_recorder_close(&s->recorder);
    tr_board_set_stop_word(s->options->board, NULL);
    tr_start_close(&s->start);
    tr_saver_close(s->saver);
    free(s->tensors);
    free(s->replicas);
    free(s->unloaded);
    free(s->state);
    tr_engine_destroy(s->engine);
    tr_plan_book_destroy(s->plans.book); /* after the operators, which name it */
    tr_orders_close(&s->orders);
    tr_questions_close(&s->questions);
    tr_samples_close(&s->samples);
    tr_data_close(s->data);
    tr_tokenizer_close(s->tokenizer);
    tr_first_fault_close(&s->fault);
    if (s->device) tr_device_close(s->device);
    tr_record_close(s->trace); /* after the stream, which may still write to it */
    if (s->dir.fd >= 0) {      /* a run that never began leaves no empty folder of tokens */
        char tokens[TR_CONFIG_PATH + 16];
        (void)rmdir(tr_train_tokens_folder(s->config, tokens, sizeof tokens));
    }
    tr_rundir_release(&s->dir);
}
