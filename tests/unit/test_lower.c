/* Tests lowered programs: transfers agree on both ends, memory never overlaps, and sums, gathers
 * and offloads are where they should be. */
#include "support/generate_order.h"
#include "support/lowered.h"
#include "support/pipeline_cases.h"
#include "support/program_checks.h"
#include "support/seed.h"

/* Returns the offset of buffer `b` of an item. */
static size_t offset_of(const tr_program *p, const tr_arena_item *item, int b) {
    return p->offset[item->first + b];
}

/* Fails if a buffer of one item shares bytes with one of another, or with one of its own. */
static void expect_apart(const tr_program *p, const tr_arena_item *x, const tr_arena_item *y) {
    for (int a = 0; a < x->count; a++)
        for (int b = x == y ? a + 1 : 0; b < y->count; b++)
            assert_false(offset_of(p, x, a) < offset_of(p, y, b) + y->bytes &&
                         offset_of(p, y, b) < offset_of(p, x, a) + x->bytes);
}

static void expect_no_overlap(const tr_program *p) {
    for (int a = 0; a < p->items; a++) {
        const tr_arena_item *x = &p->item[a];
        assert_true(x->bytes % TR_ALIGN == 0);
        for (int k = 0; k < x->count; k++) {
            assert_true(offset_of(p, x, k) % TR_ALIGN == 0);
            assert_true(offset_of(p, x, k) + x->bytes <= p->scratch_offset);
        }
        for (int b = a; b < p->items; b++) {
            const tr_arena_item *y = &p->item[b];
            if (x->start <= y->end && y->start <= x->end) expect_apart(p, x, y);
        }
    }
    assert_true(p->live_peak_bytes <= p->arena_bytes);
}

/* Fails unless an action's pieces are apart. */
static void expect_pieces(const tr_stage_table *t, const tr_program *p) {
    for (int k = 0; k < p->count; k++) {
        if (p->instr[k].memory < 0) continue;
        const tr_stage_cost *cost = &t->cost[p->instr[k].action.stage];
        const tr_action_memory *memory = &p->memory[p->instr[k].memory];
        const size_t *at = &p->piece[memory->first_piece];
        assert_int_equal(memory->pieces, cost->pieces);
        for (int a = 0; a < cost->pieces; a++)
            for (int b = a + 1; b < cost->pieces && at[a] != TR_NO_PLACE; b++)
                assert_true(at[b] == TR_NO_PLACE || at[a] + cost->piece[a].bytes <= at[b] ||
                            at[b] + cost->piece[b].bytes <= at[a]);
    }
}

/* Fails unless tr_lower_arenas finds the arenas of the programs. */
static void expect_arenas(const tr_schedule *s, const tr_stage_table *t,
                          const tr_program_set *set) {
    size_t arena[64];
    assert_true(s->ranks <= 64);
    assert_int_equal(tr_lower_arenas(s, t, arena), TR_OK);
    for (int r = 0; r < s->ranks; r++) assert_int_equal(arena[r], set->program[r].arena_bytes);
}

/* Fails unless the k-th SEND from one rank to another and the k-th RECV there are the same message,
 * within the bounds of its slot, and a WAIT_SENT follows every SEND once. */
static void expect_matched(const tr_program_set *set) {
    for (int from = 0; from < set->ranks; from++)
        for (int to = 0; to < set->ranks; to++) {
            const tr_program *a = &set->program[from], *b = &set->program[to];
            int i = 0, j = 0, n = 0;
            for (;; i++, j++, n++) {
                while (i < a->count &&
                       !(a->instr[i].action.type == TR_ACTION_SEND && a->instr[i].peer == to))
                    i++;
                while (j < b->count &&
                       !(b->instr[j].action.type == TR_ACTION_RECV && b->instr[j].peer == from))
                    j++;
                if (i == a->count || j == b->count) break;
                const tr_instr *x = &a->instr[i], *y = &b->instr[j];
                assert_int_equal(x->edge, y->edge);
                assert_int_equal(x->action.gradient, y->action.gradient);
                assert_int_equal(x->action.micro_batch, y->action.micro_batch);
                assert_int_equal(x->bytes, y->bytes);
                assert_int_equal(x->message, n);
                assert_int_equal(y->message, n);
                assert_true(x->offset + x->bytes <= a->arena_bytes);
                assert_true(y->offset + y->bytes <= b->arena_bytes);
            }
            assert_true(i == a->count && j == b->count);
            assert_true(from != to || n == 0);
        }
    for (int r = 0; r < set->ranks; r++) {
        const tr_program *p = &set->program[r];
        int sends = 0, waits = 0;
        for (int k = 0; k < p->count; k++) {
            sends += p->instr[k].action.type == TR_ACTION_SEND;
            if (p->instr[k].action.type != TR_ACTION_WAIT_SENT) continue;
            waits++;
            const tr_instr *send = &p->instr[p->instr[k].send];
            assert_true(p->instr[k].send < k && send->action.type == TR_ACTION_SEND);
            assert_int_equal(send->message, p->instr[k].message);
            assert_int_equal(send->peer, p->instr[k].peer);
        }
        assert_int_equal(sends, waits);
        assert_int_equal(p->instr[p->count - 1].action.type, TR_ACTION_FINISH);
    }
}

static bool has_buckets_in_arena(const tr_stage_table *t) {
    return t->cost[0].buckets > 0 && t->cost[0].bucket[0].arena > 0;
}

/* Returns true when the instruction may write weight gradients of the bucket. */
static bool writes(const tr_instr *instr, int stage, const tr_bucket *bucket) {
    const tr_action a = instr->action;
    return a.stage == stage && (a.type == TR_ACTION_W || a.type == TR_ACTION_B ||
                                (a.type == TR_ACTION_F && bucket->in_forward));
}

/* Fails unless the bucket is alive from the first instruction that writes its gradients until the
 * wait for their sum, in an item of its own, and two stages that have ended never keep theirs when
 * it begins. */
static void expect_bucket(const tr_stage_table *t, const tr_program *p,
                          const tr_program_bucket *w) {
    const tr_bucket *bucket = &t->cost[w->stage].bucket[w->bucket];
    int first = -1, wait = -1, items = 0, left[64] = {0}, kept = -1;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (first < 0 && writes(&p->instr[k], w->stage, bucket)) first = k;
        if (a.type == TR_ACTION_REDUCE_WAIT && a.stage == w->stage && a.micro_batch == w->bucket)
            wait = k;
    }
    assert_true(first >= 0 && first < wait && w->bytes >= bucket->arena);
    for (int k = 0; k < p->items; k++) {
        const tr_item_key *key = &p->key[k];
        if (key->kind != TR_ITEM_BUCKET || key->owner != w->stage || key->micro_batch != w->bucket)
            continue;
        items++;
        assert_true(p->item[k].start == first && p->item[k].end == wait);
        assert_int_equal(p->item[k].count, 1);
        assert_true(offset_of(p, &p->item[k], 0) == w->offset && p->item[k].bytes == w->bytes);
    }
    assert_int_equal(items, 1);
    for (int k = 0; k < first; k++) {
        const tr_action a = p->instr[k].action;
        if (a.type == TR_ACTION_REDUCE_START) left[a.stage]++;
        if (a.type == TR_ACTION_REDUCE_WAIT) left[a.stage]--;
    }
    for (int s = 0; s < t->stages; s++) {
        if (left[s] == 0) continue;
        assert_int_equal(kept, -1);
        kept = s;
    }
}

static void expect_buckets(const tr_schedule *s, const tr_stage_table *t,
                           const tr_program_set *set) {
    for (int r = 0; r < set->ranks; r++) {
        const tr_program *p = &set->program[r];
        int buckets = 0;
        size_t bytes = 0;
        for (int stage = 0; stage < s->stages && has_buckets_in_arena(t) && !s->forward_only;
             stage++)
            if (s->rank_of[stage] == r) buckets += t->cost[stage].buckets;
        assert_int_equal(p->buckets, buckets);
        for (int w = 0; w < p->buckets; w++) {
            expect_bucket(t, p, &p->bucket[w]);
            bytes += p->bucket[w].bytes;
        }
        assert_true(p->bucket_bytes == bytes && p->bucket_peak <= bytes);
    }
}

/* Fails unless each bucket with bytes or in the arena is reduced once, after the stage's last W or
 * B, and, without buckets in the arena, all waits for these sums come after all other instructions
 * except WAIT_SENT and FINISH. */
static void expect_reductions(const tr_schedule *s, const tr_stage_table *t,
                              const tr_program_set *set) {
    for (int stage = 0; stage < s->stages; stage++) {
        const tr_program *p = &set->program[s->rank_of[stage]];
        int last = -1, starts[TEST_BUCKETS] = {0}, waits[TEST_BUCKETS] = {0};
        for (int k = 0; k < p->count; k++) {
            const tr_action a = p->instr[k].action;
            if (a.stage != stage) continue;
            if (a.type == TR_ACTION_W || a.type == TR_ACTION_B) last = k;
            if (a.type == TR_ACTION_REDUCE_START) starts[a.micro_batch]++;
            if (a.type != TR_ACTION_REDUCE_WAIT) continue;
            waits[a.micro_batch] += starts[a.micro_batch] == 1 && k > last;
            for (int j = k + 1; j < p->count && !has_buckets_in_arena(t); j++)
                assert_true(tr_action_is_added(p->instr[j].action));
        }
        for (int b = 0; b < TEST_BUCKETS; b++) {
            assert_int_equal(starts[b], !s->forward_only && test_reduces(t, stage, b));
            assert_int_equal(waits[b], starts[b]);
        }
    }
}

/* Fails unless the order's programs are sound. Returns the offloads in them. */
static int expect_sound(const tr_schedule *s, const tr_stage_table *t) {
    tr_program_set *set = lowered(s, t);
    int offloads = 0;
    for (int r = 0; r < set->ranks; r++) offloads += expect_offloads(t, &set->program[r]);
    for (int r = 0; r < set->ranks; r++) expect_no_overlap(&set->program[r]);
    for (int r = 0; r < set->ranks; r++) expect_pieces(t, &set->program[r]);
    expect_arenas(s, t, set);
    expect_matched(set);
    expect_reductions(s, t, set);
    expect_buckets(s, t, set);
    for (int r = 0; r < set->ranks; r++) expect_gathers(t, &set->program[r]);
    for (int r = 0; r < set->ranks; r++) expect_updated(s, t, &set->program[r]);
    /* Whether a program ends does not depend on time: try other costs and latencies. */
    static const double latencies[] = {0, 1e-3, 100};
    for (int k = 0; k < 3; k++) tr_simulation_destroy(simulated(set, t, latencies[k]));
    tr_program_set_destroy(set);
    return offloads;
}

static void test_random_programs(void **state) {
    (void)state;
    test_random r = {tr_test_seed(91731)};
    int offloads = 0;
    for (int trial = 0; trial < 400; trial++) {
        int ranks = test_between(&r, 1, 4), stages = ranks * test_between(&r, 1, 3);
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 4), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 6)), *f = NULL;
        assert_int_equal(tr_schedule_forward_of(s, NULL, 5, &f), TR_OK);
        offloads += expect_sound(s, &t) + expect_sound(f, &t);
        tr_schedule_destroy(f);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    assert_true(offloads > 400);
}

static void test_v_program(void **state) {
    (void)state;
    tr_stage_table t;
    test_table_chain(4, 512, 1024, 768, &t);
    tr_schedule *s = test_schedule_v();
    (void)expect_sound(s, &t);
    /* The turn of the V stays on rank 1: stage 1 writes where stage 2 reads. */
    tr_program_set *set = lowered(s, &t);
    const tr_program *p = &set->program[1];
    const tr_action_memory *f1 = NULL, *f2 = NULL;
    /* Stage 3 on rank 0 is reduced as soon as its gradients are complete, not at the end. */
    int reduce = 0, last = 0;
    for (const tr_instr *i = set->program[0].instr;
         i->action.stage != 3 || i->action.type != TR_ACTION_REDUCE_START; i++)
        reduce++;
    for (int k = 0; k < set->program[0].count; k++)
        if (set->program[0].instr[k].action.type == TR_ACTION_B) last = k;
    assert_true(reduce < last);
    for (int k = 0; k < p->count; k++)
        if (p->instr[k].action.type == TR_ACTION_F && p->instr[k].action.micro_batch == 1)
            *(p->instr[k].action.stage == 1 ? &f1 : &f2) = &p->memory[p->instr[k].memory];
    assert_non_null(f1);
    assert_non_null(f2);
    assert_int_equal(f1->places, 2); /* input and output */
    assert_int_equal(p->place[f1->first_place + 1].role, TR_PLACE_OUT);
    assert_int_equal(p->place[f2->first_place].role, TR_PLACE_IN);
    assert_int_equal(p->place[f1->first_place + 1].offset, p->place[f2->first_place].offset);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A forward-only program for a training schedule: the memory between a rank's stages does not grow
 * with the micro-batches, and a rank is idle only at the beginning and the end, wherever the stages
 * are. */
static void test_forward_only_holds_little(void **state) {
    (void)state;
    enum { RANKS = 4, PLACES = 4 };
    static const int rank_of[PLACES][12] = {{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
                                            {0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3},
                                            {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3},
                                            {3, 1, 0, 2, 0, 3, 1, 2, 1, 2, 0, 3}};
    for (int n = 0; n < PLACES; n++) {
        size_t arena[2][RANKS];
        for (int k = 0; k < 2; k++) {
            int m = k ? 60 : 20;
            tr_stage_table t;
            tr_schedule *like = NULL, *s = NULL;
            tr_simulation *sim;
            test_table_chain(12, 4096, 8192, 2048, &t);
            assert_int_equal(tr_schedule_create("any", RANKS, 12, 4, rank_of[n], &like), TR_OK);
            assert_int_equal(tr_schedule_forward_of(like, NULL, m, &s), TR_OK);
            tr_program_set *set = lowered(s, &t);
            sim = simulated(set, &t, 0);
            assert_true(sim->makespan <= 3 * m + 2 * 12);
            for (int r = 0; r < RANKS; r++) arena[k][r] = set->program[r].arena_bytes;
            tr_simulation_destroy(sim);
            tr_program_set_destroy(set);
            tr_schedule_destroy(s);
            tr_schedule_destroy(like);
            tr_stage_table_free(&t);
        }
        for (int r = 0; r < RANKS; r++) assert_int_equal(arena[0][r], arena[1][r]);
    }
}

/* Where the last rank is slow, the ranks before it do not run ahead of it: what they hold does not
 * grow with the micro-batches. The slow one is never idle. */
static void test_forward_only_keeps_pace(void **state) {
    (void)state;
    enum { RANKS = 4, SLOW = 5 };
    size_t arena[2][RANKS];
    for (int k = 0; k < 2; k++) {
        const int m = k ? 60 : 20;
        tr_stage_table t;
        tr_schedule *like = NULL, *s = NULL;
        test_table_chain(RANKS, 4096, 8192, 2048, &t);
        t.cost[RANKS - 1].f = SLOW;
        assert_int_equal(generate_order("1f1b", RANKS, RANKS, m, &like), TR_OK);
        assert_int_equal(tr_schedule_forward_of(like, NULL, m, &s), TR_OK);
        tr_program_set *set = lowered(s, &t);
        tr_simulation *sim = simulated(set, &t, 0);
        assert_true(sim->makespan <= SLOW * m + RANKS - 1);
        for (int r = 0; r < RANKS; r++) arena[k][r] = set->program[r].arena_bytes;
        tr_simulation_destroy(sim);
        tr_program_set_destroy(set);
        tr_schedule_destroy(s);
        tr_schedule_destroy(like);
        tr_stage_table_free(&t);
    }
    for (int r = 0; r < RANKS; r++) assert_int_equal(arena[0][r], arena[1][r]);
}

static int gathers_in(const tr_program *p) {
    int count = 0;
    for (int k = 0; k < p->count; k++) count += p->instr[k].action.type == TR_ACTION_GATHER_START;
    return count;
}

/* Breadth-first: the gradients of two stages are alive at one time; without several micro-batches
 * too. Depth-first: those of all stages. The values of two stages are always alive; breadth-first
 * those of all but the last two are gathered twice, depth-first with almost every change of
 * stage. */
static void test_buckets_follow_the_order(void **state) {
    (void)state;
    enum { STAGES = 6, BYTES = 4096 };
    static const struct {
        const char *name;
        int ranks, micro_batches, peak, gathers;
    } orders[] = {{"bfs", 1, 1, 2, 10},
                  {"bfs", 1, 5, 2, 10},
                  {"bfs", 2, 4, 2, 4},
                  {"interleaved", 2, 4, 3, 8},
                  {"interleaved", 1, 4, 6, 36}};
    for (size_t n = 0; n < sizeof orders / sizeof *orders; n++) {
        tr_stage_table t;
        tr_schedule *s = NULL;
        test_table_chain(STAGES, 256, 256, 256, &t);
        t.bucket = calloc(STAGES, sizeof *t.bucket);
        assert_non_null(t.bucket);
        for (int k = 0; k < STAGES; k++) {
            t.bucket[k] = (tr_bucket){.bytes = 1, .w = 1, .b = 1, .arena = BYTES, .values = BYTES};
            t.cost[k].buckets = 1;
            t.cost[k].bucket = &t.bucket[k];
        }
        assert_int_equal(
            generate_order(orders[n].name, orders[n].ranks, STAGES, orders[n].micro_batches, &s),
            TR_OK);
        tr_program_set *set = lowered(s, &t);
        (void)expect_sound(s, &t);
        for (int r = 0; r < set->ranks; r++) {
            assert_int_equal(set->program[r].bucket_bytes, STAGES / set->ranks * BYTES);
            assert_int_equal(set->program[r].bucket_peak, orders[n].peak * BYTES);
            assert_int_equal(set->program[r].value_bytes, STAGES / set->ranks * BYTES);
            assert_int_equal(set->program[r].value_peak, 2 * BYTES);
            assert_int_equal(gathers_in(&set->program[r]), orders[n].gathers);
        }
        tr_program_set_destroy(set);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

static void test_bad_tables(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    tr_program_set *set = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 2, 2, 4, &s), TR_OK);
    t.edge[0].bytes = 0;
    assert_int_equal(tr_lower(s, &t, &set), TR_ERR_INTERNAL);
    t.edge[0] = test_edge(0, 1, 256, TR_LIFE_IW);
    assert_int_equal(tr_lower(s, &t, &set), TR_ERR_INTERNAL);
    assert_null(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_v_program),
        cmocka_unit_test(test_buckets_follow_the_order),
        cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_forward_only_holds_little),
        cmocka_unit_test(test_forward_only_keeps_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
