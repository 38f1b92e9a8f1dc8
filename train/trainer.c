#include "train/trainer.h"

#include "base/clock.h"
#include "base/text.h"
#include "config/batches.h"
#include "train/guard.h"
#include "train/loss_scale.h"
#include "train/lr.h"
#include "train/same_data.h"
#include "train/save_step.h"
#include "train/saved_step.h"
#include "train/session.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

/* Says once that a validation has no loss. */
static void warn_of_no_label(tr_session *s) {
    if (s->unlabelled || !tr_session_leads(s)) return;
    s->unlabelled = true;
    tr_recorder_warn(&s->recorder,
                     "no validation loss: no label of the held-out windows that were read counts, "
                     "because every token is data.document_end: raise data.validation, "
                     "let train.validate_batches read more of them, or set the token that ends a "
                     "document");
}

static bool due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static tr_status validate(tr_session *s, tr_step_result *result) {
    int64_t batches = s->config->train.validate_batches;
    const int64_t batch = s->config->train.batch;
    const int64_t all = (tr_data_validation_windows(s->data) + batch - 1) / batch;
    if (batches == 0 || batches > all) batches = all;
    tr_session_begin(s, TR_ACTIVITY_VALIDATE, batches * tr_session_actions(s, batch, true));
    TR_TRY(tr_engine_validate(s->engine, batches, result));
    if (result->tokens == 0 && result->unread == TR_OK) warn_of_no_label(s);
    return TR_OK;
}

/* Writes what to do about a run that has diverged, to text[size]. by_sigma: guard.sigma had a part
 * in that. */
static const char *remedy(const tr_config *c, bool by_sigma, char *text, size_t size) {
    (void)snprintf(text, size, "lower optim.lr, lengthen optim.warmup, %s%s", by_sigma ? "" : "or ",
                   c->optim.clip > 0 ? "set a smaller optim.clip"
                                     : "set optim.clip (for example 1)");
    if (by_sigma) tr_text_add(text, size, ", or raise guard.sigma above %g", c->guard.sigma);
    return text;
}

/* Returns true when all ranks have failed alike because the model's values are not finite. */
static bool is_not_finite(tr_status status) {
    return status == TR_ERR_DATA && tr_error_is_agreed();
}

/* Ends a run in which values are not finite after a step. what: the values. Collective. */
static tr_status not_finite(tr_session *s, const char *what) {
    char saved[64], advice[160];
    TR_TRY(tr_save_settle(s));
    tr_recorder_write_report(&s->recorder);
    return tr_world_agree(
        s->world,
        TR_FAIL(TR_ERR_DATA, "training has diverged: after step %lld %s are not finite; %s (%s)",
                (long long)s->state->step, what, remedy(s->config, false, advice, sizeof advice),
                tr_save_text(s, saved, sizeof saved)));
}

/* Says that a run which stops leaves out the answers or samples of its last step, and what makes
 * them from the checkpoint. */
static void leave_out(tr_session *s, bool answers) {
    const long long step = s->state->step;
    const char *dir = s->config->log.dir;
    if (!tr_session_leads(s)) return;
    if (answers)
        tr_recorder_warn(&s->recorder,
                         "the run stops without the answers of step %lld: `trireme eval %s --step "
                         "%lld --data FILE` makes them",
                         step, dir, step);
    else
        tr_recorder_warn(&s->recorder,
                         "the run stops without the samples of step %lld: `trireme sample %s "
                         "--step %lld --seed %lld --prompts FILE -n %lld` makes them",
                         step, dir, step, step, (long long)s->config->train.sample_tokens);
}

/* Answers the questions of train.eval, unless the run is to stop. Collective. */
static tr_status answer(tr_session *s, bool *stop) {
    tr_questions *q = &s->questions;
    const int64_t batches = (q->sequences + s->config->train.batch - 1) / s->config->train.batch;
    if (*stop) {
        leave_out(s, true);
        return TR_OK;
    }
    tr_session_begin(s, TR_ACTIVITY_VALIDATE,
                     batches * tr_session_actions(s, s->config->train.batch, true));
    tr_status status = tr_questions_answer(q, s->engine, s->config);
    if (status == TR_ERR_STOPPED) { /* save first */
        tr_error_clear();
        *stop = true;
        leave_out(s, true);
        return TR_OK;
    }
    if (is_not_finite(status)) return not_finite(s, "the losses of train.eval");
    TR_TRY(status);
    if (tr_session_leads(s)) tr_recorder_answers(&s->recorder, s->state->step, q);
    return TR_OK;
}

static bool validates(const tr_config *c, int64_t step) {
    return (tr_config_validates(c) || c->train.eval[0]) &&
           (due(c->train.validate_every, step) || step == c->train.steps);
}

/* Returns true when a step is followed by more work than its records. */
static bool examines(const tr_config *c, int64_t step) {
    return validates(c, step) || due(c->train.sample_every, step);
}

static tr_status no_label(const tr_session *s, int64_t step) {
    char saved[64];
    return TR_FAIL(TR_ERR_DATA,
                   "step %lld has no label that counts, because every token of its sequences is "
                   "data.document_end: set the token that ends a document (%s)",
                   (long long)step, tr_save_text(s, saved, sizeof saved));
}

/* Returns true when guard.sigma has ended the run with this step, or skipped some of the steps in a
 * row before one that overflows. */
static bool ends_by_sigma(const tr_session *s, const tr_step_result *result) {
    return result->finite || (tr_loss_scaled(s->config) && s->state->guard.skips > 0 &&
                              !tr_guard_goes_back(s->config, s->saved_step >= 0));
}

/* Writes how many steps were skipped, or out of line, when guard.skips of them end the run, of
 * which this step is the last; otherwise "". */
static const char *steps_before(const tr_session *s, const tr_step_result *result, char *text,
                                size_t size) {
    const tr_ckpt_guard *guard = &s->state->guard;
    const bool returns = tr_guard_goes_back(s->config, s->saved_step >= 0);
    const bool skipped = !returns || !result->finite;
    const int64_t skips = returns ? 0 : guard->skips;
    const int64_t steps = skipped ? skips + guard->overflows : guard->skips;
    text[0] = '\0';
    if (steps < s->config->guard.skips) return text;
    const bool one = steps == 1;
    tr_text_add(text, size, "%lld step%s%s %s %s (guard.skips), ", (long long)steps, one ? "" : "s",
                skipped && !one ? " in a row" : "", one ? "was" : "were",
                skipped ? "skipped" : "out of line since the newest checkpoint");
    if (!result->finite && ends_by_sigma(s, result))
        tr_text_add(text, size, "%lld of them because of guard.sigma, ", (long long)skips);
    tr_text_add(text, size, "and ");
    return text;
}

/* Ends a run that has taken no step yet with the parameters it has loaded. */
static tr_status loaded_faults(const tr_session *s, const char *text) {
    char saved[64];
    return TR_FAIL(TR_ERR_DATA,
                   "training has diverged: at step 1 %s, and no parameter has changed yet: those "
                   "of model.init_from '%.200s' are damaged, or too large for train.precision %s; "
                   "--debug-nan names the layer (%s)",
                   text, s->config->init_from, s->config->train.precision,
                   tr_save_text(s, saved, sizeof saved));
}

/* Ends a run that has diverged, or a step of which has no label, for the reason in `text`. */
static tr_status diverged(const tr_session *s, int64_t step, const tr_step_result *result,
                          const char *text) {
    char saved[64], before[160], advice[160];
    if (result->tokens == 0) return no_label(s, step);
    if (s->state->step == 0 && s->config->init_from[0]) return loaded_faults(s, text);
    return TR_FAIL(TR_ERR_DATA, "training has diverged: %sat step %lld %s; %s (%s)",
                   steps_before(s, result, before, sizeof before), (long long)step, text,
                   remedy(s->config, ends_by_sigma(s, result), advice, sizeof advice),
                   tr_save_text(s, saved, sizeof saved));
}

/* Makes the texts of train.sample_every, unless the run is to stop. Collective. */
static tr_status sample(tr_session *s, bool *stop) {
    const int64_t step = s->state->step;
    if (*stop) {
        leave_out(s, false);
        return TR_OK;
    }
    tr_session_begin(s, TR_ACTIVITY_SAMPLE, 0);
    tr_status status = tr_samples_make(&s->samples, s->world, s->engine, s->options->board, step);
    if (status == TR_ERR_STOPPED) { /* save first */
        tr_error_clear();
        *stop = true;
        leave_out(s, false);
        return TR_OK;
    }
    if (is_not_finite(status)) return not_finite(s, "the logits of a sample");
    TR_TRY(status);
    if (tr_session_leads(s)) tr_recorder_samples(&s->recorder, step, &s->samples);
    return TR_OK;
}

/* Ends a run that cannot read its data any more: saves the last finished step. Collective. */
static tr_status end_unread(tr_session *s, tr_status unread) {
    char saved[64];
    tr_error why;
    tr_error_save(&why); /* a save that fails replaces this thread's error */
    TR_TRY(tr_save_settle(s));
    if (s->state->step > 0 && s->saved_step != s->state->step) TR_TRY(tr_save_step(s, false));
    TR_TRY(tr_save_settle(s));
    tr_recorder_write_report(&s->recorder);
    return TR_FAIL(unread, "%s (%s)", why.message, tr_save_text(s, saved, sizeof saved));
}

/* Writes the recorded steps, which may be fewer than requested. Collective. */
static tr_status write_trace(tr_session *s) {
    if (!s->trace) return TR_OK;
    tr_status status = tr_recorder_write_trace(
        &s->recorder, &s->mesh,
        tr_engine_programs(s->engine, tr_config_batch_at(s->config, s->trace_from)), s->trace,
        s->trace_from);
    tr_record_close(s->trace);
    s->trace = NULL;
    return status;
}

/* Counts a step that the guard has let pass, or has skipped. */
static void count_step(tr_session *s, const tr_step_result *result) {
    s->state->step++;
    s->state->optimizer_step += !result->skipped;
    s->state->skipped += result->skipped;
    s->state->tokens_seen += result->tokens;
    if (!result->skipped) tr_noise_add(&s->state->noise, &result->noise);
    tr_loss_scale_judge(s->config, result->finite, &s->state->scale);
}

/* Adds the operator that made the first value that is not finite. Collective. */
static tr_status add_fault(tr_session *s, char *text, size_t size) {
    char fault[TR_FAULT_TEXT];
    TR_TRY(tr_first_fault_text(s->world, &s->fault, fault));
    if (fault[0]) tr_text_add(text, size, "; %s", fault);
    return TR_OK;
}

/* Returns the record of a step that has no validation yet. */
static tr_metrics_record record_of(const tr_session *s, int64_t step, const tr_step_result *result,
                                   double seconds) {
    const tr_config *c = s->config;
    const tr_lr lr = tr_lr_of(c);
    return (tr_metrics_record){
        .step = step,
        .loss = result->loss,
        .grad_norm = result->grad_norm,
        .lr = tr_lr_at(&lr, step),
        .tokens_per_s = (double)(tr_config_batch_at(c, step) * c->model.context) / seconds,
        .val_loss = NAN,
        .noise = result->noise,
        .noise_scale = NAN,
        .skipped = result->skipped,
        .loss_scale = tr_loss_scaled(c) ? result->loss_scale : 0};
}

/* Lets the guard judge the step of `line`, and applies its verdict. Sets *counts to false when the
 * step is to be taken again, with the next data. Records a step that ends the run. Collective. */
static tr_status apply_guard(tr_session *s, const tr_metrics_record *line,
                             const tr_guard_limits *limits, const tr_step_result *result,
                             bool *counts) {
    char text[TR_GUARD_TEXT + TR_FAULT_TEXT], saved[64];
    if (result->skipped || result->tokens == 0) TR_TRY(tr_save_settle(s));
    /* Only rank 0 knows of a run directory that was removed, and the checkpoints with it. */
    if (result->skipped)
        TR_TRY(tr_world_broadcast(s->world, 0, &s->saved_step, sizeof s->saved_step));
    tr_verdict verdict =
        tr_guard_judge(s->config, limits, s->saved_step >= 0, result, &s->state->guard, text);
    if (s->options->debug_nan && !result->finite) TR_TRY(add_fault(s, text, sizeof text));
    if (verdict == TR_VERDICT_DIVERGED || result->tokens == 0) {
        if (tr_session_leads(s)) tr_recorder_step(&s->recorder, s->device, line);
        tr_recorder_write_report(&s->recorder);
        return tr_world_agree(s->world, diverged(s, line->step, result, text));
    }
    const bool back = verdict == TR_VERDICT_ROLLED_BACK;
    if (text[0] && tr_session_leads(s))
        tr_recorder_warn(&s->recorder, "step %lld: %s%s%s%s", (long long)line->step, text,
                         back ? "; the run goes back, and steps over the data since: " : "",
                         back ? tr_save_text(s, saved, sizeof saved) : "",
                         !back && result->skipped ? "; the step is skipped" : "");
    *counts = !back;
    if (back && s->saved_step < s->state->step) TR_TRY(tr_saved_step_roll_back(s));
    if (back && s->trace) tr_record_forget(s->trace, (int32_t)(s->state->step + 1 - s->trace_from));
    return TR_OK;
}

/* Validates after a step if it is due, and records the step. Collective. */
static tr_status record(tr_session *s, tr_metrics_record *line, bool *stop) {
    const tr_config *c = s->config;
    tr_step_result validation = {.loss = NAN};
    if (validates(c, line->step) && tr_config_validates(c)) TR_TRY(validate(s, &validation));
    *stop |= validation.stop;
    if (validation.unread == TR_OK) line->val_loss = validation.loss;
    if (c->log.noise_scale) line->noise_scale = tr_noise_scale(&s->state->noise);
    if (tr_session_leads(s)) tr_recorder_step(&s->recorder, s->device, line);
    if (validation.unread != TR_OK)
        return tr_world_agree(s->world, end_unread(s, validation.unread));
    return TR_OK;
}

/* Takes one step, with validation, save and records. Sets *stop when a rank asked to stop.
 * Collective. */
static tr_status take_step(tr_session *s, bool *stop) {
    const tr_config *c = s->config;
    const tr_lr lr = tr_lr_of(c);
    const tr_guard_limits limits = tr_guard_next(c, &s->state->guard);
    const int64_t step = s->state->step + 1, traced = step - s->trace_from;
    const int64_t batch = tr_config_batch_at(c, step);
    const double begin = tr_now_s();
    tr_step_result result;
    bool counts;
    tr_board_set_step(s->options->board, step);
    tr_progress_set_micro_batches(&s->recorder.progress,
                                  batch / c->parallel.dp / c->train.micro_batch);
    tr_session_begin(s, TR_ACTIVITY_STEP, tr_session_actions(s, batch, false));
    if (s->trace) tr_record_step(s->trace, traced >= 0 ? (int32_t)traced : -1);
    tr_first_fault_begin(&s->fault);
    if (tr_guard_prevents(c)) tr_engine_set_limits(s->engine, limits.loss, limits.norm);
    tr_engine_set_loss_scale(s->engine, tr_loss_scale_next(c, &s->state->scale));
    tr_engine_set_batch(s->engine, batch, tr_config_batch_at(c, step + 1));
    s->waits.on = tr_device_on_host(s->device);
    TR_TRY(tr_engine_step(s->engine, step, s->state->optimizer_step + 1 - s->state->moments_since,
                          s->state->next_sample, tr_lr_at(&lr, step), &result));
    /* Every rank sees the same result. */
    if (result.unread != TR_OK) return tr_world_agree(s->world, end_unread(s, result.unread));
    *stop = result.stop;
    const double seconds = tr_now_s() - begin;
    if (s->waits.on) s->waits.sum.steps += seconds;
    s->waits.on = false;
    tr_metrics_record line = record_of(s, step, &result, seconds);
    TR_TRY(apply_guard(s, &line, &limits, &result, &counts));
    s->state->next_sample += batch;
    tr_same_data_advance(s->data, s->state);
    if (!counts) return TR_OK;
    count_step(s, &result);
    if (s->trace) tr_record_step(s->trace, -1);
    /* Before the step's records; the next save reports a failure again. */
    (void)tr_save_guard_directory(s);
    if (traced + 1 == s->options->trace) TR_TRY(write_trace(s));
    TR_TRY(record(s, &line, stop));
    if (validates(c, step) && s->questions.count) TR_TRY(answer(s, stop));
    return due(c->train.sample_every, step) ? sample(s, stop) : TR_OK;
}

/* On rank 0: asks all ranks to stop after this step when the time limit leaves no time for another
 * one. */
static void mind_the_limit(tr_session *s) {
    const tr_config *c = s->config;
    int64_t step = s->state->step + 1;
    const double sequences = (double)tr_config_batch_at(c, step + 1); /* not fewer than in `step` */
    tr_time_limit limit = s->limit;
    for (int k = 0; k < 2; k++) limit.step_s[k] *= sequences;
    tr_time_need need = {.examines = {examines(c, step), examines(c, step + 1)},
                         .saves =
                             (int)due(c->checkpoint.every, step) + (int)tr_saver_saves(s->saver)};
    if (s->late || !tr_time_limit_is_near(&limit, tr_now_s(), &need)) return;
    s->late = true;
    atomic_store(tr_engine_stop_word(s->engine), 1);
}

/* Returns the status of a run after its last step. */
static tr_status ending(const tr_session *s, bool stop) {
    bool limited = s->late && !tr_board_stop_requested(s->options->board);
    if (stop && s->state->step < s->config->train.steps)
        return TR_FAIL(
            TR_ERR_STOPPED,
            "stopped by %s%s after step %lld, which is saved: continue with the same command and "
            "--resume",
            limited ? "--time-limit " : "a signal", limited ? s->options->time_limit : "",
            (long long)s->state->step);
    if (s->dir_lost)
        return TR_FAIL(TR_ERR_IO,
                       "'%s' was removed while the run used it: step %lld is saved, but its "
                       "earlier files are lost",
                       s->config->log.dir, (long long)s->saved_step);
    return TR_OK;
}

/* Writes the last records. before: the saved step with which the run began. Collective. */
static tr_status finish(tr_session *s, int64_t before, bool stop) {
    TR_TRY(write_trace(s));
    TR_TRY(tr_recorder_gather_memory(&s->recorder, s->device, s->engine));
    TR_TRY(tr_recorder_gather_waits(&s->recorder, &s->waits.sum));
    tr_recorder_write_report(&s->recorder);
    tr_recorder_finish(&s->recorder, s->device);
    if (tr_session_leads(s) && s->saved_step == s->state->step && s->saved_step != before)
        tr_recorder_say(&s->recorder, "saved    %s/step-%08lld", s->root, (long long)s->saved_step);
    return tr_world_agree(s->world, ending(s, stop));
}

static tr_status train_steps(tr_session *s) {
    const tr_config *c = s->config;
    const int64_t before = s->saved_step;
    bool stop = false;
    while (s->state->step < c->train.steps && !stop) {
        const double begin = tr_now_s();
        const int64_t step = s->state->step + 1;
        mind_the_limit(s);
        TR_TRY(take_step(s, &stop));
        tr_time_limit_took(&s->limit.step_s[examines(c, step)],
                           (tr_now_s() - begin) / (double)tr_config_batch_at(c, step));
        bool last = s->state->step == c->train.steps || stop;
        const bool saved = s->saved_step == s->state->step; /* it has gone back to it */
        if (!saved && (last || due(c->checkpoint.every, s->state->step)))
            TR_TRY(tr_save_step(s, last));
        else TR_TRY(tr_save_look(s));
    }
    return finish(s, before, stop);
}

/* Commits the save in progress of a run that all ranks end; the run's error stays. Collective. */
static void keep_save(tr_session *s) {
    tr_error why;
    tr_error_save(&why);
    (void)tr_save_settle(s);
    tr_error_restore(&why);
}

tr_status tr_train(const tr_config *config, tr_world *world, const tr_train_options *options) {
    tr_session s;
    tr_status status = tr_session_open(config, world, options, &s);
    if (status == TR_OK) status = train_steps(&s);
    if (status != TR_OK) {
        tr_recorder_keep(&s.recorder, "trireme: %s\n", tr_error_message());
        if (tr_error_is_agreed()) keep_save(&s);
        else tr_world_give_up(world, status);
    }
    tr_session_close(&s);
    return status;
}
