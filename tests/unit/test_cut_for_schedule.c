/* The cut for a schedule against an exhaustive search: with few exceptions no cut that needs no
 * more memory than the balanced one has a shorter step. */
#include "base/memory.h"
#include "layers/layer_stage.h"
#include "partition/cut_for_schedule.h"
#include "partition/param_memory.h"
#include "pipeline/orders/estimate.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { MOST_STAGES = 8 };

typedef struct value {
    double time, memory;
} value;

static value measure(const tr_model *model, const tr_schedule *s, const int *first) {
    tr_stage_table t;
    tr_estimate *e;
    value v = {0};
    tr_placement placement = {.stages = s->stages, .first = first, .owner = s->rank_of};
    if (tr_layer_table_make(model, first, s->stages, &t) != TR_OK)
        fail_msg("%s", tr_error_message());
    assert_int_equal(tr_estimate_order(s, &(tr_estimate_options){.table = &t}, &e), TR_OK);
    v.time = e->makespan;
    for (int r = 0; r < s->ranks; r++) {
        size_t values, gradients, moments;
        tr_param_memory params = tr_memory_of_params(model, &placement, r, NULL, 0,
                                                     (tr_optim_memory){.kind = TR_OPTIM_ADAMW});
        tr_memory_params_bytes(&params, model->shape.dtype, &values, &gradients, &moments);
        v.memory = fmax(v.memory, (double)(values + gradients + moments) + e->peak[r]);
    }
    tr_estimate_destroy(e);
    tr_stage_table_free(&t);
    return v;
}

/* Tries every cut: boundaries from `stage` on. The first layer has no block, nor has the last. */
static double search(const tr_model *model, const tr_schedule *s, int stage, int *first,
                     double most) {
    int n = model->count, left = s->stages - stage;
    if (left == 0) {
        first[stage] = n;
        value v = measure(model, s, first);
        return v.memory <= most * (1 + 1e-9) ? v.time : INFINITY;
    }
    double best = INFINITY;
    for (int at = first[stage - 1] + 1 + (stage == 1); at + left < n; at++) {
        first[stage] = at;
        best = fmin(best, search(model, s, stage + 1, first, most));
    }
    return best;
}

static tr_model *random_model(test_random *r) {
    tr_model *model = NULL;
    int64_t heads = 1 << test_between(r, 0, 2);
    tr_model_config c = {.family = "llama",
                         .layers = test_between(r, 4, 8),
                         .width = 16 * heads,
                         .heads = heads,
                         .context = 32,
                         .vocab = 64 << test_between(r, 0, 6)};
    tr_model_shape shape = {.batch = 1, .seq = 32, .dtype = TR_F32, .tp_size = 1};
    if (tr_model_complete(&c) != TR_OK || tr_model_create(&c, &shape, &model) != TR_OK)
        fail_msg("%s", tr_error_message());
    return model;
}

static void test_no_cut_is_faster(void **state) {
    (void)state;
    static const char *const names[] = {"gpipe", "1f1b",        "zb-h1", "zb-2p",
                                        "bfs",   "interleaved", "zbv",   "dualpipev"};
    enum { NAMES = sizeof names / sizeof *names, TRIALS = 300 };
    test_random r = {tr_mix64(tr_test_seed(4711))};
    int faster = 0, missed = 0;
    double worst = 0;
    for (int n = 0; n < TRIALS; n++) {
        tr_model *model = random_model(&r);
        int k = test_between(&r, 0, NAMES - 1), v = k < 4 ? 1 : 2;
        int p = test_between(&r, 1, v == 1 ? 4 : 2), first[MOST_STAGES + 1], trial[MOST_STAGES + 1];
        tr_schedule *s;
        tr_schedule_request q = {
            .name = names[k], .ranks = p, .micro_batches = test_between(&r, 1, 8), .chunks = v};
        if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s", tr_error_message());
        assert_int_equal(tr_cut_model(model, s->stages, trial), TR_OK);
        value balanced = measure(model, s, trial);
        assert_int_equal(
            tr_cut_for_schedule(model, s, (tr_optim_memory){.kind = TR_OPTIM_ADAMW}, first), TR_OK);
        value chosen = measure(model, s, first);
        trial[0] = 0;
        double best = search(model, s, 1, trial, balanced.memory);
        assert_true(chosen.time <= balanced.time * (1 + 1e-9));
        assert_true(chosen.memory <= balanced.memory * (1 + 1e-9));
        assert_true(chosen.time >= best * (1 - 1e-9));
        faster += chosen.time < balanced.time * (1 - 1e-9);
        missed += chosen.time > best * (1 + 1e-9);
        worst = fmax(worst, chosen.time / best - 1);
        tr_schedule_destroy(s);
        tr_model_destroy(model);
    }
    printf("faster than the balanced cut in %d of %d, not the best in %d, worst %.2f%%\n", faster,
           TRIALS, missed, 100 * worst);
    assert_true(faster > TRIALS / 30);
    assert_true(missed <= TRIALS / 50 && worst <= 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_cut_is_faster)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
