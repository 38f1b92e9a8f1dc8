#include "train/saved_step.h"

#include "base/memory.h"
#include "config/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A restart continues the run that its job has begun, however the job was started. */
static tr_resume resume_of(const tr_session *s) {
    const tr_resume given = s->options->resume;
    return given == TR_RESUME_NO && s->dir.begun ? TR_RESUME_AUTO : given;
}

/* Writes the folder of the config's file to folder[] when the file names log.dir, and the folder is
 * another one that has checkpoints: a run's directory was copied or moved, or log.dir is relative
 * to another working directory. Else "". */
static void find_other_run(const tr_config *c, char folder[sizeof c->source]) {
    const char *slash = strrchr(c->source, '/');
    char root[sizeof c->source + 8];
    struct stat here, dir;
    bool any = false;
    folder[0] = '\0';
    if (c->place[tr_schema_find("log.dir")].line <= 0 || strlen(c->source) + 1 == sizeof c->source)
        return;
    (void)snprintf(folder, sizeof c->source, "%.*s", slash ? (int)(slash - c->source) : 1,
                   slash ? c->source : ".");
    (void)snprintf(root, sizeof root, "%s/ckpt", folder);
    const bool same = stat(c->log.dir, &dir) == 0 && stat(folder, &here) == 0 &&
                      dir.st_dev == here.st_dev && dir.st_ino == here.st_ino;
    if (!same && tr_ckpt_any(root, &any) != TR_OK) tr_error_clear(); /* the run does not need it */
    if (!any) folder[0] = '\0';
}

tr_status tr_saved_step_find(tr_session *s) {
    char other[sizeof s->config->source];
    const tr_resume resume = resume_of(s);
    if (resume == TR_RESUME_NO) {
        if (!tr_rundir_has_checkpoints(&s->dir)) return TR_OK;
        return TR_FAIL(TR_ERR_CONFIG,
                       "'%s' contains another run: continue it with --resume, or choose another "
                       "directory with log.dir=...",
                       s->config->log.dir);
    }
    bool any = false;
    find_other_run(s->config, other);
    if (s->dir.fd >= 0) TR_TRY(tr_ckpt_any(s->root, &any));
    if (other[0] && !s->unloaded_count && (any || resume == TR_RESUME_AUTO))
        tr_recorder_warn(&s->recorder,
                         "log.dir is '%.200s', as the config says, and not '%s', which has the "
                         "config and checkpoints, too: log.dir=%s continues these",
                         s->config->log.dir, other, other);
    if (any) {
        const size_t tried = s->unloaded_count;
        const int64_t below = tried ? s->unloaded[tried - 1].step : INT64_MAX;
        int64_t step;
        TR_TRY(tr_ckpt_newest(s->root, below, &step, &s->skipped));
        TR_TRY(tr_ckpt_read_state(s->root, step, s->state));
        s->resumes = true;
        return TR_OK;
    }
    if (resume == TR_RESUME_AUTO) return TR_OK;
    if (other[0])
        return TR_FAIL(TR_ERR_NOFILE,
                       "there is no checkpoint under '%s' to resume from: log.dir=%s continues the "
                       "run that has this config",
                       s->root, other);
    return TR_FAIL(TR_ERR_NOFILE,
                   "there is no checkpoint under '%s' to resume from: start the run without "
                   "--resume, or with --resume=auto",
                   s->root);
}

/* Loads the parameters of a saved step, and its state if it is not that of the session. Moments
 * become zero if their count begins with this step. corrupt: of tr_ckpt_load. Collective. */
static tr_status load_step(tr_session *s, int64_t step, tr_ckpt_state *saved, char *corrupt) {
    tr_store *store = tr_engine_store(s->engine);
    tr_session_begin(s, TR_ACTIVITY_LOAD, 0);
    TR_TRY(tr_world_agree(s->world, tr_store_clear_states(store)));
    TR_TRY(tr_ckpt_load(s->world, s->root, step, s->tensors, s->tensors_count, saved, corrupt));
    const tr_ckpt_state *loaded = saved ? saved : s->state;
    if (s->state->moments_since == loaded->optimizer_step)
        TR_TRY(tr_world_agree(s->world, tr_store_clear_states(store)));
    return tr_store_publish(store);
}

tr_status tr_saved_step_roll_back(tr_session *s) {
    tr_ckpt_state *saved, *now = s->state;
    TR_TRY(tr_world_calloc(s->world, 1, sizeof *saved, &saved));
    tr_status status = load_step(s, s->saved_step, saved, NULL);
    if (status == TR_OK) {
        const int64_t skips = now->guard.skips;
        now->step = saved->step;
        now->optimizer_step = saved->optimizer_step; /* moments_since stays this run's */
        now->skipped = saved->skipped;
        now->tokens_seen = saved->tokens_seen;
        now->guard = saved->guard;
        now->guard.skips = skips;
        now->noise = saved->noise;
        now->scale = saved->scale;
        if (tr_session_leads(s)) tr_recorder_go_back(&s->recorder, now->step);
    }
    free(saved);
    return status;
}

/* Notes that the step could not be loaded. */
static tr_status add_unloaded(tr_session *s, const char *why) {
    size_t capacity = s->unloaded_count;
    TR_TRY(tr_grow(&s->unloaded, &capacity, s->unloaded_count + 1, sizeof *s->unloaded));
    tr_unloaded *u = &s->unloaded[s->unloaded_count++];
    u->step = s->state->step;
    (void)snprintf(u->why, sizeof u->why, "%s", why);
    if (s->skipped.why[0]) return TR_OK;
    s->skipped.step = u->step;
    (void)snprintf(s->skipped.why, sizeof s->skipped.why, "%s", why);
    return TR_OK;
}

/* On rank 0: marks the newer steps that could not be loaded, now that an older one could: otherwise
 * the fault may be this machine's, and they are left as they are. Says which step the run goes on
 * from. */
static void pass_over_newer(tr_session *s) {
    for (size_t i = 0; i < s->unloaded_count; i++)
        if (tr_ckpt_mark_corrupt(s->root, s->unloaded[i].step, s->unloaded[i].why) != TR_OK)
            tr_recorder_warn(&s->recorder,
                             "step %lld may not be replaced when the run reaches it: %s",
                             (long long)s->unloaded[i].step, tr_error_message());
    if (s->skipped.why[0])
        tr_recorder_warn(&s->recorder,
                         "resuming from step %lld, because a newer one is not valid: %s",
                         (long long)s->state->step, s->skipped.why);
}

tr_status tr_saved_step_load(tr_session *s) {
    char corrupt[TR_CKPT_WHY] = "";
    tr_status status = load_step(s, s->state->step, NULL, corrupt);
    if (corrupt[0]) TR_TRY(tr_world_agree(s->world, add_unloaded(s, corrupt)));
    TR_TRY(status);
    if (tr_session_leads(s)) {
        pass_over_newer(s);
        tr_saved_run_say(&s->saved, s->config, &s->recorder);
    }
    s->saved_step = s->state->step;
    return TR_OK;
}
