/* Tests the text of a cut: every cut that is printed is read again, Megatron-LM's form is read as
 * it reads it, and other text is refused with a sentence. */
#include "layers/layer_cut.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_BLOCKS = 40 };

static void test_printed_cuts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int stages, first[8];
    } cuts[] = {
        {"Et*3L", 1, {0, 5}},
        {"Et*3|tL", 2, {0, 4, 6}},
        {"E|t*4|L", 3, {0, 1, 5, 6}},
        {"Et|(t*2|)*3tL", 5, {0, 2, 4, 6, 8, 10}},
        {"Et|t|t*2|t*3L", 4, {0, 2, 3, 5, 9}},
        {"Et*2|(t*2|)*2L", 4, {0, 3, 5, 7, 8}},
    };
    char text[TR_LAYER_CUT_TEXT];
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        tr_layer_cut_print(cuts[k].first, cuts[k].stages, text, sizeof text);
        assert_string_equal(text, cuts[k].text);
    }
    tr_layer_cut_print(cuts[3].first, cuts[3].stages, text, 8);
    assert_string_equal(text, ""); /* rather than a part of it */
}

/* Stages of random lengths, and often of equal ones. */
static void test_round_trips(void **state) {
    (void)state;
    uint64_t random = tr_test_seed(1);
    for (int n = tr_test_trials(2000); n > 0; n--) {
        const int blocks = (int)tr_up_to(&random, MOST_BLOCKS), layers = blocks + 2;
        const int usual = (int)tr_up_to(&random, 5);
        const bool varied = tr_up_to(&random, 2) == 1;
        int first[MOST_BLOCKS + 3] = {0}, read[MOST_BLOCKS + 3], stages = 0, count;
        while (first[stages] < layers) {
            const bool other = varied && tr_up_to(&random, 3) == 1;
            const int end = first[stages] + (other ? (int)tr_up_to(&random, 6) : usual);
            first[++stages] = end < layers ? end : layers;
        }
        char text[TR_LAYER_CUT_TEXT];
        tr_layer_cut_print(first, stages, text, sizeof text);
        assert_int_equal(tr_layer_cut_count(text, blocks, &count), TR_OK);
        assert_int_equal(count, stages);
        assert_int_equal(tr_layer_cut_read(text, blocks, stages, read), TR_OK);
        assert_memory_equal(first, read, ((size_t)stages + 1) * sizeof *first);
    }
}

/* Text that Megatron-LM reads, and the stages as it unrolls them. */
static void test_megatron(void **state) {
    (void)state;
    static const struct {
        const char *text, *unrolled;
    } same[] = {
        {"Et*3|(tt|)*29,L", "Ettt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|tt|"
                            "tt|tt|tt|tt|tt|tt|tt|tt|L"},
        {"E,t(|t*2)*3,L", "Et|tt|tt|ttL"},
        {"Et(tt|t)*2*1L", NULL},
        {"E*1(t|)*2tt*2|L*1", "Et|t|ttt|L"},
        {",E|,t*2,,|L,", "E|tt|L"},
    };
    for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
        int64_t blocks = 0;
        int a[MOST_BLOCKS * 2], b[MOST_BLOCKS * 2], stages;
        for (const char *c = same[k].unrolled; c && *c; c++) blocks += *c == 't';
        if (!same[k].unrolled) {
            assert_int_equal(tr_layer_cut_count(same[k].text, 6, &stages), TR_ERR_CONFIG);
            continue;
        }
        assert_int_equal(tr_layer_cut_count(same[k].unrolled, blocks, &stages), TR_OK);
        assert_int_equal(tr_layer_cut_read(same[k].unrolled, blocks, stages, b), TR_OK);
        assert_int_equal(tr_layer_cut_read(same[k].text, blocks, stages, a), TR_OK);
        assert_memory_equal(a, b, ((size_t)stages + 1) * sizeof *a);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "must begin with E, the embedding, and end with L, the head, not ''"},
        {"ttttL", "must begin with E"},
        {"Ett|tt", "must begin with E, the embedding, and end with L, the head, not 'Ett|tt'"},
        {"Ett|ttL|", "must begin with E"},
        {"Ett|ttLL", "must begin with E"},
        {"Ett|EttL", "must begin with E"},
        {"Ett|tL", "has 3 blocks (t), but model.layers is 4"},
        {"EtL", "has 1 block (t), but model.layers is 4: give it as many"},
        {"Ett|ttt|L", "has more blocks (t) than model.layers, which is 4"},
        {"E(t*999999999|)*999999999L", "has more blocks"},
        {"Ett||ttL", "stage 1 of parallel.cut has no layer"},
        {"|EttttL", "stage 0 of parallel.cut has no layer"},
        {"Ett|ttmL", "must be auto, or the layers of every stage"},
        {"Ett tt L", "must be auto, or"},
        {"aut", "not 'aut'; did you mean 'auto'?"},
        {"E(tt|)2L", "must be auto, or"},
        {"E(tt|*2L", "must be auto, or"},
        {"E((t)*2|)*2L", "must be auto, or"},
        {"E()*9ttttL", "must be auto, or"},
        {"Et*0ttttL", "must be auto, or"},
        {"Et*", "must be auto, or"},
        {"Et*4*1L", "must be auto, or"},
        {"Et*9999999999L", "must be auto, or"},
    };
    int stages, first[8];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(tr_layer_cut_count(bad[k].text, 4, &stages), TR_ERR_CONFIG);
        if (!strstr(tr_error_message(), bad[k].why))
            fail_msg("'%s': %s", bad[k].text, tr_error_message());
    }
    assert_int_equal(tr_layer_cut_read("Ett|ttL", 4, 3, first), TR_ERR_CONFIG);
    assert_non_null(
        strstr(tr_error_message(), "parallel.cut has 2 stages, but the schedule has 3"));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed_cuts),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("layer_cut", tests, NULL, NULL);
}
