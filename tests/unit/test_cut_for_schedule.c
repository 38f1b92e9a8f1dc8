/* The cut for a schedule against an exhaustive search: with few exceptions no cut that needs no
 * more memory than the balanced one, or in which no rank needs more than its room, has a shorter
 * step. */
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

enum { MOST_RANKS = 4 };

static const tr_cut_memory no_room = {.optimizer = {.kind = TR_OPTIM_ADAMW}};

typedef struct value {
    double time, need[MOST_RANKS];
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
        tr_param_memory params =
            tr_memory_of_params(model, &placement, r, NULL, 0, no_room.optimizer);
        tr_memory_params_bytes(&params, model->shape.dtype, &values, &gradients, &moments);
        v.need[r] = (double)(values + gradients + moments) + e->peak[r];
    }
    tr_estimate_destroy(e);
    tr_stage_table_free(&t);
    return v;
}

static double fullest(const tr_schedule *s, const value *v) {
    double most = 0;
    for (int r = 0; r < s->ranks; r++) most = fmax(most, v->need[r]);
    return most;
}

static bool fits(const tr_schedule *s, const value *v, const double *room) {
    for (int r = 0; r < s->ranks; r++)
        if (v->need[r] > room[r] * (1 + 1e-9)) return false;
    return true;
}

/* Tries every cut: boundaries from `stage` on. The first layer has no block, nor has the last. */
static double search(const tr_model *model, const tr_schedule *s, int stage, int *first,
                     const double *room) {
    int n = model->count, left = s->stages - stage;
    if (left == 0) {
        first[stage] = n;
        value v = measure(model, s, first);
        return fits(s, &v, room) ? v.time : INFINITY;
    }
    double best = INFINITY;
    for (int at = first[stage - 1] + 1 + (stage == 1); at + left < n; at++) {
        first[stage] = at;
        best = fmin(best, search(model, s, stage + 1, first, room));
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

static tr_schedule *random_schedule(test_random *r) {
    static const char *const names[] = {"gpipe", "1f1b",        "zb-h1", "zb-2p",
                                        "bfs",   "interleaved", "zbv",   "dualpipev"};
    const int k = test_between(r, 0, (int)(sizeof names / sizeof *names) - 1), v = k < 4 ? 1 : 2;
    tr_schedule *s;
    tr_schedule_request q = {.name = names[k],
                             .ranks = test_between(r, 1, v == 1 ? 4 : 2),
                             .micro_batches = test_between(r, 1, 8),
                             .chunks = v};
    if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s", tr_error_message());
    return s;
}

enum { TRIALS = 300 };

static void test_no_cut_is_faster(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(4711))};
    int faster = 0, missed = 0;
    double worst = 0;
    for (int n = 0; n < TRIALS; n++) {
        int first[MOST_STAGES + 1], trial[MOST_STAGES + 1];
        double room[MOST_RANKS];
        tr_model *model = random_model(&r);
        tr_schedule *s = random_schedule(&r);
        assert_int_equal(tr_cut_model(model, s->stages, trial), TR_OK);
        const value balanced = measure(model, s, trial);
        for (int k = 0; k < s->ranks; k++) room[k] = fullest(s, &balanced);
        assert_int_equal(tr_cut_for_schedule(model, s, &no_room, first), TR_OK);
        const value chosen = measure(model, s, first);
        trial[0] = 0;
        double best = search(model, s, 1, trial, room);
        assert_true(chosen.time <= balanced.time * (1 + 1e-9));
        assert_true(fits(s, &chosen, room));
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

/* Rooms of ranks around what they need in a random cut, so that many fit only in few cuts, and some
 * in none. */
static void test_room_is_kept(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(4712))};
    int found = 0, otherwise = 0, lost = 0, missed = 0;
    double worst = 0;
    for (int n = 0; n < TRIALS; n++) {
        int first[MOST_STAGES + 1], trial[MOST_STAGES + 1];
        double room[MOST_RANKS];
        tr_model *model = random_model(&r);
        tr_schedule *s = random_schedule(&r);
        trial[0] = 0;
        for (int k = s->stages, at = model->count; k > 0; k--) {
            trial[k] = at;
            if (k > 1) at = test_between(&r, k, at - 1 - (k == s->stages));
        }
        const value other = measure(model, s, trial);
        for (int k = 0; k < s->ranks; k++)
            room[k] = other.need[k] * (0.9 + 0.02 * test_between(&r, 0, 10));
        const double best = search(model, s, 1, trial, room);
        const tr_cut_memory memory = {.optimizer = no_room.optimizer, .room = room};
        assert_int_equal(tr_cut_for_schedule(model, s, &memory, first), TR_OK);
        const value chosen = measure(model, s, first);
        if (s->stages > 1 && !isinf(best)) {
            found += fits(s, &chosen, room);
            lost += !fits(s, &chosen, room);
            missed += fits(s, &chosen, room) && chosen.time > best * (1 + 1e-9);
            if (fits(s, &chosen, room)) worst = fmax(worst, chosen.time / best - 1);
        } else otherwise += s->stages > 1;
        tr_schedule_destroy(s);
        tr_model_destroy(model);
    }
    printf(
        "fit in %d of %d, not found in %d, not the best in %d, worst %.2f%%; no cut fits in %d\n",
        found, TRIALS, lost, missed, 100 * worst, otherwise);
    assert_true(found > TRIALS / 4 && otherwise > TRIALS / 20);
    assert_true(lost <= TRIALS / 100 && missed <= TRIALS / 50 && worst <= 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_cut_is_faster),
                                       cmocka_unit_test(test_room_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
