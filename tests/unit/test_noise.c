/* Tests the gradient noise scale: the estimates of a step against gradients of the first
 * micro-batch and of the whole batch that engines of their own compute, on every layout, and the
 * running means. */
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

enum { SAMPLES = 8, CONTEXT = 16, VOCAB = 32, MOST_RANKS = 4 };

/* Labels of each sample that count. */
static const int counted[SAMPLES] = {16, 1, 3, 16, 0, 5, 7, 2};

typedef struct layout {
    const char *family, *schedule;
    int pp, dp, tp, micro_batch;
    tr_answer tie;
} layout;

/* One rank of a run of one step. */
typedef struct member {
    const tr_schedule *schedule;
    layout layout;
    int batch;
    bool noise;
    tr_step_result step;
    double squares; /* of this rank's gradients that the noise scale counts */
} member;

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    (void)context, (void)validation;
    /* The engine reads ahead, also when no step follows. */
    if (sample >= SAMPLES) return TR_FAIL(TR_ERR_DATA, "there is no such sample");
    for (int k = 0; k < count; k++) {
        int32_t *to = wanted[k].to;
        const bool labels = strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0;
        for (int32_t i = 0; i < CONTEXT; i++) {
            to[i] = (int32_t)((sample * 7 + i * 5 + (labels ? 3 : 0)) % VOCAB);
            if (labels && i * 5 % CONTEXT >= counted[sample]) to[i] = -1;
        }
    }
    return TR_OK;
}

/* Sums the squares of the gradients of every use of every parameter that this rank is the first to
 * hold. A step adds the gradient of a tied parameter's second use to that of the first. */
static double squares_of(const tr_store *store) {
    double sum = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        const double *second = NULL, *grad = slot->param->grad;
        for (int k = 0; k < store->slots; k++)
            if (store->slot[k].shares == i) second = store->slot[k].param->grad;
        if (slot->layout.sum.count[TR_AXIS_TP] > 1 || !slot->layout.counted_in_tp) continue;
        for (int64_t e = 0; e < slot->param->count; e++) {
            const double g = grad[e] - (second ? second[e] : 0);
            sum += g * g;
        }
    }
    return sum;
}

static tr_status train(engine_rank *r, void *state) {
    member *m = state;
    const layout *l = &m->layout;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = {.layers = 4,
                                     .width = 16,
                                     .heads = 2,
                                     .kv_heads = strcmp(l->family, "gpt2") == 0 ? 2 : 1,
                                     .context = CONTEXT,
                                     .vocab = VOCAB,
                                     .tie = l->tie},
                           .batch = m->batch,
                           .micro_batch = l->micro_batch,
                           .dtype = TR_F64,
                           .schedule = m->schedule,
                           .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
                           .noise = m->noise,
                           .fetch = fetch};
    (void)strcpy(desc.model.family, l->family);
    TR_TRY(tr_mesh_make(l->pp, l->dp, l->tp, r->rank, r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    TR_TRY(tr_engine_step(r->engine, 1, 1, 0, 1e-3, &m->step));
    m->squares = squares_of(tr_engine_store(r->engine));
    return check_planned_memory(r);
}

/* Takes the first step on `batch` samples, and returns what the first rank reports. *squares: of
 * the gradients of all ranks. */
static tr_step_result run(layout l, int batch, bool noise, double *squares) {
    member of[MOST_RANKS];
    tr_schedule *schedule;
    const int ranks = l.pp * l.dp * l.tp;
    const int stages = strcmp(l.schedule, "zbv") == 0 ? 2 * l.pp : l.pp;
    const int micro_batches = batch / l.dp / l.micro_batch;
    assert_int_equal(generate_order(l.schedule, l.pp, stages, micro_batches, &schedule), TR_OK);
    for (int i = 0; i < ranks; i++)
        of[i] = (member){.schedule = schedule, .layout = l, .batch = batch, .noise = noise};
    run_engine_ranks(ranks, "ref", train, of, sizeof *of);
    *squares = 0;
    for (int i = 0; i < ranks; i++) {
        *squares += of[i].squares;
        assert_memory_equal(&of[i].step.noise, &of[0].step.noise, sizeof of[0].step.noise);
    }
    tr_schedule_destroy(schedule);
    return of[0].step;
}

static void assert_near(double got, double want, const char *what, const layout *l) {
    const double eps =
        1 << 16; /* of sums in FP64 in another order, of which a difference is left */
    if (!(fabs(got - want) <= eps * DBL_EPSILON * fabs(want)))
        fail_msg("%s, %s, pp %d dp %d tp %d micro-batch %d tie %d: %s is %.17g, not %.17g",
                 l->family, l->schedule, l->pp, l->dp, l->tp, l->micro_batch, (int)l->tie, what,
                 got, want);
}

/* Computes the estimates from the mean gradients of two engines, which take their samples as one
 * micro-batch (McCandlish et al. 2018, appendix A.1). */
static tr_noise_estimate expected(const layout *like) {
    double part, whole;
    layout l = *like;
    l.pp = l.dp = 1;
    l.schedule = "1f1b";
    const double b = run(l, l.micro_batch, false, &part).tokens;
    l.micro_batch = SAMPLES;
    const double B = run(l, SAMPLES, false, &whole).tokens;
    part /= b * b;
    whole /= B * B;
    return (tr_noise_estimate){.square = (B * whole - b * part) / (B - b),
                               .variance = (part - whole) / (1 / b - 1 / B)};
}

static void test_every_layout(void **state) {
    (void)state;
    static const layout layouts[] = {
        {"gpt2", "1f1b", 1, 1, 1, 1, TR_NO},   {"gpt2", "1f1b", 1, 1, 1, 1, TR_YES},
        {"gpt2", "1f1b", 1, 1, 1, 2, TR_YES},  {"gpt2", "gpipe", 2, 1, 1, 2, TR_NO},
        {"gpt2", "gpipe", 2, 1, 1, 2, TR_YES}, {"gpt2", "zb-h1", 2, 1, 1, 2, TR_YES},
        {"gpt2", "zbv", 2, 1, 1, 1, TR_YES},   {"gpt2", "1f1b", 1, 2, 1, 2, TR_YES},
        {"gpt2", "1f1b", 1, 4, 1, 2, TR_YES}, /* one each */
        {"gpt2", "1f1b", 2, 2, 1, 4, TR_YES},  {"gpt2", "1f1b", 1, 1, 2, 2, TR_NO},
        {"gpt2", "1f1b", 2, 1, 2, 2, TR_YES},  {"llama", "1f1b", 1, 1, 1, 2, TR_NO},
        {"llama", "1f1b", 1, 1, 2, 2, TR_NO}, /* share a key head */
        {"llama", "1f1b", 1, 2, 2, 2, TR_NO},  {"qwen3", "1f1b", 2, 1, 2, 2, TR_YES}};
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        const layout *l = &layouts[k];
        double squares;
        const tr_noise_estimate want = expected(l);
        const tr_step_result got = run(*l, SAMPLES, true, &squares);
        assert_near(got.noise.square, want.square, "|G|^2", l);
        assert_near(got.noise.variance, want.variance, "the variance", l);
        /* The step has the bits that it has without. */
        const tr_step_result without = run(*l, SAMPLES, false, &squares);
        assert_true(isnan(without.noise.square) && isnan(without.noise.variance));
        assert_true(got.loss == without.loss && got.grad_norm == without.grad_norm);
    }
}

/* Schedules and cuts change no bit of the estimates. */
static void test_bits(void **state) {
    (void)state;
    static const struct {
        const char *schedule;
        int pp;
    } others[] = {{"gpipe", 2}, {"zb-h1", 2}, {"zbv", 2}, {"1f1b", 4}};
    layout l = {"gpt2", "1f1b", 1, 1, 1, 1, TR_YES};
    double squares;
    const tr_noise_estimate one = run(l, SAMPLES, true, &squares).noise;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        l.schedule = others[k].schedule;
        l.pp = others[k].pp;
        const tr_noise_estimate other = run(l, SAMPLES, true, &squares).noise;
        assert_memory_equal(&other, &one, sizeof one);
    }
}

/* With gradients of known means and variances the estimates are these. The vector is that of two
 * micro-batches and two parameters, one of them tied. */
static void test_estimates(void **state) {
    (void)state;
    double vector[] = {0,    10,  0,   30, /* losses: 10 and 30 tokens */
                       4800,               /* the norm of the first parameter's whole gradient */
                       0,                  /* spoils */
                       700,  100, 400, 1600, 0};
    tr_step_end_noise entry[] = {{.part = 6, .whole = 4, .parts = 1},
                                 {.part = 7, .whole = 9, .parts = 1, .tied = true},
                                 {.parts = 0}};
    const tr_step_end_vector map = {
        .sequences = 1, .losses = 2, .norms = 2, .params = 3, .noise_entry = entry};
    /* |g_b|^2 = 800 / 100, |g_B|^2 = 6400 / 1600, and with a loss scale of 2 a quarter of that */
    tr_noise_estimate e = tr_noise_of(&map, map.losses, vector, 1);
    assert_true(fabs(e.variance - 4 / (0.1 - 0.025)) < 1e-12);
    assert_true(fabs(e.square - (4 - 4 / (0.1 - 0.025) / 40)) < 1e-12);
    assert_true(fabs(tr_noise_of(&map, map.losses, vector, 2).variance - 1 / (0.1 - 0.025)) <
                1e-12);
    vector[3] = 0; /* the first micro-batch has all tokens, then none */
    assert_true(isnan(tr_noise_of(&map, map.losses, vector, 1).square));
    vector[1] = 0, vector[3] = 30;
    assert_true(isnan(tr_noise_of(&map, map.losses, vector, 1).variance));
}

static void test_means(void **state) {
    (void)state;
    tr_ckpt_noise n = {0};
    assert_true(isnan(tr_noise_scale(&n)));
    tr_noise_add(&n, &(tr_noise_estimate){NAN, NAN});
    tr_noise_add(&n, &(tr_noise_estimate){1, INFINITY});
    assert_int_equal(n.steps, 0);
    tr_noise_add(&n, &(tr_noise_estimate){-1, 30});
    assert_true(isnan(tr_noise_scale(&n))); /* a mean |G|^2 below 0 says nothing */
    assert_true(isnan(tr_noise_scale(&(tr_ckpt_noise){.square = 1, .variance = -30})));
    assert_true(isnan(tr_noise_scale(&(tr_ckpt_noise){.square = 1, .variance = 0})));
    tr_noise_add(&n, &(tr_noise_estimate){4, 60});
    assert_true(fabs(tr_noise_scale(&n) - 45 / 1.5) < 1e-12); /* means are divided */
    /* The newest of many steps weighs 1 / 100. */
    for (int i = 0; i < 5000; i++) tr_noise_add(&n, &(tr_noise_estimate){1, 10});
    tr_noise_add(&n, &(tr_noise_estimate){2, 110});
    assert_true(fabs(n.square - 1.01) < 1e-12 && fabs(n.variance - 11) < 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_estimates), cmocka_unit_test(test_means)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
