/* Tests initial values: the bits of every rule never change, whatever the number of threads and the
 * cut of the tensor. */
#include "layers/param_impl.h"

#include "base/philox.h"
#include "support/elements.h"
#include "support/must.h"
#include "support/seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 3 };

static uint64_t seed_of_test;

static float *draw(const tr_param *param, uint64_t seed, int threads) {
    float *value = malloc((size_t)param->count * sizeof *value);
    assert_non_null(value);
    memset(value, 0xff, (size_t)param->count * sizeof *value);
    tr_param_init(param, seed, threads, value);
    return value;
}

/* Returns FNV-1a over the bits of n values. */
static uint64_t hash_values(const float *value, int64_t n, uint64_t hash) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &value[i], sizeof bits);
        for (int b = 0; b < 32; b += 8) hash = (hash ^ (bits >> b & 255)) * 0x100000001b3u;
    }
    return hash;
}

/* Every version must draw these values, because a run that another version continues or repeats
 * depends on them. Parts begin and end at odd elements. */
static void test_bits_are_those_of_all_versions(void **state) {
    (void)state;
    static const struct {
        tr_init init;
        int64_t shape[2];
        tr_range part;
        int axis;
        uint64_t hash;
    } list[] = {
        {TR_INIT_NORMAL, {257, 301}, {0, 257}, 0, 0x9baf172100ef6b2a},
        {TR_INIT_NORMAL, {257, 301}, {3, 101}, 0, 0xe342868bb443407b},
        {TR_INIT_NORMAL, {257, 301}, {17, 33}, 1, 0xe8c042d028278605},
        {TR_INIT_NORMAL, {99991, 1}, {1, 99989}, 0, 0xd306ac67cf347986},
        {TR_INIT_ONE, {257, 301}, {17, 33}, 1, 0xb060505b2deb4c98},
        {TR_INIT_ZERO, {257, 301}, {17, 33}, 1, 0x4c2a42de35efcdf5},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        tr_param param;
        tr_status status =
            tr_param_describe(&param, 2, list[i].shape, list[i].init, 0.02f, "layer.%d.weight", 5);
        assert_int_equal(status, TR_OK);
        tr_slice part = {.range = list[i].part};
        assert_int_equal(tr_param_keep(&param, list[i].axis, &part, 1), TR_OK);
        float *value = draw(&param, 1234, 2);
        uint64_t hash = hash_values(value, param.count, 0xcbf29ce484222325u);
        if (hash != list[i].hash) fail_msg("case %zu: hash 0x%016llx", i, (unsigned long long)hash);
        free(value);
        tr_params_release(&param, 1);
    }
}

/* Describes a matrix of a rule and this rank's part of it along an axis. */
static void describe(tr_param *param, tr_init init, const int64_t *shape, int axis, tr_range part) {
    const tr_slice slice = {.range = part};
    assert_int_equal(tr_param_describe(param, 2, shape, init, 0.5f, "layer.7.weight"), TR_OK);
    assert_int_equal(tr_param_keep(param, axis, &slice, 1), TR_OK);
}

/* The rules of model.init: mean square, bound, and the same elements in a part as in the whole,
 * with any number of threads. */
static void matrices_follow_their_rules(void **state) {
    (void)state;
    static const struct {
        tr_init init;
        double square, most;
    } rule[] = {{TR_INIT_TRUNCATED, 0.25 * 0.7737, 1.0}, /* 1 - 4 phi(2) / (2 Phi(2) - 1) */
                {TR_INIT_XAVIER, 0.25 * 2 / (96 + 320.0), 0.5 * 0.12011},
                {TR_INIT_HE, 0.25 * 2 / 320.0, 1},
                {TR_INIT_ORTHOGONAL, 0.25 / 320, 0.5}};
    const int64_t shape[2] = {96, 320};
    for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) {
        tr_param whole;
        describe(&whole, rule[r].init, shape, 0, (tr_range){0, shape[0]});
        float *value = draw(&whole, 99, 1);
        double square = 0;
        for (int64_t i = 0; i < whole.count; i++) {
            square += (double)value[i] * (double)value[i] / (double)whole.count;
            assert_true(fabs((double)value[i]) <= rule[r].most);
        }
        if (!(fabs(square / rule[r].square - 1) < 0.05))
            fail_msg("rule %d: mean square %g, not %g", (int)rule[r].init, square, rule[r].square);
        for (int axis = 0; axis < 2; axis++) {
            tr_param part;
            describe(&part, rule[r].init, shape, axis, (tr_range){17, 41});
            float *some = draw(&part, 99, 2);
            for (int64_t i = 0; i < part.local[0]; i++)
                for (int64_t j = 0; j < part.local[1]; j++) {
                    const int64_t row = i + (axis == 0 ? 17 : 0), column = j + (axis == 1 ? 17 : 0);
                    assert_true(some[i * part.local[1] + j] == value[row * shape[1] + column]);
                }
            free(some);
            tr_params_release(&part, 1);
        }
        free(value);
        tr_params_release(&whole, 1);
    }
}

/* Rows, or with more rows than columns columns, have length init_std and no part along others. */
static void orthogonal_matrices_are(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{64, 64}, {40, 100}, {100, 40}, {1, 9}, {150, 131}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t rows = shapes[s][0], columns = shapes[s][1];
        const bool wide = rows <= columns;
        const int64_t count = wide ? rows : columns, n = wide ? columns : rows;
        tr_param param;
        describe(&param, TR_INIT_ORTHOGONAL, shapes[s], 0, (tr_range){0, rows});
        float *value = draw(&param, 5, 2);
        for (int64_t a = 0; a < count; a++)
            for (int64_t b = 0; b <= a; b++) {
                double sum = 0;
                for (int64_t j = 0; j < n; j++)
                    sum += (double)value[wide ? a * n + j : j * columns + a] *
                           (double)value[wide ? b * n + j : j * columns + b];
                assert_true(fabs(sum - (a == b ? 0.25 : 0)) < 1e-6);
            }
        float *again = draw(&param, 5, 3);
        assert_memory_equal(again, value, (size_t)param.count * sizeof *value);
        free(again);
        free(value);
        tr_params_release(&param, 1);
    }
}

struct rule {
    const tr_param *param;
    const tr_global *tensor;
    uint64_t seed, name;
    const float *value;
    int64_t seen;
};

static void check_element(void *context, int64_t global, int64_t local) {
    struct rule *rule = context;
    const tr_param *param = rule->param;
    float expected = param->init == TR_INIT_ONE ? 1 : 0;
    if (param->init == TR_INIT_NORMAL)
        expected = param->init_std * tr_normal(rule->seed, rule->name, (uint64_t)global);
    if (param->init == TR_INIT_UNIFORM)
        expected =
            param->init_std * (2 * tr_uniform_number(rule->seed, rule->name, (uint64_t)global) - 1);
    if (memcmp(&rule->value[local], &expected, sizeof expected) != 0)
        fail_msg("%s: element %lld is %a, not %a", rule->tensor->name, (long long)global,
                 (double)rule->value[local], (double)expected);
    rule->seen++;
}

/* Compares every element with the rule, one by one. */
static void check_elements(const tr_param *param, uint64_t seed, const float *value) {
    struct rule rule = {.param = param, .seed = seed, .value = value};
    for (int k = 0; k < param->tensors; k++) {
        rule.tensor = &param->tensor[k];
        rule.name = tr_hash_name(rule.tensor->name);
        tr_each_element(rule.tensor, check_element, &rule);
    }
    assert_int_equal(rule.seen, param->count);
}

/* Keeps one to three random ranges of a random axis, as a tensor-parallel rank does; some are
 * empty. */
static void cut(tr_param *param, uint64_t *random) {
    const int axis = (int)tr_up_to(random, param->tensor->rank) - 1;
    const int64_t size = param->tensor->shape[axis];
    tr_slice kept[3];
    int n = 0;
    for (int64_t at = 0; n < 3 && at < size; n++) {
        int64_t begin = at + tr_up_to(random, size - at) - 1;
        kept[n] = (tr_slice){.range = {begin, tr_up_to(random, size - begin + 1) - 1}};
        at = begin + kept[n].range.extent;
    }
    assert_int_equal(tr_param_keep(param, axis, kept, n), TR_OK);
}

/* Describes a parameter of a size around or above what a thread draws at a time. */
static void describe_random(tr_param *param, tr_init init, uint64_t *random) {
    static const int64_t most[][TR_PARAM_RANK] = {
        {200000}, {500, 400}, {30, 40, 200}, {9, 20, 30, 40}};
    int64_t shape[TR_PARAM_RANK];
    const int rank = (int)tr_up_to(random, TR_PARAM_RANK);
    for (int d = 0; d < rank; d++) shape[d] = tr_up_to(random, most[rank - 1][d]);
    tr_status status = tr_param_describe(param, rank, shape, init, 0.02f, "random.%d", rank);
    assert_int_equal(status, TR_OK);
}

/* Describes two to five tensors in one local tensor, in many alternating slices. */
static void describe_fused(tr_param *param, tr_init init, uint64_t *random) {
    enum { SLICES = 40 };
    const int rank = 2 + (int)tr_up_to(random, 2), axis = (int)tr_up_to(random, rank) - 1;
    const int tensors = 1 + (int)tr_up_to(random, 4);
    int64_t shape[TR_PARAM_RANK], at[5] = {0};
    tr_slice slice[SLICES];
    for (int d = 0; d < rank; d++) shape[d] = 20 + tr_up_to(random, 30);
    tr_status status = tr_param_describe(param, rank, shape, init, 0.02f, "fused.%d", 0);
    for (int k = 1; k < tensors && status == TR_OK; k++) {
        shape[axis] = 20 + tr_up_to(random, 30);
        status = tr_param_add(param, axis, shape, "fused.%d", k);
    }
    assert_int_equal(status, TR_OK);
    for (int i = 0; i < SLICES; i++) {
        const int k = i % tensors;
        const int64_t left = param->tensor[k].shape[axis] - at[k];
        const int64_t extent = left > 0 ? tr_up_to(random, left < 3 ? left : 3) : 0;
        slice[i] = (tr_slice){.range = {at[k], extent}, .tensor = k};
        at[k] += extent;
    }
    if (tr_up_to(random, 3) == 3) return; /* whole */
    assert_int_equal(tr_param_keep(param, axis, slice, SLICES), TR_OK);
}

static void test_threads_and_cuts(void **state) {
    (void)state;
    static const tr_init rules[] = {TR_INIT_NORMAL, TR_INIT_UNIFORM, TR_INIT_ONE, TR_INIT_ZERO};
    uint64_t random = seed_of_test;
    for (int trial = 0; trial < 60; trial++) {
        tr_param param;
        if (trial % 5 == 0) describe_fused(&param, rules[trial % 4], &random);
        else describe_random(&param, rules[trial % 4], &random);
        if (trial % 3 && trial % 5) cut(&param, &random);
        float *one = draw(&param, random, 1);
        check_elements(&param, random, one);
        for (int threads = 2; threads <= THREADS; threads++) {
            float *more = draw(&param, random, threads);
            assert_memory_equal(one, more, (size_t)param.count * sizeof *one);
            free(more);
        }
        free(one);
        tr_params_release(&param, 1);
    }
}

static void check_refused(tr_status status, const char *says) {
    assert_int_equal(status, TR_ERR_INTERNAL);
    if (!strstr(tr_error_message(), says)) fail_msg("\"%s\" lacks %s", tr_error_message(), says);
}

/* Impossible descriptions are an error in every build. */
static void test_bad_descriptions(void **state) {
    (void)state;
    tr_param param;
    char name[2 * TR_NAME_SIZE];
    memset(name, 'x', sizeof name);
    const int64_t shape[] = {6, 4}, other[] = {6, 5}, negative[] = {6, -1};
    const int64_t huge[] = {INT64_MAX / 2, 4};
    check_refused(tr_param_describe(&param, 2, shape, TR_INIT_ONE, 0, "%.*s", TR_NAME_SIZE, name),
                  "characters");
    tr_params_release(&param, 1);
    check_refused(tr_param_describe(&param, 2, negative, TR_INIT_ONE, 0, "w"), "shape");
    tr_params_release(&param, 1);
    check_refused(tr_param_describe(&param, 2, huge, TR_INIT_ONE, 0, "w"), "shape");
    tr_params_release(&param, 1);
    check_refused(tr_param_describe(&param, 5, shape, TR_INIT_ONE, 0, "w"), "shape");
    tr_params_release(&param, 1);

    assert_int_equal(tr_param_describe(&param, 2, shape, TR_INIT_ONE, 0, "w"), TR_OK);
    check_refused(tr_param_keep(&param, 2, &(tr_slice){.range = {0, 1}}, 1), "dimension 2");
    check_refused(tr_param_keep(&param, 0, &(tr_slice){.range = {4, 3}}, 1), "slice 0");
    check_refused(tr_param_keep(&param, 0, &(tr_slice){.range = {-1, 3}}, 1), "slice 0");
    check_refused(tr_param_keep(&param, 0, &(tr_slice){.range = {0, 1}, .tensor = 1}, 1),
                  "slice 0");
    check_refused(tr_param_add(&param, 2, shape, "v"), "dimension 2");
    assert_int_equal(param.tensors, 1);
    check_refused(tr_param_add(&param, 0, other, "v"), "other dimensions");
    tr_params_release(&param, 1);
}

int main(void) {
    seed_of_test = tr_test_seed(11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_all_versions),
        cmocka_unit_test(test_threads_and_cuts),
        cmocka_unit_test(matrices_follow_their_rules),
        cmocka_unit_test(orthogonal_matrices_are),
        cmocka_unit_test(test_bad_descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
