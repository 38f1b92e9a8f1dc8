/* Tests mixtures: exact proportions over every prefix, from any place; and the text that names
 * them. */
#include "base/philox.h"
#include "data/mixture.h"
#include "data/paths.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seed, draws;

static uint64_t draw(void) {
    return tr_mix64(seed ^ tr_mix64(draws++));
}

/* Each corpus's samples in every prefix of a period and a half differ from its share by less than
 * one; with whole numbers, |taken * total - n * weight| < total. A place that is computed directly
 * has the same numbers. */
static void check_sequence(const int64_t *weight, int parts, int64_t length) {
    tr_mixture walk, jump;
    assert_int_equal(tr_mixture_begin(weight, parts, &walk), TR_OK);
    jump = walk;
    int64_t taken[TR_DATA_PARTS] = {0};
    for (int64_t n = 0; n < length; n++) {
        tr_mixture_seek(&walk, n);
        int part = tr_mixture_part(&walk);
        assert_in_range(part, 0, parts - 1);
        for (int p = 0; p < parts; p++) {
            assert_int_equal(walk.taken[p], taken[p]);
            int64_t off = taken[p] * walk.total - n * walk.weight[p];
            assert_true(off < walk.total && -off < walk.total);
        }
        int64_t place = (n * 7919) % length; /* forwards and backwards */
        tr_mixture_seek(&jump, place);
        tr_mixture again = walk;
        tr_mixture_seek(&again, place);
        assert_int_equal(tr_mixture_part(&jump), tr_mixture_part(&again));
        assert_memory_equal(jump.taken, again.taken, sizeof jump.taken);
        taken[part]++;
    }
}

static void proportions_are_exact_over_every_prefix(void **state) {
    (void)state;
    check_sequence((const int64_t[]){700000, 300000}, 2, 100);
    check_sequence((const int64_t[]){1, 1, 1}, 3, 100);
    check_sequence((const int64_t[]){999, 1}, 2, 2500);
    check_sequence((const int64_t[]){500000, 333333, 166667}, 3, 1000);
    check_sequence((const int64_t[]){5}, 1, 100);
    for (int round = 0; round < 40; round++) {
        int64_t weight[TR_DATA_PARTS], sum = 0;
        int parts = 2 + (int)(draw() % (TR_DATA_PARTS - 1));
        for (int p = 0; p < parts; p++) sum += weight[p] = 1 + (int64_t)(draw() % 40);
        check_sequence(weight, parts, sum + sum / 2);
    }
}

static void far_places_are_found(void **state) {
    (void)state;
    tr_mixture m;
    /* Of equal turns the first corpus takes the first, in every version: a run that continues must
     * read on where it was. */
    assert_int_equal(tr_mixture_begin((const int64_t[]){2, 2, 2}, 3, &m), TR_OK);
    for (int n = 0; n < 6; n++) {
        tr_mixture_seek(&m, n);
        assert_int_equal(tr_mixture_part(&m), n % 3);
    }
    assert_int_equal(tr_mixture_begin((const int64_t[]){7, 3}, 2, &m), TR_OK);
    tr_mixture_seek(&m, INT64_C(10) << 50);
    assert_int_equal(m.taken[0], INT64_C(7) << 50);
    assert_int_equal(m.taken[1], INT64_C(3) << 50);
    assert_int_equal(tr_mixture_begin((const int64_t[]){7000001, 3000000}, 2, &m), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "only after 10000001 samples"));
}

/* --- text ------------------------------------------------------------------------------------- */

static void parses(const char *text, const char *want) {
    tr_data_paths paths;
    char got[400] = "";
    assert_int_equal(tr_data_paths_parse("data.path", text, &paths), TR_OK);
    for (int p = 0; p < paths.parts; p++) {
        size_t used = strlen(got);
        (void)snprintf(got + used, sizeof got - used, "%lld:", (long long)paths.part[p].weight);
        for (int w = 0; w < paths.part[p].count; w++) {
            used = strlen(got);
            (void)snprintf(got + used, sizeof got - used, "[%s]", paths.part[p].word[w]);
        }
    }
    assert_string_equal(got, want);
    tr_data_paths_free(&paths);
}

static void refuses(const char *text, const char *why) {
    tr_data_paths paths;
    assert_int_equal(tr_data_paths_parse("data.path", text, &paths), TR_ERR_CONFIG);
    if (!strstr(tr_error_message(), why)) fail_msg("'%s' is not '%s'", tr_error_message(), why);
    tr_data_paths_free(&paths);
}

static void paths_are_words(void **state) {
    (void)state;
    parses("a", "0:[a]");
    parses("  a\tb  'c d' e\\ f \"g'h\" i'j'k ", "0:[a][b][c d][e f][g'h][ijk]");
    parses("0.7 A 0.3 B", "700000:[A]300000:[B]");
    parses("7 A B* 0.000001 C", "7000000:[A][B*]1:[C]");
    parses("a 0.5 b", "0:[a][0.5][b]"); /* the first word is not a weight, so 0.5 is a file */
    parses("'7' a", "0:[7][a]");
    parses(".5 a", "500000:[a]");
    FILE *f = fopen("0.5 no mixture", "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    parses("0.5 no mixture", "0:[0.5 no mixture]");
    assert_int_equal(unlink("0.5 no mixture"), 0);
    refuses("", "names no file");
    refuses("'a", "quote ' that does not end");
    refuses("0.7 A 0.3", "a weight without a file after it");
    refuses("0.7 0.3 B", "a weight without a file after it");
    refuses("0 A", "has the weight 0: a weight is above 0");
    refuses("0.1234567 A", "at most 6 decimals");
    refuses("10000000 A", "at most 1000000");
    char many[400] = "";
    for (int i = 0; i <= TR_DATA_PARTS; i++) strcat(many, "1 a ");
    refuses(many, "mixes more than 32 corpora");
}

/* A quoted path is read back as one word. */
static void quoted_paths_come_back(void **state) {
    (void)state;
    static const char alphabet[] = " '\"\\a0.5*[";
    for (int round = 0; round < 3000; round++) {
        char path[12], other[12], text[200] = "";
        for (int which = 0; which < 2; which++) {
            char *to = which ? other : path;
            size_t n = 1 + draw() % 10;
            for (size_t i = 0; i < n; i++) to[i] = alphabet[draw() % (sizeof alphabet - 1)];
            to[n] = '\0';
            assert_true(tr_data_paths_quote(to, text, sizeof text));
        }
        tr_data_paths paths;
        assert_int_equal(tr_data_paths_parse("data.path", text, &paths), TR_OK);
        assert_int_equal(paths.parts, 1);
        assert_int_equal(paths.part[0].count, 2);
        assert_string_equal(paths.part[0].word[0], path);
        assert_string_equal(paths.part[0].word[1], other);
        tr_data_paths_free(&paths);
        size_t size = 1 + draw() % strlen(text);
        char small[200] = "";
        if (!tr_data_paths_quote(path, small, size)) assert_string_equal(small, "");
    }
}

int main(void) {
    seed = tr_test_seed(3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proportions_are_exact_over_every_prefix),
        cmocka_unit_test(far_places_are_found),
        cmocka_unit_test(paths_are_words),
        cmocka_unit_test(quoted_paths_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
