/* Changes lowered programs at random: sums of gradients and gathers of values of two data ranks,
 * and offloads. The proof accepts a changed program exactly when the test's own rules do.
 * TRIREME_LONG=1: more of it. */
#include "pipeline/program/prove.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4 };

/* --- trials ----------------------------------------------------------------------------------- */

/* The programs of two data ranks: each program twice, the second time over ranks of its own. */
typedef struct replicas {
    tr_program_set set;
    tr_program program[2 * RANKS];
} replicas;

static void open_replicas(const tr_program_set *one, replicas *two) {
    two->set = (tr_program_set){.ranks = 2 * one->ranks, .program = two->program};
    for (int r = 0; r < two->set.ranks; r++) {
        tr_program *p = &two->program[r];
        *p = one->program[r % one->ranks];
        p->ranks = two->set.ranks;
        p->rank = r;
        p->instr = calloc((size_t)p->count, sizeof *p->instr);
        assert_non_null(p->instr);
        for (int k = 0; k < p->count; k++) {
            p->instr[k] = one->program[r % one->ranks].instr[k];
            if (r >= one->ranks) p->instr[k].peer += one->ranks;
        }
    }
}

static void close_replicas(replicas *two) {
    for (int r = 0; r < two->set.ranks; r++) free(two->program[r].instr);
}

/* A kind of changes. */
typedef struct mutation {
    void (*fill)(test_random *r, tr_stage_table *t); /* what the programs have */
    void (*change)(test_random *r, const tr_schedule *s, tr_program *p);
    bool (*is_good)(const tr_program_set *two, int ranks); /* two data ranks' programs */
} mutation;

/* Changes the program of a rank, and compares the proof's verdict with the rules'. Returns true
 * when the program is still good. */
static bool try_once(test_random *r, const mutation *m, int trial) {
    tr_schedule *s = test_schedule_named(r, RANKS);
    tr_program_set *set = NULL;
    tr_stage_table t;
    replicas two;
    test_table_chain(s->stages, 512, 512, 512, &t);
    m->fill(r, &t);
    if (tr_lower(s, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
    open_replicas(set, &two);
    if (tr_program_prove(&two.set, &t) != TR_OK) fail_msg("%s: %s", s->name, tr_error_message());
    m->change(r, s, &two.program[test_between(r, 0, two.set.ranks - 1)]);
    const bool good = m->is_good(&two.set, set->ranks);
    tr_error_clear();
    if ((tr_program_prove(&two.set, &t) == TR_OK) != good)
        fail_msg("trial %d, %s: the proof says \"%s\"", trial, s->name, tr_error_message());
    close_replicas(&two);
    tr_program_set_destroy(set);
    tr_stage_table_free(&t);
    tr_schedule_destroy(s);
    return good;
}

/* Tries it this many times; fails unless at least these shares of the programs ran and were
 * refused. */
static void try_all(uint64_t seed, const mutation *m, int trials, double ran, double refused) {
    test_random r = {tr_mix64(tr_test_seed(seed))};
    int good = 0;
    for (int trial = 0; trial < trials; trial++) good += try_once(&r, m, trial);
    print_message("%d ran, %d were refused\n", good, trials - good);
    assert_true(good > ran * trials && trials - good > refused * trials);
}

/* --- sums and gathers ------------------------------------------------------------------------- */

static bool is_weight(tr_action a) {
    return a.type == TR_ACTION_W || a.type == TR_ACTION_B;
}

/* Returns true when the rank starts and awaits each of its sums once, with all its values. */
static bool sums_well(const tr_program *p) {
    enum { KEYS = 64 * 8 };
    int left[64] = {0}, state[KEYS] = {0}, open = 0;
    for (int k = 0; k < p->count; k++)
        if (is_weight(p->instr[k].action)) left[p->instr[k].action.stage]++;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (is_weight(a)) left[a.stage]--;
        if (a.type == TR_ACTION_FINISH && (open || k != p->count - 1)) return false;
        if (!tr_action_reduces(a)) continue;
        int *at = &state[a.stage * 8 + a.micro_batch], before = (*at)++;
        bool start = a.type == TR_ACTION_REDUCE_START;
        if (before != (start ? 0 : 1) || left[a.stage] > 0) return false;
        open += start ? 1 : -1;
    }
    return true;
}

/* Returns true when the rank's actions find the values that their stages gather, and no gather is
 * in flight when another one of its bucket starts, or at the end. */
static bool gathers_well(const tr_program *p) {
    enum { KEYS = 64 * 8 };
    /* 1: gathered somewhere; 2: in flight; 3: the next action will wait; 4: complete */
    int state[KEYS] = {0}, open = 0;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (tr_action_gathers(a)) state[a.stage * 8 + a.micro_batch] = 1;
    }
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        for (int b = 0; b < 8 && tr_action_computes(a); b++) {
            int *at = &state[a.stage * 8 + b];
            if (*at == 1 || *at == 2) return false;
            open -= *at == 3;
            if (*at == 3) *at = 4;
        }
        if (a.type == TR_ACTION_FINISH && (open || k != p->count - 1)) return false;
        if (!tr_action_gathers(a)) continue;
        int *at = &state[a.stage * 8 + a.micro_batch];
        const bool start = a.type == TR_ACTION_GATHER_START;
        if (start ? *at == 2 || *at == 3 : *at != 2) return false;
        *at = start ? 2 : 3;
        open += start;
    }
    return true;
}

static bool starts(tr_action a) {
    return a.type == TR_ACTION_REDUCE_START || a.type == TR_ACTION_GATHER_START;
}

/* Returns true when two data ranks, which share one group, start the same sums and gathers in the
 * same order. */
static bool meets(const tr_program *a, const tr_program *b) {
    for (int i = 0, j = 0;; i++, j++) {
        while (i < a->count && !starts(a->instr[i].action)) i++;
        while (j < b->count && !starts(b->instr[j].action)) j++;
        if (i == a->count || j == b->count) return i == a->count && j == b->count;
        const tr_action x = a->instr[i].action, y = b->instr[j].action;
        if (x.type != y.type || x.stage != y.stage || x.micro_batch != y.micro_batch) return false;
    }
}

static bool reduces(tr_action a) {
    return tr_action_reduces(a);
}

static bool gathers(tr_action a) {
    return tr_action_gathers(a);
}

static void change_collective(test_random *r, const tr_schedule *s, tr_program *p) {
    (void)s;
    test_program_change(r, p, test_between(r, 0, 1) ? gathers : reduces, TEST_BUCKETS);
}

static bool collect_well(const tr_program_set *two, int ranks) {
    bool good = true;
    for (int k = 0; k < two->ranks; k++)
        good = good && sums_well(&two->program[k]) && gathers_well(&two->program[k]);
    for (int k = 0; k < ranks; k++)
        good = good && meets(&two->program[k], &two->program[k + ranks]);
    return good;
}

static void test_collectives(void **state) {
    (void)state;
    static const mutation m = {test_table_buckets, change_collective, collect_well};
    try_all(8103, &m, tr_test_trials(4000), 0.075, 0.25);
}

/* Removes a sum's start and wait from a program. */
static void remove_sum(tr_program *p, int stage, int bucket) {
    int count = 0;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (tr_action_reduces(a) && a.stage == stage && a.micro_batch == bucket) continue;
        p->instr[count++] = p->instr[k];
    }
    p->count = count;
    test_relink(p);
}

/* A sum that no rank makes meets every other rule. */
static void test_missing_sums(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(8106))};
    int missing = 0;
    for (int trial = 0; trial < tr_test_trials(200); trial++) {
        tr_schedule *s = test_schedule_named(&r, RANKS);
        tr_program_set *set = NULL;
        tr_stage_table t;
        replicas two;
        test_table_chain(s->stages, 512, 512, 512, &t);
        test_table_buckets(&r, &t);
        assert_int_equal(tr_lower(s, &t, &set), TR_OK);
        open_replicas(set, &two);
        const int stage = test_between(&r, 0, t.stages - 1);
        const int buckets = t.cost[stage].buckets;
        const int bucket = buckets > 0 ? test_between(&r, 0, buckets - 1) : 0;
        const bool needed = !s->forward_only && buckets > 0 && test_reduces(&t, stage, bucket);
        for (int k = 0; k < two.set.ranks; k++) remove_sum(&two.program[k], stage, bucket);
        tr_error_clear();
        assert_int_equal(tr_program_prove(&two.set, &t), needed ? TR_ERR_CONFIG : TR_OK);
        if (needed)
            assert_non_null(strstr(tr_error_message(), "does not sum the weight gradients"));
        missing += needed;
        close_replicas(&two);
        tr_program_set_destroy(set);
        tr_stage_table_free(&t);
        tr_schedule_destroy(s);
    }
    assert_in_range(missing, tr_test_trials(20), tr_test_trials(180));
}

/* --- offloads --------------------------------------------------------------------------------- */

static void fill_offload(test_random *r, tr_stage_table *t) {
    for (int k = 0; k < t->stages; k++) t->cost[k].offload = test_between(r, 0, 3) > 0;
}

static bool offloads(tr_action a) {
    return tr_action_offloads(a);
}

static void change_offload(test_random *r, const tr_schedule *s, tr_program *p) {
    test_program_change(r, p, offloads, s->micro_batches);
}

/* Returns true when what each F keeps stays, or goes out and comes back once, in this order and
 * before it is used. */
static bool offloads_well(const tr_program *p) {
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        int at[4] = {-1, -1, -1, -1}, f = -1, used = p->count;
        if (!tr_action_offloads(a)) continue;
        for (int j = p->count - 1; j >= 0; j--) {
            const tr_action b = p->instr[j].action;
            if (b.stage != a.stage || b.micro_batch != a.micro_batch) continue;
            if (b.type == TR_ACTION_F) f = j;
            else if (tr_action_computes(b)) used = j;
            if (!tr_action_offloads(b)) continue;
            if (at[b.type - TR_ACTION_OFFLOAD] >= 0) return false;
            at[b.type - TR_ACTION_OFFLOAD] = j;
        }
        if (f < 0 || at[0] < f || at[1] < at[0] || at[2] < at[1] || at[3] < at[2] || used < at[3])
            return false;
    }
    return true;
}

static bool all_offload_well(const tr_program_set *two, int ranks) {
    (void)ranks;
    bool good = true;
    for (int k = 0; k < two->ranks; k++) good = good && offloads_well(&two->program[k]);
    return good;
}

static void test_offloads(void **state) {
    (void)state;
    static const mutation m = {fill_offload, change_offload, all_offload_well};
    try_all(8104, &m, tr_test_trials(1500), 0.1, 0.2);
}

int main(void) {
    (void)alarm(getenv("TRIREME_LONG") ? 36000 : 590); /* a hang is a failure */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives),
                                       cmocka_unit_test(test_missing_sums),
                                       cmocka_unit_test(test_offloads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
