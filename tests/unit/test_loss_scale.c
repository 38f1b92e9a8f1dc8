/* Tests the loss scale: its rule, and on every layout that an overflow on one rank at one step
 * leaves the bits of a run in which that step was not taken. */
#include "base/philox.h"
#include "support/engine_ranks.h"
#include "support/generate_order.h"
#include "train/engine.h"
#include "train/loss_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* --- the rule --------------------------------------------------------------------------------- */

static tr_config config_of(const char *precision) {
    tr_config c = {0};
    strcpy(c.train.precision, precision);
    return c;
}

static void test_rule(void **state) {
    (void)state;
    const tr_config c = config_of("fp16");
    tr_ckpt_scale s = {0};
    assert_true(tr_loss_scale_next(&c, &s) == 4096);
    for (int k = 1; k < 2000; k++) tr_loss_scale_judge(&c, true, &s);
    assert_true(tr_loss_scale_next(&c, &s) == 4096);
    tr_loss_scale_judge(&c, true, &s);
    assert_true(tr_loss_scale_next(&c, &s) == 8192);
    for (int k = 1; k < 2000; k++) tr_loss_scale_judge(&c, true, &s);
    tr_loss_scale_judge(&c, false, &s); /* begins to count again */
    assert_true(tr_loss_scale_next(&c, &s) == 4096);
    tr_loss_scale_judge(&c, true, &s);
    assert_true(tr_loss_scale_next(&c, &s) == 4096);
    for (int k = 0; k < 10 * 2000; k++) tr_loss_scale_judge(&c, true, &s);
    assert_true(tr_loss_scale_next(&c, &s) == 32768);
    for (int k = 0; k < 40; k++) tr_loss_scale_judge(&c, false, &s);
    assert_true(tr_loss_scale_next(&c, &s) == 1);
}

static void test_other_precisions(void **state) {
    (void)state;
    static const char *const others[] = {"fp32", "bf16", "fp64"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const tr_config c = config_of(others[i]);
        tr_ckpt_scale s = {.value = 512, .steps = 7}; /* of a run that was fp16 before */
        assert_true(tr_loss_scale_next(&c, &s) == 1);
        tr_loss_scale_judge(&c, false, &s);
        assert_true(s.value == 512 && s.steps == 7);
    }
}

/* --- overflow on one rank --------------------------------------------------------------------- */

enum { BATCH = 8, CONTEXT = 16, VOCAB = 64, MOST_RANKS = 4, STEPS = 5, OVERFLOWS = 3 };

typedef struct layout {
    const char *schedule;
    int pp, dp, tp;
    int zero;
    tr_dtype gradients;
} layout;

/* How a run loses step OVERFLOWS. */
typedef enum loss { NOTHING, OVERFLOW, BY_HAND } loss;

/* One rank of a run. */
typedef struct member {
    engine_rank *r;
    const tr_schedule *schedule;
    layout layout;
    loss loss;
    int where; /* the rank on which a gradient overflows */
    int64_t step;
    double losses[STEPS + 1], norms[STEPS + 1];
    bool skipped[STEPS + 1];
    uint64_t hash; /* of masters and moments */
} member;

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++) {
        int32_t *to = wanted[k].to;
        const bool labels = strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0;
        for (int64_t i = 0; i < CONTEXT; i++)
            to[i] = (int32_t)((sample * 7 + (i + labels) * (i + labels)) % VOCAB);
    }
    return TR_OK;
}

/* Makes gradients of a stage infinite after its first W, to which a later one adds. */
static void on_observe(void *context, const tr_instr *instr, bool begin) {
    member *m = context;
    const tr_action *a = &instr->action;
    const bool writes = a->type == TR_ACTION_B || a->type == TR_ACTION_W;
    if (m->loss != OVERFLOW || m->r->rank != m->where || m->step != OVERFLOWS || begin || !writes ||
        instr->adds)
        return;
    const tr_store *store = tr_engine_store(m->r->engine);
    for (int i = 0; i < store->slots; i++) {
        void *grad = store->slot[i].param->grad;
        if (store->slot[i].stage != a->stage) continue;
        if (store->grad_dtype == TR_BF16) *(uint16_t *)grad = tr_f32_to_bf16(INFINITY);
        else *(float *)grad = INFINITY;
    }
}

static void hash_memory(uint64_t *hash, const void *memory, int64_t count) {
    const uint32_t *word = memory;
    for (int64_t i = 0; i < count && word; i++) *hash = tr_mix64(*hash ^ word[i]);
}

static tr_status take_steps(member *m) {
    int64_t taken = 0;
    double scale = TR_LOSS_SCALE_FIRST;
    for (m->step = 1; m->step <= STEPS; m->step++) {
        tr_step_result result = {.skipped = true};
        tr_engine_set_loss_scale(m->r->engine, scale);
        if (m->loss != BY_HAND || m->step != OVERFLOWS)
            TR_TRY(
                tr_engine_step(m->r->engine, m->step, taken + 1, m->step * BATCH, 1e-2, &result));
        m->losses[m->step] = result.loss;
        m->norms[m->step] = result.grad_norm;
        m->skipped[m->step] = result.skipped;
        taken += !result.skipped;
        if (m->step == OVERFLOWS && m->loss != NOTHING) scale /= 2;
    }
    return TR_OK;
}

static tr_status train(engine_rank *r, void *state) {
    member *m = state;
    const layout *l = &m->layout;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = {.family = "gpt2",
                                     .layers = 4,
                                     .width = 16,
                                     .heads = 2,
                                     .kv_heads = 2,
                                     .context = CONTEXT,
                                     .vocab = VOCAB,
                                     .dropout = 0.1f,
                                     .tie = TR_YES},
                           .batch = BATCH,
                           .micro_batch = 1,
                           .dtype = TR_F16,
                           .deterministic = true,
                           .schedule = m->schedule,
                           .max_norm = 1,
                           .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f},
                           .zero = l->zero,
                           .fetch = fetch,
                           .observe = on_observe,
                           .observe_context = m};
    desc.optimizer.gradients = l->gradients;
    m->r = r;
    TR_TRY(tr_mesh_make(l->pp, l->dp, l->tp, r->rank, r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    tr_store *store = tr_engine_store(r->engine);
    TR_TRY(tr_store_init(store, 1, NULL));
    TR_TRY(take_steps(m));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        hash_memory(&m->hash, slot->param->value, slot->param->count / 2);
        hash_memory(&m->hash, slot->master, slot->portion.extent);
        for (int k = 0; k < TR_OPTIM_STATES; k++)
            hash_memory(&m->hash, slot->state[k], slot->portion.extent);
    }
    return check_planned_memory(r);
}

static void run(layout l, loss lost, int where, member of[MOST_RANKS]) {
    tr_schedule *schedule;
    assert_int_equal(generate_order(l.schedule, l.pp, l.pp, BATCH / l.dp, &schedule), TR_OK);
    for (int i = 0; i < MOST_RANKS; i++)
        of[i] = (member){.schedule = schedule, .layout = l, .loss = lost, .where = where};
    run_engine_ranks(l.pp * l.dp * l.tp, "cpu", train, of, sizeof *of);
    tr_schedule_destroy(schedule);
}

static void test_overflow(void **state) {
    (void)state;
    static const layout layouts[] = {{"1f1b", 1, 1, 1, 0, TR_F32},  {"1f1b", 2, 1, 1, 0, TR_F32},
                                     {"zb-h1", 2, 1, 1, 0, TR_F32}, {"1f1b", 1, 2, 1, 0, TR_F32},
                                     {"1f1b", 1, 2, 1, 1, TR_F32},  {"bfs", 2, 2, 1, 2, TR_F32},
                                     {"1f1b", 1, 1, 2, 0, TR_F32},  {"1f1b", 2, 2, 1, 1, TR_F32},
                                     {"1f1b", 1, 1, 1, 0, TR_BF16}, {"bfs", 2, 2, 1, 2, TR_BF16}};
    static member overflowed[MOST_RANKS], by_hand[MOST_RANKS], whole[MOST_RANKS];
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        const layout l = layouts[k];
        const int ranks = l.pp * l.dp * l.tp;
        run(l, NOTHING, 0, whole);
        run(l, BY_HAND, 0, by_hand);
        for (int where = 0; where < ranks; where++) {
            run(l, OVERFLOW, where, overflowed);
            for (int r = 0; r < ranks; r++) {
                const member *a = &overflowed[r], *b = &by_hand[r];
                for (int s = 1; s <= STEPS; s++) {
                    assert_int_equal(a->skipped[s], s == OVERFLOWS);
                    if (s == OVERFLOWS) continue;
                    if (a->losses[s] != b->losses[s] || a->norms[s] != b->norms[s])
                        fail_msg("layout %zu, rank %d of %d: step %d has loss %.17g and norm "
                                 "%.17g, not %.17g and %.17g",
                                 k, r, ranks, s, a->losses[s], a->norms[s], b->losses[s],
                                 b->norms[s]);
                }
                assert_true(isfinite(a->losses[OVERFLOWS]) && !isfinite(a->norms[OVERFLOWS]));
                assert_true(a->hash == b->hash && a->hash != whole[r].hash);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule),
                                       cmocka_unit_test(test_other_precisions),
                                       cmocka_unit_test(test_overflow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
