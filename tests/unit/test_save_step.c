/* Tests what a save means for the guard's count of skips in a row, and for the step that a run goes
 * back to: with a saver that the test lets succeed or fail; and that the records are on the disk
 * before it begins. */
#include "train/save_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct {
    bool saves, fails; /* a save is in progress; the next that ends fails */
    bool refuses;      /* the next that begins fails */
    bool synced;       /* the records are on the disk */
    int warnings;
    tr_ckpt_guard saved;
} saver;

/* The linker sends calls of these functions here. */
tr_status __wrap_tr_saver_begin(tr_saver *s, const tr_ckpt_state *state, bool background);
tr_status __wrap_tr_saver_begin(tr_saver *s, const tr_ckpt_state *state, bool background) {
    (void)s, (void)background;
    assert_false(saver.saves);
    assert_true(saver.synced);
    saver.synced = false;
    if (saver.refuses) return TR_FAIL(TR_ERR_IO, "Read-only file system");
    saver.saves = true;
    saver.saved = state->guard;
    return TR_OK;
}

bool __wrap_tr_saver_saves(const tr_saver *s);
bool __wrap_tr_saver_saves(const tr_saver *s) {
    (void)s;
    return saver.saves;
}

tr_status __wrap_tr_saver_look(tr_saver *s, bool *written);
tr_status __wrap_tr_saver_look(tr_saver *s, bool *written) {
    (void)s;
    *written = true;
    return TR_OK;
}

tr_status __wrap_tr_saver_end(tr_saver *s, double *seconds);
tr_status __wrap_tr_saver_end(tr_saver *s, double *seconds) {
    (void)s, (void)seconds;
    const bool failed = saver.fails;
    assert_true(saver.saves);
    saver.saves = saver.fails = false;
    return failed ? TR_FAIL(TR_ERR_IO, "No space left on device") : TR_OK;
}

tr_status __wrap_tr_engine_complete(tr_engine *engine);
tr_status __wrap_tr_engine_complete(tr_engine *engine) {
    (void)engine;
    return TR_OK;
}

void __wrap_tr_session_begin(tr_session *s, tr_activity_phase phase, int64_t total);
void __wrap_tr_session_begin(tr_session *s, tr_activity_phase phase, int64_t total) {
    (void)s, (void)phase, (void)total;
}

bool __wrap_tr_rundir_in_place(const tr_rundir *dir);
bool __wrap_tr_rundir_in_place(const tr_rundir *dir) {
    (void)dir;
    return true;
}

void __wrap_tr_recorder_write_report(tr_recorder *recorder);
void __wrap_tr_recorder_write_report(tr_recorder *recorder) {
    (void)recorder;
}

void __wrap_tr_recorder_sync(tr_recorder *recorder);
void __wrap_tr_recorder_sync(tr_recorder *recorder) {
    (void)recorder;
    saver.synced = true;
}

void __wrap_tr_recorder_warn(tr_recorder *recorder, const char *format, ...);
void __wrap_tr_recorder_warn(tr_recorder *recorder, const char *format, ...) {
    (void)recorder, (void)format;
    saver.warnings++;
}

typedef struct rig {
    tr_config config;
    tr_ckpt_state state;
    tr_train_options options;
    tr_session session;
} rig;

static rig *open_rig(const char *keys) {
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    memset(&saver, 0, sizeof saver);
    assert_int_equal(tr_config_parse(keys, strlen(keys), "x.yaml", NULL, 0, &r->config), TR_OK);
    r->session.config = &r->config;
    r->session.options = &r->options;
    r->session.state = &r->state;
    r->session.saved_step = -1;
    (void)strcpy(r->session.root, "there-is-none");
    assert_int_equal(tr_world_open_local(1, &r->session.world), TR_OK);
    return r;
}

static void close_rig(rig *r) {
    tr_world_close(r->session.world);
    free(r);
}

/* Takes a step, which the guard counts as skipped, and begins to save it. */
static void save_skipped(rig *r) {
    r->state.step++;
    r->state.guard.skips++;
    assert_int_equal(tr_save_step(&r->session, false), TR_OK);
    assert_true(saver.saves);
}

/* With guard.action skip a save changes no count. */
static void skips_count_on(void **state) {
    (void)state;
    rig *r = open_rig("{data.path: a, guard.action: skip, checkpoint.background: true}");
    save_skipped(r);
    save_skipped(r);
    assert_int_equal(r->session.saved_step, 1);
    assert_int_equal(saver.saved.skips, 2);
    assert_int_equal(tr_save_settle(&r->session), TR_OK);
    assert_int_equal(r->session.saved_step, 2);
    assert_int_equal(r->state.guard.skips, 2);
    close_rig(r);
}

/* With rollback it counts the returns to a checkpoint, so it begins again with each that is
 * committed: in the file at once, and in the run when it is. */
static void returns_begin_again(void **state) {
    (void)state;
    rig *r = open_rig("{data.path: a, guard.action: rollback, checkpoint.background: true}");
    save_skipped(r);
    assert_int_equal(saver.saved.skips, 0);
    assert_int_equal(r->state.guard.skips, 1);
    assert_int_equal(tr_save_look(&r->session), TR_OK);
    assert_int_equal(r->session.saved_step, 1);
    assert_int_equal(r->state.guard.skips, 0);
    close_rig(r);
}

/* A save that fails leaves the count; one that the next save commits does not. */
static void failed_save_leaves_returns(void **state) {
    (void)state;
    rig *r = open_rig("{data.path: a, guard.action: rollback, checkpoint.background: true}");
    save_skipped(r);
    saver.fails = true;
    save_skipped(r); /* ends the first one */
    assert_int_equal(r->session.saved_step, -1);
    assert_int_equal(r->state.guard.skips, 2);
    save_skipped(r);
    assert_int_equal(r->session.saved_step, 2);
    assert_int_equal(r->state.guard.skips, 0);
    r->state.guard.skips = 1;
    saver.fails = true;
    assert_int_equal(tr_save_settle(&r->session), TR_OK);
    assert_int_equal(r->session.saved_step, 2);
    assert_int_equal(r->state.guard.skips, 1);
    close_rig(r);
}

/* The last save is complete when it returns, also in the background. */
static void last_save_ends(void **state) {
    (void)state;
    rig *r = open_rig("{data.path: a, checkpoint.background: true}");
    r->state.step = 1;
    assert_int_equal(tr_save_step(&r->session, true), TR_OK);
    assert_false(saver.saves);
    assert_int_equal(r->session.saved_step, 1);
    r->state.step = 2;
    saver.fails = true;
    assert_int_equal(tr_save_step(&r->session, true), TR_ERR_IO);
    assert_int_equal(r->session.saved_step, 1);
    close_rig(r);
}

/* A save that cannot begin is told, and the run goes on. */
static void save_that_does_not_begin_warns(void **state) {
    (void)state;
    rig *r = open_rig("{data.path: a, checkpoint.background: true}");
    r->state.step = 1;
    saver.refuses = true;
    assert_int_equal(tr_save_step(&r->session, false), TR_OK);
    assert_int_equal(r->session.saved_step, -1);
    assert_int_equal(saver.warnings, 1);
    close_rig(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skips_count_on), cmocka_unit_test(returns_begin_again),
        cmocka_unit_test(failed_save_leaves_returns), cmocka_unit_test(last_save_ends),
        cmocka_unit_test(save_that_does_not_begin_warns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
