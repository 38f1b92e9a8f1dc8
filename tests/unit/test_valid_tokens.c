/* Tests labels that do not count, in unequal numbers for each micro-batch and data rank: a step's
 * loss and gradient are means over all labels that count, whatever the layout. */
#include "support/engine_ranks.h"
#include "support/generate_order.h"
#include "train/engine.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 8, CONTEXT = 16, VOCAB = 32, MOST_RANKS = 4, ALL = -1 };

/* Labels of each sample that count: two data ranks have 36 and 9, four have 17, 19, 0 and 9. */
static const int counted[SAMPLES] = {16, 1, 3, 16, 0, 0, 7, 2};
enum { COUNTED = 45 };

typedef struct layout {
    int pp, dp, micro_batch;
} layout;

/* One rank of a run. */
typedef struct member {
    const tr_schedule *schedule;
    layout layout;
    int only; /* the sample with labels that count, or ALL */
    tr_step_result step, validation;
} member;

/* Tokens and labels are an arbitrary function of the position. */
static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    const member *m = context;
    (void)validation;
    /* The engine reads ahead, also when no step follows. */
    if (sample >= SAMPLES) return TR_FAIL(TR_ERR_DATA, "there is no such sample");
    for (int k = 0; k < count; k++) {
        int32_t *to = wanted[k].to;
        bool labels = strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0;
        int most = m->only == ALL || m->only == sample ? counted[sample] : 0;
        for (int32_t i = 0; i < CONTEXT; i++) {
            to[i] = (int32_t)((sample * 7 + i * 5 + (labels ? 3 : 0)) % VOCAB);
            /* The labels that count are spread out: 5 and 16 have no common divisor. */
            if (labels && i * 5 % CONTEXT >= most) to[i] = -1;
        }
    }
    return TR_OK;
}

static tr_status train(engine_rank *r, void *state) {
    member *m = state;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = {.family = "gpt2",
                                     .layers = 2,
                                     .width = 16,
                                     .heads = 2,
                                     .context = CONTEXT,
                                     .vocab = VOCAB},
                           .batch = SAMPLES,
                           .micro_batch = m->layout.micro_batch,
                           .dtype = TR_F64,
                           .schedule = m->schedule,
                           .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
                           .fetch = fetch,
                           .fetch_context = m};
    TR_TRY(tr_mesh_make(m->layout.pp, m->layout.dp, 1, r->rank, r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    TR_TRY(tr_engine_validate(r->engine, 1, &m->validation));
    return tr_engine_step(r->engine, 1, 1, 0, 1e-3, &m->step);
}

/* Runs the first step and the validation, and returns what the first rank reports. */
static member run(layout l, int only) {
    member of[MOST_RANKS];
    tr_schedule *schedule;
    const int ranks = l.pp * l.dp;
    const int micro_batches = SAMPLES / l.dp / l.micro_batch;
    assert_int_equal(generate_order("1f1b", l.pp, l.pp, micro_batches, &schedule), TR_OK);
    for (int i = 0; i < ranks; i++)
        of[i] = (member){.schedule = schedule, .layout = l, .only = only};
    run_engine_ranks(ranks, "ref", train, of, sizeof *of);
    tr_schedule_destroy(schedule);
    return of[0];
}

static void assert_near(double got, double want, const char *what, layout l) {
    const double eps = 1024 * DBL_EPSILON; /* sums in FP64, in another order */
    if (!(fabs(got - want) <= eps * fabs(want)))
        fail_msg("pp %d dp %d micro-batch %d: %s is %.17g, not %.17g", l.pp, l.dp, l.micro_batch,
                 what, got, want);
}

static void test_mean_over_all_labels(void **state) {
    (void)state;
    static const layout layouts[] = {{1, 1, 1}, {1, 1, 2}, {2, 1, 2}, {1, 2, 1},
                                     {1, 2, 4}, {2, 2, 1}, {1, 4, 1}, {1, 4, 2}};
    const layout whole = {1, 1, SAMPLES};
    double sum = 0;
    for (int k = 0; k < SAMPLES; k++)
        if (counted[k] > 0) sum += counted[k] * run(whole, k).step.loss;
    const member one = run(whole, ALL);
    assert_near(one.step.loss, sum / COUNTED, "the loss", whole);
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        const layout l = layouts[k];
        const member got = run(l, ALL);
        assert_near(got.step.tokens, COUNTED, "the number of labels", l);
        assert_near(got.step.loss, sum / COUNTED, "the loss", l);
        assert_near(got.step.grad_norm, one.step.grad_norm, "the gradient's norm", l);
        assert_near(got.validation.loss, sum / COUNTED, "the validation loss", l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mean_over_all_labels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
