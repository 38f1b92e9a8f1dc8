#include "train/save_step.h"

#include "base/clock.h"
#include "train/guard.h"

#include <stdio.h>

tr_status tr_save_guard_directory(tr_session *s) {
    if (!tr_session_leads(s) || tr_rundir_in_place(&s->dir)) return TR_OK;
    bool said = s->dir_lost;
    TR_TRY(tr_rundir_restore(&s->dir));
    s->dir_lost = true;
    s->saved_step = -1;
    tr_recorder_reopen(&s->recorder, s->state->step);
    if (!said)
        tr_recorder_warn(&s->recorder,
                         "'%s' was removed while the run used it: it is made again, but its "
                         "earlier files are lost",
                         s->config->log.dir);
    return TR_OK;
}

const char *tr_save_text(const tr_session *s, char *text, size_t size) {
    if (s->saved_step < 0) (void)snprintf(text, size, "no step is saved");
    else (void)snprintf(text, size, "step %lld is saved", (long long)s->saved_step);
    return text;
}

/* Fails when replicas of a parameter are no longer equal: every rank steps its own by the same
 * gradient, so one of them has another device or other files, or has computed or stored something
 * wrongly. Collective. */
static tr_status compare_replicas(tr_session *s) {
    char saved[64];
    tr_error why;
    tr_status status = tr_ckpt_compare_replicas(s->world, s->replicas, s->replicas_count);
    if (status != TR_ERR_DATA) return status;
    tr_error_save(&why);
    return tr_world_agree(
        s->world,
        TR_FAIL(TR_ERR_DATA,
                "%s after step %lld, although they had the same gradients: a rank has another "
                "device or other files in model.init_from, or its memory or processor is faulty; "
                "compare them, test the machines, and continue with --resume (%s)",
                why.message, (long long)s->state->step, tr_save_text(s, saved, sizeof saved)));
}

/* Counts a save that is committed: from now on the run goes back to it. */
static void count_saved(tr_session *s, double seconds) {
    const tr_config *c = s->config;
    tr_time_limit_took(&s->limit.save_s, seconds);
    s->saved_step = s->saving.step;
    tr_guard_saved(c, &s->state->guard);
    tr_board_set_saved(s->options->board, s->saved_step);
    if (!tr_session_leads(s)) return;
    if (tr_ckpt_retain(s->root, (int)c->checkpoint.keep, c->checkpoint.keep_every) != TR_OK)
        tr_recorder_warn(&s->recorder, "%s", tr_error_message()); /* an old checkpoint may stay */
}

/* Ends the save that was begun with this status. Collective. */
static tr_status end(tr_session *s, tr_status begun, bool last) {
    double seconds = s->saving.seconds;
    tr_status status = begun == TR_OK ? tr_saver_end(s->saver, &seconds) : begun;
    tr_session_begin(s, TR_ACTIVITY_NONE, 0);
    if (status == TR_OK) {
        count_saved(s, seconds);
        /* After the last save it is written with the trace. */
        if (!last) tr_recorder_write_report(&s->recorder);
        return TR_OK;
    }
    if (last || status != TR_ERR_IO) return status;
    if (tr_session_leads(s))
        tr_recorder_warn(&s->recorder, "the save of step %lld failed: %s",
                         (long long)s->saving.step, tr_error_message());
    return TR_OK;
}

/* On rank 0: lets a save replace a step that the run has passed over when it was resumed: one that
 * could not be read then may be whole again, or still not be readable. */
static tr_status replace_passed_over(tr_session *s) {
    const int64_t step = s->state->step;
    bool marks;
    if (!s->skipped.why[0] || step > s->skipped.step) return TR_OK;
    TR_TRY(tr_ckpt_let_replace(s->root, step, s->skipped.why, &marks));
    if (marks && s->skipped.unread) /* what was incomplete or corrupt is lost anyway */
        tr_recorder_warn(&s->recorder,
                         "step %lld, which was passed over when the run was resumed, is replaced",
                         (long long)step);
    return TR_OK;
}

tr_status tr_save_step(tr_session *s, bool last) {
    TR_TRY(tr_save_settle(s));
    const tr_ckpt_guard before = s->state->guard;
    const double start = tr_now_s();
    s->saving.step = s->state->step;
    tr_session_begin(s, TR_ACTIVITY_SAVE, 0);
    tr_status status = tr_world_agree(s->world, tr_save_guard_directory(s));
    if (status == TR_OK) status = tr_world_agree(s->world, replace_passed_over(s));
    /* So that a run that goes on from this step after a power cut has the records before it. */
    tr_recorder_sync(&s->recorder);
    if (status == TR_OK) status = tr_engine_complete(s->engine);
    if (status == TR_OK) status = compare_replicas(s);
    tr_guard_saved(s->config, &s->state->guard);
    if (status == TR_OK) status = tr_saver_begin(s->saver, s->state, !last);
    s->state->guard = before; /* until the save is committed, the run goes back to an earlier one */
    s->saving.seconds = tr_now_s() - start;
    if (status != TR_OK || last || !s->config->checkpoint.background) return end(s, status, last);
    tr_session_begin(s, TR_ACTIVITY_NONE, 0);
    return TR_OK;
}

tr_status tr_save_look(tr_session *s) {
    bool written;
    if (!tr_saver_saves(s->saver)) return TR_OK;
    TR_TRY(tr_saver_look(s->saver, &written));
    return written ? tr_save_settle(s) : TR_OK;
}

tr_status tr_save_settle(tr_session *s) {
    if (!tr_saver_saves(s->saver)) return TR_OK;
    tr_session_begin(s, TR_ACTIVITY_SAVE, 0);
    return end(s, TR_OK, false);
}
