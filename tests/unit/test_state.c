/* Tests the check of a checkpoint's state: it accepts states that a run can have, and refuses every
 * number that a run cannot have. */
#include "ckpt/ckpt_impl.h"
#include "train/saved_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns the state after 1000 steps of 16 sequences of 128 tokens, in the fourth epoch of a file
 * that has grown. */
static tr_ckpt_state good_state(void) {
    return (tr_ckpt_state){.step = 1000,
                           .next_sample = 16000,
                           .seed = 1,
                           .optimizer_step = 990,
                           .skipped = 10,
                           .tokens_seen = 16000.0 * 128,
                           .data_bytes = 700000,
                           .data_hash = 5,
                           .data_format = 6,
                           .validation = 0.1,
                           .split_bytes = 500000,
                           .epoch = 3,
                           .epoch_sample = 15000,
                           .epoch_bytes = 600000};
}

static void what_a_run_can_have_passes(void **state) {
    (void)state;
    tr_ckpt_state s = good_state();
    assert_int_equal(tr_state_check(&s, "here", TR_ERR_DATA), TR_OK);
    /* saved by a version that recorded nothing of the data */
    memset((char *)&s + offsetof(tr_ckpt_state, data_bytes), 0,
           offsetof(tr_ckpt_state, config) - offsetof(tr_ckpt_state, data_bytes));
    assert_int_equal(tr_state_check(&s, "here", TR_ERR_DATA), TR_OK);
    s = (tr_ckpt_state){.step = 0, .seed = UINT64_MAX}; /* stopped before the first step */
    assert_int_equal(tr_state_check(&s, "here", TR_ERR_DATA), TR_OK);
}

#define FIELD(name) #name, offsetof(tr_ckpt_state, name)
static const struct {
    const char *name;
    size_t at;
    int64_t value;
} integers[] = {
    {FIELD(step), -1},
    {FIELD(step), INT64_MIN},
    {FIELD(step), INT64_MAX},
    {FIELD(step), (INT64_C(1) << 40) + 1},
    {FIELD(next_sample), -1},
    {FIELD(next_sample), INT64_MIN},
    {FIELD(next_sample), INT64_MAX},
    {FIELD(next_sample), 0},
    {FIELD(next_sample), 999},
    {FIELD(optimizer_step), -1},
    {FIELD(optimizer_step), INT64_MIN},
    {FIELD(optimizer_step), INT64_MAX},
    {FIELD(optimizer_step), 1001},
    {FIELD(moments_since), -1},
    {FIELD(moments_since), 991},
    {FIELD(skipped), -1},
    {FIELD(skipped), INT64_MIN},
    {FIELD(skipped), INT64_MAX},
    {FIELD(skipped), 9},
    {FIELD(skipped), 11},
    {FIELD(data_bytes), -1},
    {FIELD(data_bytes), INT64_MIN},
    {FIELD(data_bytes), INT64_MAX},
    {FIELD(data_bytes), 0},
    {FIELD(split_bytes), -1},
    {FIELD(split_bytes), INT64_MIN},
    {FIELD(split_bytes), INT64_MAX},
    {FIELD(split_bytes), 0},
    {FIELD(split_bytes), 600001},
    {FIELD(epoch), -1},
    {FIELD(epoch), INT64_MIN},
    {FIELD(epoch), INT64_MAX},
    {FIELD(epoch), 15001},
    {FIELD(epoch_sample), -1},
    {FIELD(epoch_sample), INT64_MIN},
    {FIELD(epoch_sample), INT64_MAX},
    {FIELD(epoch_sample), 16001},
    {FIELD(epoch_bytes), -1},
    {FIELD(epoch_bytes), INT64_MIN},
    {FIELD(epoch_bytes), INT64_MAX},
    {FIELD(epoch_bytes), 0},
    {FIELD(epoch_bytes), 700001},
    {"guard_steps", offsetof(tr_ckpt_state, guard.steps), -1},
    {"guard_steps", offsetof(tr_ckpt_state, guard.steps), 1001},
    {"guard_skips", offsetof(tr_ckpt_state, guard.skips), -1},
    {"guard_skips", offsetof(tr_ckpt_state, guard.skips), INT64_MAX},
    {"guard_overflows", offsetof(tr_ckpt_state, guard.overflows), -1},
    {"guard_overflows", offsetof(tr_ckpt_state, guard.overflows), 1001},
    {"loss_scale_steps", offsetof(tr_ckpt_state, scale.steps), -1},
    {"loss_scale_steps", offsetof(tr_ckpt_state, scale.steps), 1001},
    {"noise_steps", offsetof(tr_ckpt_state, noise.steps), -1},
    {"noise_steps", offsetof(tr_ckpt_state, noise.steps), 1001},
};

static const struct {
    const char *name;
    size_t at;
} numbers[] = {{FIELD(tokens_seen)},
               {FIELD(validation)},
               {"loss_mean", offsetof(tr_ckpt_state, guard.loss_mean)},
               {"loss_variance", offsetof(tr_ckpt_state, guard.loss_variance)},
               {"norm_mean", offsetof(tr_ckpt_state, guard.norm_mean)},
               {"norm_variance", offsetof(tr_ckpt_state, guard.norm_variance)},
               {"loss_scale", offsetof(tr_ckpt_state, scale.value)}};

/* Fails unless the state is refused with one sentence that names the field. */
static void refused(const tr_ckpt_state *s, const char *name) {
    char field[64];
    assert_int_equal(tr_state_check(s, "runs/x/index.h5", TR_ERR_DATA), TR_ERR_DATA);
    (void)snprintf(field, sizeof field, "runs/x/index.h5: /state/%s is not", name);
    assert_non_null(strstr(tr_error_message(), field));
}

static void what_no_run_can_have_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        tr_ckpt_state s = good_state();
        memcpy((char *)&s + integers[i].at, &integers[i].value, sizeof(int64_t));
        refused(&s, integers[i].name);
    }
    static const double values[] = {-1, NAN, INFINITY, -INFINITY, 1e300};
    for (size_t f = 0; f < sizeof numbers / sizeof *numbers; f++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            tr_ckpt_state s = good_state();
            memcpy((char *)&s + numbers[f].at, &values[i], sizeof(double));
            refused(&s, numbers[f].name);
        }
    for (size_t i = 1; i < sizeof values / sizeof *values; i++) {
        tr_ckpt_state s = good_state();
        s.noise.square = s.noise.variance = -1;
        assert_int_equal(tr_state_check(&s, "x", TR_ERR_DATA), TR_OK);
        s.noise.square = values[i];
        refused(&s, "noise_square");
        s.noise.square = -1;
        s.noise.variance = values[i];
        refused(&s, "noise_variance");
    }
    static const double scales[] = {0.5, 3, 4095, 1.5 * 4096};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        tr_ckpt_state s = good_state();
        s.scale.value = 32768;
        assert_int_equal(tr_state_check(&s, "x", TR_ERR_DATA), TR_OK);
        s.scale.value = scales[i];
        refused(&s, "loss_scale");
    }
    tr_ckpt_state s = good_state();
    s.tokens_seen = (double)s.optimizer_step; /* a sample may have no label that counts */
    assert_int_equal(tr_state_check(&s, "x", TR_ERR_DATA), TR_OK);
    s.tokens_seen--;
    refused(&s, "tokens_seen");
    s = (tr_ckpt_state){.step = 0, .next_sample = 1, .tokens_seen = 1};
    refused(&s, "next_sample");
    s = (tr_ckpt_state){.step = 0, .tokens_seen = 1};
    refused(&s, "tokens_seen");
}

/* A config that this version cannot read is not compared, which a warning says; its error does not
 * stay. */
static void an_unreadable_config_is_a_warning(void **state) {
    (void)state;
    tr_ckpt_state s = good_state();
    tr_recorder recorder = {.log.fd = -1};
    char *text;
    size_t size;
    tr_saved_run saved;
    tr_config config;
    assert_int_equal(tr_config_parse("", 0, "x.yaml", NULL, 0, &config), TR_OK);
    config.train.seed = (int64_t)s.seed;
    (void)snprintf(s.config, sizeof s.config, "a_key_of_another_version: 1\n");
    assert_int_equal(tr_saved_run_check(&s, "run/ckpt", &config, &saved), TR_OK);
    assert_string_equal(tr_error_message(), "");
    recorder.warnings = open_memstream(&text, &size);
    assert_non_null(recorder.warnings);
    tr_saved_run_say(&saved, &config, &recorder);
    (void)fclose(recorder.warnings);
    assert_non_null(strstr(text, "cannot read the checkpoint's config (run/ckpt:1:1: unknown key "
                                 "'a_key_of_another_version'"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unreadable_config_is_a_warning),
        cmocka_unit_test(what_a_run_can_have_passes),
        cmocka_unit_test(what_no_run_can_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
