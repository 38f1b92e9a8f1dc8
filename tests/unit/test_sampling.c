/* Every rule of drawing against its definition, counted over many draws. */
#include "base/philox.h"
#include "train/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 6, DRAWS = 60000 };

/* Probabilities 0.4, 0.25, 0.15, 0.1, 0.07, 0.03 at temperature 1, in another order. */
static const double share[VOCAB] = {0.1, 0.4, 0.03, 0.25, 0.07, 0.15};

static int32_t draw(const tr_sampling *o, const int32_t *seen, int64_t count, uint64_t row,
                    uint64_t n) {
    double logits[VOCAB], scratch[VOCAB];
    for (int i = 0; i < VOCAB; i++) logits[i] = log(share[i]) + 3;
    return tr_sampling_draw(o, logits, scratch, VOCAB, seen, count, row, n);
}

/* Draws often, and compares each token's share with want[VOCAB] within five standard deviations;
 * a token of probability 0 must never come. */
static void expect(const tr_sampling *o, const int32_t *seen, int64_t count, const double *want) {
    int got[VOCAB] = {0};
    for (uint64_t n = 0; n < DRAWS; n++) got[draw(o, seen, count, 0, n)]++;
    for (int i = 0; i < VOCAB; i++) {
        double deviation = sqrt(want[i] * (1 - want[i]) / DRAWS);
        if (fabs((double)got[i] / DRAWS - want[i]) > 5 * deviation)
            fail_msg("token %d: %d of %d draws, not %g of them", i, got[i], DRAWS, want[i]);
    }
}

/* Fills want[VOCAB] with the shares of the kept tokens at a temperature. */
static void kept(const bool *keep, double temperature, double *want) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += keep[i] ? pow(share[i], 1 / temperature) : 0;
    for (int i = 0; i < VOCAB; i++) want[i] = keep[i] ? pow(share[i], 1 / temperature) / sum : 0;
}

static void draws_by_probability(void **state) {
    (void)state;
    const bool all[VOCAB] = {1, 1, 1, 1, 1, 1};
    const double temperatures[] = {1, 0.5, 2};
    for (int t = 0; t < 3; t++) {
        double want[VOCAB];
        kept(all, temperatures[t], want);
        expect(&(tr_sampling){.temperature = temperatures[t], .seed = 5}, NULL, 0, want);
    }
    expect(&(tr_sampling){.temperature = 0}, NULL, 0, (double[VOCAB]){0, 1, 0, 0, 0, 0});
}

static void keeps_what_the_rules_keep(void **state) {
    (void)state;
    const struct {
        tr_sampling options;
        bool keep[VOCAB];
    } cases[] = {
        {{.temperature = 1, .top_k = 1}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 3}, {0, 1, 0, 1, 0, 1}},
        {{.temperature = 2, .top_k = 3}, {0, 1, 0, 1, 0, 1}},
        {{.temperature = 1, .top_k = VOCAB}, {1, 1, 1, 1, 1, 1}},
        {{.temperature = 1, .top_p = 0.3}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.64}, {0, 1, 0, 1, 0, 0}},
        {{.temperature = 1, .top_p = 0.66}, {0, 1, 0, 1, 0, 1}},
        {{.temperature = 1, .top_p = 1}, {1, 1, 1, 1, 1, 1}},
        /* top_p is a share of what top_k has kept: 0.4 / 0.65 = 0.615. */
        {{.temperature = 1, .top_k = 2, .top_p = 0.6}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .min_p = 0.2}, {1, 1, 0, 1, 0, 1}},
        {{.temperature = 1, .min_p = 1}, {0, 1, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double want[VOCAB];
        kept(cases[i].keep, cases[i].options.temperature, want);
        expect(&cases[i].options, NULL, 0, want);
    }
}

enum { MANY = 500 };

/* Returns true when the definitions of the rules keep the token. logits[MANY]: above 0. */
static bool is_kept(const tr_sampling *o, const double *logits, int token, const bool *among) {
    double above = 0, sum = 0;
    int greater = 0;
    for (int i = 0; i < MANY; i++) {
        const double mass = among && !among[i] ? 0 : exp(logits[i] / o->temperature);
        greater += logits[i] > logits[token];
        above += logits[i] > logits[token] ? mass : 0;
        sum += mass;
    }
    if (!among) return o->top_k == 0 || greater < o->top_k;
    return among[token] && (o->top_p >= 1 || above < o->top_p * sum);
}

/* In a vocabulary with many equal logits. */
static void keeps_what_their_definitions_keep(void **state) {
    (void)state;
    const int64_t most[] = {0, 1, 2, 7, 60, 499, 500, 9000};
    const double mass[] = {1e-9, 0.2, 0.77, 0.999, 1 - 1e-12, 1};
    for (uint64_t k = 0; k < 8 * 6 * 4; k++) {
        const tr_sampling o = {
            .temperature = 0.5 + 0.5 * (double)(k % 4), .top_k = most[k % 8], .top_p = mass[k % 6]};
        double given[MANY], logits[MANY], scratch[MANY];
        bool by_count[MANY], drawn[MANY] = {false};
        for (int i = 0; i < MANY; i++)
            given[i] =
                floor(1 + 20 * (double)tr_uniform(tr_philox4x32(k, 0, (uint64_t)i).v[0])) / 4;
        for (int i = 0; i < MANY; i++) by_count[i] = is_kept(&o, given, i, NULL);
        for (uint64_t n = 0; n < 600; n++) {
            memcpy(logits, given, sizeof logits);
            drawn[tr_sampling_draw(&o, logits, scratch, MANY, NULL, 0, k, n)] = true;
        }
        double sum = 0;
        for (int i = 0; i < MANY; i++) sum += by_count[i] ? exp(given[i] / o.temperature) : 0;
        for (int i = 0; i < MANY; i++) {
            const bool kept = is_kept(&o, given, i, by_count);
            const bool often = exp(given[i] / o.temperature) / sum > 0.06; /* of 600 draws */
            if (drawn[i] && !kept) fail_msg("case %d: token %d is drawn", (int)k, i);
            if (often && kept && !drawn[i]) fail_msg("case %d: token %d is not drawn", (int)k, i);
        }
    }
}

/* A penalty counts a token once; it divides positive logits and multiplies negative ones. */
static void penalises_what_was_seen(void **state) {
    (void)state;
    const int32_t seen[] = {1, 1, 3};
    double logits[VOCAB] = {1, 4, -1, 3.5, 0, 1}, scratch[VOCAB];
    const tr_sampling half = {.temperature = 0, .repetition_penalty = 2};
    assert_int_equal(tr_sampling_draw(&half, logits, scratch, VOCAB, seen, 3, 0, 0), 1);
    double again[VOCAB] = {1, 1.9, -1, 3.5, 1.5, -3}, low[VOCAB] = {-3, -1, -3, -2.5, -2.5, -3};
    assert_int_equal(tr_sampling_draw(&half, again, scratch, VOCAB, seen, 3, 0, 0), 3);
    assert_int_equal(tr_sampling_draw(&half, low, scratch, VOCAB, (int32_t[]){1, 3}, 2, 0, 0), 1);
    low[4] = -1.9;
    low[1] = -1;
    assert_int_equal(tr_sampling_draw(&half, low, scratch, VOCAB, (int32_t[]){1}, 1, 0, 0), 4);
    double none[VOCAB] = {0, 4, 0, 3.9, 0, 0};
    const tr_sampling off = {.repetition_penalty = 1};
    assert_int_equal(tr_sampling_draw(&off, none, scratch, VOCAB, seen, 3, 0, 0), 1);
}

static void refuses_what_is_not_finite(void **state) {
    (void)state;
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        double logits[VOCAB] = {0, 1, 2, bad[k], 1, 0}, scratch[VOCAB];
        const tr_sampling o = {.temperature = 1, .top_k = 3};
        assert_int_equal(tr_sampling_draw(&o, logits, scratch, VOCAB, NULL, 0, 0, 0), -1);
    }
}

static void is_a_function_of_seed_row_and_place(void **state) {
    (void)state;
    const tr_sampling one = {.temperature = 1, .seed = 1}, two = {.temperature = 1, .seed = 2};
    int seeds = 0, rows = 0, places = 0;
    for (uint64_t n = 0; n < 200; n++) {
        assert_int_equal(draw(&one, NULL, 0, 3, n), draw(&one, NULL, 0, 3, n));
        seeds += draw(&one, NULL, 0, 0, n) != draw(&two, NULL, 0, 0, n);
        rows += draw(&one, NULL, 0, 0, n) != draw(&one, NULL, 0, 1, n);
        places += draw(&one, NULL, 0, 0, n) != draw(&one, NULL, 0, 0, n + 200);
    }
    assert_true(seeds > 100 && rows > 100 && places > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_by_probability),
        cmocka_unit_test(keeps_what_the_rules_keep),
        cmocka_unit_test(keeps_what_their_definitions_keep),
        cmocka_unit_test(penalises_what_was_seen),
        cmocka_unit_test(refuses_what_is_not_finite),
        cmocka_unit_test(is_a_function_of_seed_row_and_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
