/* Tests the packing of the arena: no overlap, and the promise of pipeline/program/arena.h: at most
 * 5% over the live peak with every schedule that ships and every model preset, also when data ranks
 * divide gradients and values (parallel.zero 3). */
#include "base/memory.h"
#include "base/minmax.h"
#include "layers/layer_stage.h"
#include "layers/preset.h"
#include "partition/buckets.h"
#include "partition/cut_for_schedule.h"
#include "pipeline/orders/make.h"
#include "pipeline/program/arena_order.h"
#include "support/drawn.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_STAGES = 64 };
#ifdef __SANITIZE_ADDRESS__ /* sixfold time; the release build packs every preset that is drawn */
enum { PRESET_STEP = 5 };
#else
enum { PRESET_STEP = 1 };
#endif

static const struct {
    const char *name;
    int least, most; /* stages a rank */
} schedules[] = {
    {"gpipe", 1, 1},          {"1f1b", 1, 1},      {"interleaved", 1, 4}, {"bfs", 1, 4},
    {"zb-h1", 1, 1},          {"zb-h2", 1, 1},     {"zb-1p", 1, 1},       {"zb-2p", 1, 1},
    {"interleaved-zb", 1, 4}, {"zbv", 2, 2},       {"v-half", 2, 2},      {"v-min", 2, 2},
    {"1f1b-v", 2, 2},         {"dualpipev", 2, 2}, {"auto", 0, 0},        {"forward", 1, 1}};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* divided: two data ranks have parallel.zero 3. */
static void make_table(const tr_model *model, const tr_schedule *s, bool divided,
                       tr_stage_table *t) {
    int first[MOST_STAGES + 1];
    const tr_mesh mesh = {.degree = {[TR_AXIS_PP] = s->ranks, [TR_AXIS_DP] = 2, [TR_AXIS_TP] = 1}};
    const tr_placement placement = {.stages = s->stages, .first = first, .owner = s->rank_of};
    const tr_cut_memory memory = {.optimizer.kind = TR_OPTIM_ADAMW,
                                  .divided = divided ? &mesh : NULL,
                                  .zero = divided ? 3 : 0};
    assert_true(s->stages <= MOST_STAGES);
    if (tr_cut_for_schedule(model, s, &memory, first) != TR_OK) fail_msg("%s", tr_error_message());
    if (tr_layer_table_make(model, first, s->stages, t) != TR_OK)
        fail_msg("%s", tr_error_message());
    if (divided &&
        tr_buckets_make(model, &placement, &mesh, TR_F32, TR_REDUCE_SUM, memory.zero, t) != TR_OK)
        fail_msg("%s", tr_error_message());
}

/* Items of one buffer each. */
static void expect_no_overlap(const tr_arena_item *items, int n, const size_t *offset,
                              size_t bytes) {
    for (int a = 0; a < n; a++) {
        const tr_arena_item *x = &items[a];
        assert_int_equal(x->first, a);
        assert_true(offset[a] % TR_ALIGN == 0 && offset[a] + x->bytes <= bytes);
        for (int b = a + 1; b < n; b++) {
            const tr_arena_item *y = &items[b];
            bool in_time = x->start <= y->end && y->start <= x->end;
            bool in_place = offset[a] < offset[b] + y->bytes && offset[b] < offset[a] + x->bytes;
            assert_false(in_time && in_place);
        }
    }
}

typedef struct tally {
    double worst;
    char where[160];
    int programs;
} tally;

/* Scratch, which follows the items, does not count: it would hide gaps of the packing. */
static void judge(const tr_program *p, const char *what, tally *all) {
    size_t peak = p->live_peak_bytes - p->scratch_bytes;
    double ratio = peak ? (double)p->scratch_offset / (double)peak : 1;
    all->programs++;
    if (ratio <= all->worst) return;
    all->worst = ratio;
    (void)snprintf(all->where, sizeof all->where, "%s, rank %d", what, p->rank);
}

static void pack_program_set(const tr_model *model, tr_schedule_request q, bool divided,
                             const char *model_name, tally *all) {
    char what[128];
    (void)snprintf(what, sizeof what, "%s, %s, p %d, m %d, v %d", model_name, q.name, q.ranks,
                   q.micro_batches, q.chunks);
    tr_schedule *s = NULL;
    tr_stage_table t;
    tr_program_set *set = NULL;
    if (tr_schedule_make(&q, &s) != TR_OK) fail_msg("%s: %s", what, tr_error_message());
    make_table(model, s, divided, &t);
    if (tr_lower(s, &t, &set) != TR_OK) fail_msg("%s: %s", what, tr_error_message());
    for (int k = 0; k < set->ranks; k++) judge(&set->program[k], what, all);
    tr_program_set_destroy(set);
    tr_stage_table_free(&t);
    tr_schedule_destroy(s);
}

/* Packs all schedules with one model and p ranks: steps without, with a short and with a `longest`
 * steady state. */
static void pack_model(const tr_model *model, bool divided, const char *name, int p, int longest,
                       tally *all) {
    const int micro_batches[] = {p, 2 * p, longest};
    int layers = (int)model->config.layers;
    for (int n = 0; n < SCHEDULES; n++)
        for (int v = schedules[n].least; v <= schedules[n].most; v++)
            for (size_t m = 0; m < sizeof micro_batches / sizeof *micro_batches; m++) {
                if (p * v > layers) continue;
                tr_schedule_request q = {.name = schedules[n].name,
                                         .ranks = p,
                                         .micro_batches = micro_batches[m],
                                         .chunks = v,
                                         .most_chunks = layers / p < 4 ? layers / p : 4};
                if (q.most_chunks > 0) pack_program_set(model, q, divided, name, all);
            }
}

/* steady: micro-batches a rank of the longest steady state, which has at most 65. */
static void pack_config(const tr_model_config *config, bool divided, const char *name,
                        tr_dtype dtype, int tp, int steady, tally *all) {
    tr_model_shape shape = {.batch = 1, .seq = config->context, .dtype = dtype, .tp_size = tp};
    tr_model *model = NULL;
    if (tr_model_create(config, &shape, &model) != TR_OK)
        fail_msg("%s: %s", name, tr_error_message());
    for (int p = 2; p <= 8; p *= 2)
        pack_model(model, divided, name, p, tr_min_int(steady * p + 1, 65), all);
    tr_model_destroy(model);
}

static void report(const tally *all, double limit) {
    print_message("%d programs: the arena at most %.4f of the live peak (%s)\n", all->programs,
                  all->worst, all->where);
    if (all->worst > limit) fail_msg("%s: %.4f of the live peak", all->where, all->worst);
}

static void test_every_preset(void **state) {
    (void)state;
    tally all = {0};
    for (int k = 0; k < tr_preset_count; k += PRESET_STEP) {
        const tr_preset *preset = &tr_presets[k];
        if (!tr_test_drawn((uint64_t)k)) continue;
        pack_config(&preset->model, false, preset->name, TR_BF16, 1, 16, &all);
        if (k % 3 == 0 && preset->model.heads % 2 == 0)
            pack_config(&preset->model, false, preset->name, TR_F32, 2, 4,
                        &all); /* only sizes differ */
    }
    report(&all, 1.05);
}

/* With parallel.zero 3, the values and gradients of the embedding and the head are larger than most
 * gaps, above all where the context is short. */
static void test_divided(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3-0.6b", "llama-3.2-1b", "gpt2-124m"};
    tally all = {0};
    for (size_t k = 0; k < sizeof names / sizeof *names; k += PRESET_STEP) {
        tr_model_config config = tr_preset_find(names[k])->model;
        config.context = 128;
        pack_config(&config, true, names[k], TR_BF16, 1, 4, &all);
    }
    report(&all, 1.05);
}

/* Plans with parallel.zero 3 that need a search: of an order of the large buffers, and a long one
 * of best fit. */
static void test_searches(void **state) {
    (void)state;
    static const struct {
        const char *preset;
        tr_dtype dtype;
        int context, ranks, micro_batches, chunks;
    } plans[] = {{"qwen3-0.6b", TR_F32, 64, 2, 12, 3}, {"llama-3-8b", TR_F32, 128, 3, 24, 4}};
    tally all = {0};
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        tr_model_config config = tr_preset_find(plans[k].preset)->model;
        tr_model_shape shape = {
            .batch = 1, .seq = plans[k].context, .dtype = plans[k].dtype, .tp_size = 1};
        tr_schedule_request q = {.name = "interleaved-zb",
                                 .ranks = plans[k].ranks,
                                 .micro_batches = plans[k].micro_batches,
                                 .chunks = plans[k].chunks};
        tr_model *model = NULL;
        config.context = plans[k].context;
        assert_int_equal(tr_model_create(&config, &shape, &model), TR_OK);
        pack_program_set(model, q, true, plans[k].preset, &all);
        tr_model_destroy(model);
    }
    report(&all, 1.05);
}

/* With recompute, the tensors that a block does not keep are larger than most gaps while its stage
 * runs F. */
static void test_recompute(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2-124m", "llama-3.2-1b"};
    for (tr_recompute mode = TR_RECOMPUTE_SELECTIVE; mode < TR_RECOMPUTE_MODES; mode++) {
        tally all = {0};
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            tr_model_config config = tr_preset_find(names[k])->model;
            (void)snprintf(config.recompute, sizeof config.recompute, "%s",
                           tr_recompute_name(mode));
            pack_config(&config, false, names[k], TR_BF16, 1, 4, &all);
        }
        print_message("%s: ", tr_recompute_name(mode));
        report(&all, 1.05);
    }
}

/* With many micro-batches the arena is still near the peak, and packing takes nearly linear time
 * (quadratic time would pass the test's limit). */
static void test_many_micro_batches(void **state) {
    (void)state;
    tally all = {0};
    const tr_preset *preset = tr_preset_find("gpt2-124m");
    tr_model_shape shape = {.batch = 1, .seq = 128, .dtype = TR_BF16, .tp_size = 1};
    tr_schedule_request q = {.name = "zbv", .ranks = 4, .micro_batches = 4096};
    tr_model *model = NULL;
    assert_int_equal(tr_model_create(&preset->model, &shape, &model), TR_OK);
    pack_program_set(model, q, false, preset->name, &all);
    tr_model_destroy(model);
    report(&all, 1.05);
}

/* Returns the most bytes alive at one of the positions 0 .. last. */
static size_t most_alive(const tr_arena_item *items, int n, int last) {
    size_t most = 0;
    for (int at = 0; at <= last; at++) {
        size_t live = 0;
        for (int k = 0; k < n; k++)
            if (items[k].start <= at && at <= items[k].end) live += items[k].bytes;
        if (live > most) most = live;
    }
    return most;
}

/* Divides items into those of one buffer each, and returns how many there are. */
static int divide(const tr_arena_item *items, int n, tr_arena_item *out) {
    int count = 0;
    for (int k = 0; k < n; k++)
        for (int j = 0; j < items[k].count; j++) {
            out[count] = items[k];
            out[count++].count = 1;
        }
    return count;
}

/* Buffers of any sizes and lifetimes do not overlap; the live peak is what it is by its definition.
 * Items of several buffers have the places that their buffers have as items of their own. */
static void test_random_items(void **state) {
    (void)state;
    enum { MOST = 40, MOST_COUNT = 6 };
    test_random r = {tr_test_seed(91731)};
    for (int trial = 0; trial < 2000; trial++) {
        tr_arena_item items[MOST], single[MOST * MOST_COUNT];
        int n = test_between(&r, 1, MOST), length = test_between(&r, 1, 30);
        size_t peak = 0, bytes = 0, together = 0, *offset, *own;
        for (int k = 0; k < n; k++) {
            int start = test_between(&r, 0, length);
            items[k] = (tr_arena_item){.start = start,
                                       .end = test_between(&r, start, length),
                                       .count = test_between(&r, 1, MOST_COUNT),
                                       .bytes = TR_ALIGN * (size_t)test_between(&r, 1, 9)};
            if (trial % 2 == 1 && test_between(&r, 0, 2) == 0) items[k].bytes *= 32;
        }
        const int buffers = divide(items, n, single);
        assert_int_equal(tr_arena_pack(single, buffers, &own, &bytes, &peak), TR_OK);
        assert_int_equal(peak, most_alive(single, buffers, length));
        assert_true(bytes >= peak);
        expect_no_overlap(single, buffers, own, bytes);
        assert_int_equal(tr_arena_pack(items, n, &offset, &together, &peak), TR_OK);
        assert_int_equal(together, bytes);
        assert_int_equal(items[n - 1].first + items[n - 1].count, buffers);
        assert_memory_equal(offset, own, (size_t)buffers * sizeof *own);
        assert_int_equal(tr_arena_pack(items, n, NULL, &together, &peak), TR_OK);
        assert_int_equal(together, bytes);
        free(offset);
        free(own);
    }
}

/* The same holds of the search of an order, with more small buffers than it places one by one. */
static void test_many_small_items(void **state) {
    (void)state;
    enum { LARGE = 8, SMALL = 5000, LENGTH = 12 };
    static tr_arena_item items[LARGE + 1], single[LARGE + SMALL];
    static size_t offset[LARGE + SMALL], own[LARGE + SMALL];
    test_random r = {tr_test_seed(5417)};
    size_t together = SIZE_MAX, bytes = SIZE_MAX;
    for (int k = 0; k < LARGE; k++) {
        const int start = test_between(&r, 0, LENGTH);
        items[k] = (tr_arena_item){.start = start,
                                   .end = test_between(&r, start, LENGTH),
                                   .count = 1,
                                   .bytes = 32 * TR_ALIGN * (size_t)test_between(&r, 2, 9)};
    }
    items[LARGE] = (tr_arena_item){.end = 2, .count = SMALL, .bytes = TR_ALIGN};
    const int buffers = divide(items, LARGE + 1, single);
    assert_int_equal(tr_arena_search_order(items, LARGE + 1, 0, &together, offset), TR_OK);
    assert_int_equal(tr_arena_search_order(single, buffers, 0, &bytes, own), TR_OK);
    assert_true(together < SIZE_MAX);
    assert_int_equal(together, bytes);
    assert_memory_equal(offset, own, sizeof own);
}

/* Each sweep finds what the other one misses: where items begin one after another and then free the
 * space of a larger one together, the backward sweep packs better; with time reversed, the forward
 * sweep. */
static void test_both_directions(void **state) {
    (void)state;
    for (int backwards = 0; backwards <= 1; backwards++) {
        static const int set[3][3] = {{0, 1, 1}, {1, 2, 1}, {2, 4, 2}};
        tr_arena_item items[3];
        size_t peak = 0, bytes = 0, *offset;
        for (int k = 0; k < 3; k++) {
            int start = set[k][0], end = set[k][1];
            items[k] = (tr_arena_item){.start = backwards ? 4 - end : start,
                                       .end = backwards ? 4 - start : end,
                                       .count = 1,
                                       .bytes = TR_ALIGN * (size_t)set[k][2]};
        }
        assert_int_equal(tr_arena_pack(items, 3, &offset, &bytes, &peak), TR_OK);
        expect_no_overlap(items, 3, offset, bytes);
        assert_int_equal(bytes, peak);
        free(offset);
    }
}

static void test_bad_sizes(void **state) {
    (void)state;
    size_t bytes = 1, peak, *offset;
    assert_int_equal(tr_arena_pack(NULL, 0, &offset, &bytes, &peak), TR_OK);
    assert_int_equal(bytes, 0);
    assert_null(offset);
    tr_arena_item items[3];
    for (int k = 0; k < 3; k++)
        items[k] =
            (tr_arena_item){.start = 2 * k, .end = 2 * k, .count = 1, .bytes = SIZE_MAX / 128 * 64};
    assert_int_equal(tr_arena_pack(items, 3, &offset, &bytes, &peak), TR_ERR_FIT);
    items[0].count = 3;
    assert_int_equal(tr_arena_pack(items, 1, &offset, &bytes, &peak), TR_ERR_FIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_preset),       cmocka_unit_test(test_divided),
        cmocka_unit_test(test_searches),           cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_many_micro_batches), cmocka_unit_test(test_random_items),
        cmocka_unit_test(test_many_small_items),   cmocka_unit_test(test_both_directions),
        cmocka_unit_test(test_bad_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
