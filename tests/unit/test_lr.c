/* Tests the learning rate against PyTorch's and transformers' schedulers (tests/golden/lr.txt,
 * which tests/golden/make_lr.py writes), and against fixed points. */
#include "train/lr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near(double got, double want) {
    if (!(fabs(got - want) <= 4 * 2.3e-16 * fabs(want) + 1e-20))
        fail_msg("%.17g, not %.17g", got, want);
}

/* Returns the schedule of keys with "; " between them. */
static tr_lr schedule_of(const char *keys) {
    char text[512], *rest = NULL;
    const char *overrides[16];
    int count = 0;
    static tr_config config;
    (void)snprintf(text, sizeof text, "%s", keys);
    for (char *key = strtok_r(text, ";\n", &rest); key; key = strtok_r(NULL, ";\n", &rest))
        overrides[count++] = key + strspn(key, " ");
    if (tr_config_parse("", 0, "keys", overrides, count, &config) != TR_OK ||
        tr_config_check(&config, 0) != TR_OK)
        fail_msg("%s: %s", keys, tr_error_message());
    return tr_lr_of(&config);
}

static void equals_the_schedulers(void **state) {
    (void)state;
    static char keys[512], rates[1 << 16];
    int cases = 0;
    FILE *f = fopen(TRIREME_TEST_GOLDEN "/lr.txt", "r");
    assert_non_null(f);
    for (; fgets(keys, sizeof keys, f); cases++) {
        const tr_lr lr = schedule_of(keys);
        char *rate = fgets(rates, sizeof rates, f);
        assert_non_null(rate);
        for (int64_t step = 1; *rate != '\n'; step++) {
            const double want = strtod(rate, &rate), got = tr_lr_at(&lr, step);
            if (!(fabs(got - want) <= 1e-10 * lr.highest))
                fail_msg("%s step %d: %.17g, not %.17g", keys, (int)step, got, want);
        }
    }
    (void)fclose(f);
    assert_true(cases > 12);
}

static void follows_the_cosine(void **state) {
    (void)state;
    const tr_lr lr = {.highest = 3e-4, .lowest = 3e-5, .warmup = 10, .horizon = 110};
    near(tr_lr_at(&lr, 1), 3e-5);
    near(tr_lr_at(&lr, 5), 1.5e-4);
    near(tr_lr_at(&lr, 10), 3e-4);
    near(tr_lr_at(&lr, 60), 0.5 * (3e-4 + 3e-5));
    near(tr_lr_at(&lr, 110), 3e-5);
    near(tr_lr_at(&lr, 500), 3e-5);
    for (int64_t s = 11; s <= 110; s++) assert_true(tr_lr_at(&lr, s) < tr_lr_at(&lr, s - 1));
}

static void no_warmup_and_only_warmup(void **state) {
    (void)state;
    for (tr_lr_shape shape = 0; shape < TR_LR_SHAPES; shape++) {
        const tr_lr longer = {.shape = shape, .highest = 1, .warmup = 8, .horizon = 4};
        near(tr_lr_at(&longer, 4), 0.5);
        near(tr_lr_at(&longer, 8), 1);
        assert_true(tr_lr_at(&longer, 9) >= 0 && tr_lr_at(&longer, 9) <= 1);
        const tr_lr equal = {.shape = shape, .highest = 1, .warmup = 4, .horizon = 4};
        near(tr_lr_at(&equal, 4), 1);
    }
    const tr_lr none = {.highest = 1, .lowest = 0, .warmup = 0, .horizon = 4};
    near(tr_lr_at(&none, 2), 0.5);
    near(tr_lr_at(&none, 4), 0);
    assert_true(tr_lr_at(&none, 1) < 1);
}

/* With every shape a part between two restarts is a schedule of its own, with its warm-up. */
static void parts_begin_again(void **state) {
    (void)state;
    static const int64_t ends[] = {20, 50, 75};
    for (tr_lr_shape shape = 0; shape < TR_LR_SHAPES; shape++)
        for (int given = 0; given < 2; given++) { /* and the usual milestones, decay and cycle */
            tr_lr lr = {.shape = shape,
                        .highest = 1,
                        .lowest = 0.01,
                        .factor = 0.5,
                        .warmup = 5,
                        .horizon = ends[2],
                        .restarts = 2,
                        .restart = {ends[0], ends[1]}};
            if (given) {
                lr.milestones = 2;
                lr.milestone[0] = 3;
                lr.milestone[1] = 11;
                lr.decay = 4;
                lr.cycle = 6;
            }
            for (int part = 0; part < 3; part++) {
                const int64_t begin = part > 0 ? ends[part - 1] : 0;
                tr_lr alone = lr;
                alone.restarts = 0;
                alone.horizon = ends[part] - begin;
                double least = 1;
                for (int64_t s = 1; s <= ends[part] - begin; s++) {
                    assert_true(tr_lr_at(&lr, begin + s) == tr_lr_at(&alone, s));
                    if (s > lr.warmup) least = fmin(least, tr_lr_at(&alone, s));
                }
                near(tr_lr_at(&lr, begin + 1), 0.2);
                assert_true((least < 1) == (shape != TR_LR_CONSTANT));
            }
        }
}

/* train.steps does not move a curve that has a horizon, and is the horizon of one without. */
static void steps_do_not_move_the_horizon(void **state) {
    (void)state;
    const tr_lr set = schedule_of("optim.horizon=50; train.steps=50"),
                more = schedule_of("optim.horizon=50; train.steps=80"),
                by_steps = schedule_of("train.steps=50");
    for (int64_t s = 1; s <= 80; s++) {
        assert_true(tr_lr_at(&set, s) == tr_lr_at(&more, s));
        assert_true(tr_lr_at(&set, s) == tr_lr_at(&by_steps, s));
    }
}

static void knows_which_shapes_have_a_horizon(void **state) {
    (void)state;
    static const char *const has[] = {"cosine", "linear", "wsd", "steps", "cycles"};
    static const char *const has_none[] = {"optim.schedule=constant", "optim.schedule=inverse-root",
                                           "optim.schedule=steps; optim.milestones=3",
                                           "optim.schedule=cycles; optim.cycle=3",
                                           "optim.schedule=cosine; optim.min_lr=0.001"};
    char keys[64];
    for (size_t i = 0; i < sizeof has / sizeof *has; i++) {
        (void)snprintf(keys, sizeof keys, "optim.schedule=%s", has[i]);
        const tr_lr lr = schedule_of(keys);
        assert_true(tr_lr_has_horizon(&lr));
    }
    for (size_t i = 0; i < sizeof has_none / sizeof *has_none; i++) {
        const tr_lr lr = schedule_of(has_none[i]);
        assert_false(tr_lr_has_horizon(&lr));
    }
}

static void a_warmup_that_is_cut_has_a_note(void **state) {
    (void)state;
    static const struct {
        const char *keys, *says; /* "": nothing */
    } cases[] = {
        {"optim.warmup=10; train.steps=10", ""},
        {"optim.warmup=11; train.steps=10", "the run ends at step 10"},
        {"optim.warmup=11; train.steps=10; optim.schedule=constant", "raise train.steps"},
        {"optim.warmup=11; train.steps=10; optim.horizon=50", ""}, /* a piece of 50 steps */
        {"optim.warmup=11; train.steps=50; optim.horizon=10", "the schedule ends at step 10"},
        {"optim.warmup=11; train.steps=50; optim.horizon=10; optim.schedule=constant", ""},
        {"optim.warmup=11; train.steps=50; optim.restarts=20 31", ""},
        {"optim.warmup=11; train.steps=50; optim.restarts=20 30", "begins again at step 30"},
        {"optim.warmup=11; train.steps=50; optim.restarts=40", "the run ends at step 50"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[TR_LR_NOTE];
        const tr_lr lr = schedule_of(cases[i].keys);
        const int64_t steps = strstr(cases[i].keys, "steps=10") ? 10 : 50;
        tr_lr_note_warmup(&lr, steps, text);
        if (!*cases[i].says != !text[0] || !strstr(text, cases[i].says))
            fail_msg("%s: '%s'", cases[i].keys, text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_the_schedulers),
                                       cmocka_unit_test(follows_the_cosine),
                                       cmocka_unit_test(no_warmup_and_only_warmup),
                                       cmocka_unit_test(parts_begin_again),
                                       cmocka_unit_test(steps_do_not_move_the_horizon),
                                       cmocka_unit_test(knows_which_shapes_have_a_horizon),
                                       cmocka_unit_test(a_warmup_that_is_cut_has_a_note)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
