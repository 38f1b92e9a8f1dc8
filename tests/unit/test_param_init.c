/* Initial values: the bits of every rule never change, whatever the number of threads and however
 * the tensor is cut. */
#include "layers/param_impl.h"

#include "base/philox.h"
#include "support/must.h"
#include "support/seed.h"

#include <stdio.h>
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

/* FNV-1a over the bits of n values. */
static uint64_t hash_values(const float *value, int64_t n, uint64_t hash) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &value[i], sizeof bits);
        for (int b = 0; b < 32; b += 8) hash = (hash ^ (bits >> b & 255)) * 0x100000001b3u;
    }
    return hash;
}

/* The values that every version draws: a run continued or repeated by another version depends on
 * them. Parts begin and end at odd elements. */
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
        tr_param_describe(&param, 2, list[i].shape, list[i].init, 0.02f, "layer.%d.weight", 5);
        tr_param_keep(&param, list[i].axis, &list[i].part, 1);
        float *value = draw(&param, 1234, 2);
        uint64_t hash = hash_values(value, param.count, 0xcbf29ce484222325u);
        if (hash != list[i].hash) fail_msg("case %zu: hash 0x%016llx", i, (unsigned long long)hash);
        free(value);
    }
}

/* Compares every element with the rule, one by one. */
static void check_elements(const tr_param *param, uint64_t seed, const float *value) {
    const uint64_t name = tr_hash_name(param->name);
    for (int b = 0; b < param->boxes; b++) {
        const tr_box *box = &param->box[b];
        const int64_t *extent = box->extent, count = extent[0] * extent[1] * extent[2] * extent[3];
        for (int64_t i = 0; i < count; i++) {
            const int64_t at[] = {i / (extent[1] * extent[2] * extent[3]),
                                  i / (extent[2] * extent[3]) % extent[1],
                                  i / extent[3] % extent[2], i % extent[3]};
            int64_t global = 0, local = box->local_offset;
            for (int d = 0; d < TR_PARAM_RANK; d++) {
                global = global * param->shape[d] + box->offset[d] + at[d];
                local += at[d] * box->local_stride[d];
            }
            float expected = param->init == TR_INIT_ONE ? 1 : 0;
            if (param->init == TR_INIT_NORMAL)
                expected = param->init_std * tr_normal(seed, name, (uint64_t)global);
            if (memcmp(&value[local], &expected, sizeof expected) != 0)
                fail_msg("%s: element %lld is %a, not %a", param->name, (long long)global,
                         (double)value[local], (double)expected);
        }
    }
}

/* Keeps one to three random ranges of a random axis, as a tensor-parallel rank does; some are
 * empty. */
static void cut(tr_param *param, uint64_t *random) {
    const int axis = (int)tr_up_to(random, param->rank) - 1;
    tr_range kept[3];
    int n = 0;
    for (int64_t at = 0; n < 3 && at < param->shape[axis]; n++) {
        int64_t begin = at + tr_up_to(random, param->shape[axis] - at) - 1;
        kept[n] = (tr_range){begin, tr_up_to(random, param->shape[axis] - begin + 1) - 1};
        at = begin + kept[n].extent;
    }
    tr_param_keep(param, axis, kept, n);
}

/* Sizes around and above what a thread takes at a time. */
static void describe_random(tr_param *param, tr_init init, uint64_t *random) {
    static const int64_t most[][TR_PARAM_RANK] = {
        {200000}, {500, 400}, {30, 40, 200}, {9, 20, 30, 40}};
    int64_t shape[TR_PARAM_RANK];
    const int rank = (int)tr_up_to(random, TR_PARAM_RANK);
    for (int d = 0; d < rank; d++) shape[d] = tr_up_to(random, most[rank - 1][d]);
    tr_param_describe(param, rank, shape, init, 0.02f, "random.%d", rank);
}

static void test_threads_and_cuts(void **state) {
    (void)state;
    static const tr_init rules[] = {TR_INIT_NORMAL, TR_INIT_NORMAL, TR_INIT_ONE, TR_INIT_ZERO};
    uint64_t random = seed_of_test;
    for (int trial = 0; trial < 60; trial++) {
        tr_param param;
        describe_random(&param, rules[trial % 4], &random);
        if (trial % 3) cut(&param, &random);
        float *one = draw(&param, random, 1);
        check_elements(&param, random, one);
        for (int threads = 2; threads <= THREADS; threads++) {
            float *more = draw(&param, random, threads);
            assert_memory_equal(one, more, (size_t)param.count * sizeof *one);
            free(more);
        }
        free(one);
    }
}

int main(void) {
    seed_of_test = tr_test_seed(11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_all_versions),
        cmocka_unit_test(test_threads_and_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
