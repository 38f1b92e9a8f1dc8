/* Tests the guard: running means against their definition, limits, and every verdict. */
#include "train/guard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static tr_config config_of(const char *action, double sigma, int64_t skips) {
    tr_config c = {.guard = {.sigma = sigma, .skips = skips}};
    strcpy(c.guard.action, action);
    return c;
}

static tr_step_result step_of(double loss, double norm) {
    return (tr_step_result){
        .loss = loss, .grad_norm = norm, .tokens = 1, .finite = isfinite(loss) && isfinite(norm)};
}

static tr_verdict judge(const tr_config *c, tr_ckpt_guard *g, double loss, double norm,
                        char *text) {
    const tr_guard_limits limits = tr_guard_next(c, g);
    const tr_step_result result = step_of(loss, norm);
    return tr_guard_judge(c, &limits, true, &result, g, text);
}

/* A loss around 3 and a norm around 1 that change from step to step. */
static double loss_at(int k) {
    return 3 + 0.1 * sin(k);
}
static double norm_at(int k) {
    return 1 + 0.3 * cos(2 * k);
}

static void take_steps(const tr_config *c, tr_ckpt_guard *g, int steps) {
    char text[TR_GUARD_TEXT];
    for (int k = 0; k < steps; k++)
        assert_int_equal(judge(c, g, loss_at(k), norm_at(k), text), TR_VERDICT_TAKEN);
}

static void first_steps_have_the_plain_mean_and_variance(void **state) {
    (void)state;
    const tr_config c = config_of("warn", 6, 20);
    tr_ckpt_guard g = {0};
    double mean = 0, variance = 0;
    take_steps(&c, &g, TR_GUARD_WINDOW);
    for (int k = 0; k < TR_GUARD_WINDOW; k++) mean += norm_at(k) / TR_GUARD_WINDOW;
    for (int k = 0; k < TR_GUARD_WINDOW; k++)
        variance += (norm_at(k) - mean) * (norm_at(k) - mean) / TR_GUARD_WINDOW;
    assert_true(fabs(g.norm_mean - mean) < 1e-14 && fabs(g.norm_variance - variance) < 1e-14);
    assert_int_equal(g.steps, TR_GUARD_WINDOW);
}

static void later_steps_fade(void **state) {
    (void)state;
    const tr_config c = config_of("warn", 0, 20);
    const int steps = 1000;
    tr_ckpt_guard g = {0};
    double mean = 0, square = 0, all = 0;
    take_steps(&c, &g, steps);
    for (int k = 0; k < steps; k++) { /* the first window's steps weigh the same */
        const int age = k < TR_GUARD_WINDOW ? steps - TR_GUARD_WINDOW : steps - 1 - k;
        const double weight = pow(1 - 1.0 / TR_GUARD_WINDOW, age) / TR_GUARD_WINDOW;
        mean += weight * loss_at(k);
        square += weight * loss_at(k) * loss_at(k);
        all += weight;
    }
    assert_true(fabs(all - 1) < 1e-12);
    assert_true(fabs(g.loss_mean - mean) < 1e-12);
    assert_true(fabs(g.loss_variance - (square - mean * mean)) < 1e-12);
}

static void nothing_is_out_of_line_at_first(void **state) {
    (void)state;
    tr_config c = config_of("skip", 3, 20);
    tr_ckpt_guard g = {0};
    take_steps(&c, &g, TR_GUARD_LEAST - 1);
    tr_guard_limits limits = tr_guard_next(&c, &g);
    assert_true(limits.loss == 0 && limits.norm == 0);
    take_steps(&c, &g, 1);
    limits = tr_guard_next(&c, &g);
    assert_true(limits.loss == g.loss_mean + 3 * sqrt(g.loss_variance));
    assert_true(limits.norm == g.norm_mean + 3 * sqrt(g.norm_variance));
    c.guard.sigma = 0;
    limits = tr_guard_next(&c, &g);
    assert_true(limits.loss == 0 && limits.norm == 0);
}

static void each_action_has_its_verdict(void **state) {
    (void)state;
    static const struct {
        const char *action;
        tr_verdict beyond, broken;
    } want[] = {{"warn", TR_VERDICT_WARNED, TR_VERDICT_DIVERGED},
                {"skip", TR_VERDICT_SKIPPED, TR_VERDICT_SKIPPED},
                {"rollback", TR_VERDICT_ROLLED_BACK, TR_VERDICT_DIVERGED}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char text[TR_GUARD_TEXT];
        const tr_config c = config_of(want[i].action, 6, 20);
        tr_ckpt_guard g = {0}, before;
        take_steps(&c, &g, 50);
        assert_int_equal(tr_guard_prevents(&c), want[i].beyond != TR_VERDICT_WARNED);
        before = g;
        assert_int_equal(judge(&c, &g, 9, 1, text), want[i].beyond);
        assert_non_null(strstr(text, "the loss 9 is more than 6 standard deviations"));
        g = before;
        const tr_config one = config_of(want[i].action, 1, 20);
        assert_int_equal(judge(&one, &g, 9, 1, text), want[i].beyond);
        assert_non_null(strstr(text, "the loss 9 is more than 1 standard deviation (guard.sigma)"));
        g = before;
        assert_int_equal(judge(&c, &g, 9, 1, text), want[i].beyond);
        const bool counts = want[i].beyond == TR_VERDICT_WARNED;
        assert_int_equal(g.steps, before.steps + counts); /* a skipped step is not in the means */
        g = before;
        assert_int_equal(judge(&c, &g, 3, 40, text), want[i].beyond);
        assert_non_null(strstr(text, "the gradient norm 40 is more than"));
        g = before;
        assert_int_equal(judge(&c, &g, 0, 0, text), TR_VERDICT_TAKEN); /* below is never wrong */
        assert_string_equal(text, "");
        g = before;
        assert_int_equal(judge(&c, &g, NAN, 1, text), want[i].broken);
        assert_int_equal(g.steps, before.steps);
        assert_true(g.loss_mean == before.loss_mean);
        g = before;
        assert_int_equal(judge(&c, &g, 3, INFINITY, text), want[i].broken);
    }
}

static void skips_in_a_row_end_the_run(void **state) {
    (void)state;
    char text[TR_GUARD_TEXT];
    tr_config c = config_of("skip", 6, 3);
    tr_ckpt_guard g = {0};
    take_steps(&c, &g, 50);
    for (int k = 0; k < 5; k++) { /* a good step begins a new row */
        assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_SKIPPED);
        assert_int_equal(judge(&c, &g, NAN, 1, text), TR_VERDICT_SKIPPED);
        assert_int_equal(judge(&c, &g, 3, 1, text), TR_VERDICT_TAKEN);
    }
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_SKIPPED);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_SKIPPED);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_DIVERGED);

    c = config_of("rollback", 6,
                  3); /* good steps after a return are taken again: only a save ends */
    g = (tr_ckpt_guard){0};
    take_steps(&c, &g, 50);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_ROLLED_BACK);
    assert_int_equal(judge(&c, &g, 3, 1, text), TR_VERDICT_TAKEN);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_ROLLED_BACK);
    tr_guard_saved(&c, &g);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_ROLLED_BACK);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_ROLLED_BACK);
    assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_DIVERGED);
}

/* Without a checkpoint to go back to, rollback skips, and only steps in a row end the run. */
static void without_a_checkpoint_rollback_skips(void **state) {
    (void)state;
    char text[TR_GUARD_TEXT];
    const tr_config c = config_of("rollback", 6, 2);
    const tr_step_result far = step_of(9, 1), good = step_of(3, 1);
    tr_ckpt_guard g = {0};
    take_steps(&c, &g, 50);
    const tr_guard_limits limits = tr_guard_next(&c, &g);
    for (int k = 0; k < 5; k++) {
        assert_int_equal(tr_guard_judge(&c, &limits, false, &far, &g, text), TR_VERDICT_SKIPPED);
        assert_int_equal(tr_guard_judge(&c, &limits, false, &good, &g, text), TR_VERDICT_TAKEN);
    }
    assert_int_equal(tr_guard_judge(&c, &limits, false, &far, &g, text), TR_VERDICT_SKIPPED);
    assert_int_equal(tr_guard_judge(&c, &limits, false, &far, &g, text), TR_VERDICT_DIVERGED);
    const tr_step_result broken = step_of(NAN, 1);
    g.skips = 0;
    assert_int_equal(tr_guard_judge(&c, &limits, false, &broken, &g, text), TR_VERDICT_DIVERGED);
}

/* FP16 skips steps that are not finite under every action. */
static void overflows_in_a_row_end_the_run(void **state) {
    (void)state;
    static const char *const actions[] = {"warn", "skip", "rollback"};
    char text[TR_GUARD_TEXT];
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        tr_config c = config_of(actions[i], 6, 3);
        strcpy(c.train.precision, "fp16");
        const bool counts_both = !strcmp(actions[i], "skip");
        tr_ckpt_guard g = {0};
        take_steps(&c, &g, 50);
        for (int k = 0; k < 5; k++) {
            assert_int_equal(judge(&c, &g, 3, INFINITY, text), TR_VERDICT_SKIPPED);
            assert_non_null(strstr(text, "gradients overflow FP16"));
            assert_int_equal(judge(&c, &g, NAN, NAN, text), TR_VERDICT_SKIPPED);
            assert_int_equal(judge(&c, &g, 3, 1, text), TR_VERDICT_TAKEN);
        }
        tr_guard_saved(&c, &g);
        if (!strcmp(actions[i], "warn")) {
            assert_int_equal(judge(&c, &g, 9, 1, text), TR_VERDICT_WARNED);
        } else { /* counts as a skip, not as a return */
            (void)judge(&c, &g, 9, 1, text);
            assert_int_equal(g.skips, 1);
        }
        assert_int_equal(judge(&c, &g, 3, NAN, text), TR_VERDICT_SKIPPED);
        assert_int_equal(judge(&c, &g, 3, NAN, text),
                         counts_both ? TR_VERDICT_DIVERGED : TR_VERDICT_SKIPPED);
        assert_int_equal(judge(&c, &g, 3, NAN, text), TR_VERDICT_DIVERGED);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_steps_have_the_plain_mean_and_variance),
        cmocka_unit_test(later_steps_fade),
        cmocka_unit_test(nothing_is_out_of_line_at_first),
        cmocka_unit_test(each_action_has_its_verdict),
        cmocka_unit_test(skips_in_a_row_end_the_run),
        cmocka_unit_test(without_a_checkpoint_rollback_skips),
        cmocka_unit_test(overflows_in_a_row_end_the_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
