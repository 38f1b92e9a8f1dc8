/* Tests lowered programs: transfers agree on both ends, memory never overlaps, and simulated times
 * and peaks agree with the formulas. */
#include "pipeline/program/simulate.h"
#include "support/generate_order.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static tr_program_set *lower(const tr_schedule *s, const tr_stage_table *t) {
    tr_program_set *set = NULL;
    if (tr_lower(s, t, &set) != TR_OK) fail_msg("%s", tr_error_message());
    return set;
}

static tr_simulation *simulate(const tr_program_set *set, const tr_stage_table *t, double latency) {
    tr_simulation *simulation = NULL;
    if (tr_simulate(set, t->cost, &(tr_simulated_links){.near.latency = latency}, &simulation) !=
        TR_OK)
        fail_msg("%s", tr_error_message());
    return simulation;
}

static void expect_no_overlap(const tr_program *p) {
    for (int a = 0; a < p->items; a++) {
        const tr_arena_item *x = &p->item[a];
        assert_true(x->offset % TR_ALIGN == 0 && x->bytes % TR_ALIGN == 0);
        assert_true(x->offset + x->bytes <= p->scratch_offset);
        for (int b = a + 1; b < p->items; b++) {
            const tr_arena_item *y = &p->item[b];
            bool in_time = x->start <= y->end && y->start <= x->end;
            bool in_place = x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
            assert_false(in_time && in_place);
        }
    }
    assert_true(p->live_peak_bytes <= p->arena_bytes);
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
        assert_true(p->item[k].offset == w->offset && p->item[k].bytes == w->bytes);
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

/* What a program offloads of a micro-batch: the places of its instructions. */
typedef struct offload {
    int f, out, out_wait, in, in_wait, gradient, last;
} offload;

static offload offload_of(const tr_program *p, int stage, int micro_batch) {
    offload o = {-1, -1, -1, -1, -1, -1, -1};
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        const bool gradient = a.type == TR_ACTION_I || a.type == TR_ACTION_B;
        if (a.stage != stage || a.micro_batch != micro_batch) continue;
        if (a.type == TR_ACTION_F) o.f = k;
        if (gradient) o.gradient = k;
        if (gradient || a.type == TR_ACTION_W) o.last = k;
        int *place = a.type == TR_ACTION_OFFLOAD        ? &o.out
                     : a.type == TR_ACTION_OFFLOAD_WAIT ? &o.out_wait
                     : a.type == TR_ACTION_FETCH        ? &o.in
                     : a.type == TR_ACTION_FETCH_WAIT   ? &o.in_wait
                                                        : NULL;
        if (!place) continue;
        assert_int_equal(*place, -1);
        *place = k;
    }
    return o;
}

static int actions_between(const tr_program *p, int from, int to) {
    int n = 0;
    for (int k = from + 1; k < to; k++) n += tr_action_computes(p->instr[k].action);
    return n;
}

/* Fails unless the item's live range is that of a block before its OFFLOAD_WAIT, or after its
 * FETCH.
 */
static void expect_range(const tr_program *p, int item, const offload *o) {
    const tr_item_kind kind = p->key[item].kind;
    const bool fetched = kind == TR_ITEM_FETCHED_FI || kind == TR_ITEM_FETCHED_FW;
    const bool to_gradient = kind == TR_ITEM_FI || kind == TR_ITEM_FETCHED_FI;
    assert_true(p->item[item].start == (fetched ? o->in : o->f));
    assert_true(p->item[item].end == (!fetched && o->out >= 0 ? o->out_wait
                                      : to_gradient           ? o->gradient
                                                              : o->last));
}

/* Fails unless the copies of an OFFLOAD are those of its FETCH, of all the stage's bytes, within
 * the host's memory. */
static void expect_copies(const tr_program *p, const tr_stage_cost *cost, const offload *o) {
    const tr_instr *out = &p->instr[o->out], *in = &p->instr[o->in];
    size_t bytes = 0;
    assert_int_equal(out->copies, in->copies);
    for (int k = 0; k < out->copies; k++) {
        const tr_program_copy *a = &p->copy[out->first_copy + k], *b = &p->copy[in->first_copy + k];
        assert_true(a->host == b->host && a->bytes == b->bytes);
        assert_true(a->host + a->bytes <= p->host_bytes && a->host % TR_ALIGN == 0);
        bytes += a->bytes;
    }
    assert_true(bytes == cost->bytes[TR_LIFE_FI] + cost->bytes[TR_LIFE_FW]);
    assert_true(out->bytes == bytes && in->bytes == bytes);
}

/* Fails if what two micro-batches have in the host's memory at one time overlaps. */
static void expect_apart(const tr_program *p, const offload *x, const offload *y) {
    if (x->out > y->in_wait || y->out > x->in_wait) return;
    for (int i = 0; i < p->instr[x->out].copies; i++)
        for (int j = 0; j < p->instr[y->out].copies; j++) {
            const tr_program_copy *a = &p->copy[p->instr[x->out].first_copy + i];
            const tr_program_copy *b = &p->copy[p->instr[y->out].first_copy + j];
            assert_true(a->host + a->bytes <= b->host || b->host + b->bytes <= a->host);
        }
}

static int offloads; /* of all programs */

/* Fails unless exactly the micro-batches of stages that offload go out that have a place to free
 * for an action, in order, hidden behind an action each way. */
static void expect_offloads(const tr_stage_table *t, const tr_program *p) {
    offload all[64];
    int n = 0;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (a.type != TR_ACTION_F) continue;
        const offload o = offload_of(p, a.stage, a.micro_batch);
        for (int i = 0; i < p->items && !p->forward_only; i++) {
            const tr_item_kind kind = p->key[i].kind;
            if (p->key[i].owner == a.stage && p->key[i].micro_batch == a.micro_batch &&
                (kind <= TR_ITEM_FW || kind >= TR_ITEM_FETCHED_FI))
                expect_range(p, i, &o);
        }
        if (p->forward_only || !t->cost[a.stage].offload) assert_int_equal(o.out, -1);
        if (o.out < 0) {
            assert_true(o.in < 0 && o.in_wait < 0 && o.out_wait < 0);
            /* Pairs run as one, so that five actions in between are always enough. */
            if (!p->forward_only && t->cost[a.stage].offload)
                assert_true(actions_between(p, o.f, o.gradient) < 6);
            continue;
        }
        assert_true(o.f < o.out && o.out < o.out_wait && o.out_wait < o.in && o.in < o.in_wait &&
                    o.in_wait < o.gradient);
        assert_true(actions_between(p, o.out, o.out_wait) > 0);
        assert_true(actions_between(p, o.out_wait, o.in) > 0);
        assert_true(actions_between(p, o.in, o.in_wait) > 0);
        expect_copies(p, &t->cost[a.stage], &o);
        for (int i = 0; i < n; i++) expect_apart(p, &all[i], &o);
        assert_true(n < 64);
        all[n++] = o;
    }
    offloads += n;
}

/* Returns the item of a bucket's values that is alive at an instruction, which has one at most. */
static const tr_arena_item *values_at(const tr_program *p, int stage, int bucket, int at) {
    const tr_arena_item *found = NULL;
    for (int i = 0; i < p->items; i++) {
        const tr_item_key *key = &p->key[i];
        if (key->kind != TR_ITEM_VALUES || key->owner != stage || key->micro_batch != bucket)
            continue;
        if (at < p->item[i].start || at > p->item[i].end) continue;
        assert_null(found);
        found = &p->item[i];
    }
    return found;
}

/* Fails unless each action finds all values of its stage, gathered and waited for, at a place that
 * begins with its gather and ends with an action of the stage, and the values of two stages at most
 * are alive at one time unless the rank runs two stages in turns, as a pair. */
static void expect_gathers(const tr_stage_table *t, const tr_program *p) {
    bool pairs = false;
    for (int k = 0; k < p->count; k++) pairs |= p->instr[k].action.overlap;
    for (int k = 0; k < p->count; k++) {
        const tr_instr *instr = &p->instr[k];
        const tr_action a = instr->action;
        int alive = 0;
        if (tr_action_gathers(a)) {
            const tr_arena_item *item = values_at(p, a.stage, a.micro_batch, k);
            assert_non_null(item);
            assert_true(item->offset == instr->offset && item->bytes >= instr->bytes);
            assert_int_equal(instr->bytes, t->cost[a.stage].bucket[a.micro_batch].values);
            assert_true((item->start == k) == (a.type == TR_ACTION_GATHER_START));
            assert_true(tr_action_computes(p->instr[item->end].action));
            assert_int_equal(p->instr[item->end].action.stage, a.stage);
        }
        for (int b = 0; tr_action_computes(a) && b < t->cost[a.stage].buckets; b++) {
            const tr_arena_item *item = values_at(p, a.stage, b, k);
            int waits = 0;
            assert_true((item != NULL) == (t->cost[a.stage].bucket[b].values > 0));
            for (int j = item ? item->start : k; j < k; j++)
                waits += p->instr[j].action.type == TR_ACTION_GATHER_WAIT &&
                         p->instr[j].action.stage == a.stage && p->instr[j].action.micro_batch == b;
            assert_int_equal(waits, item != NULL);
        }
        for (int s = 0; s < t->stages; s++) {
            bool has = false;
            for (int b = 0; b < t->cost[s].buckets; b++) has |= values_at(p, s, b, k) != NULL;
            alive += has;
        }
        assert_true(pairs || alive <= 2);
    }
    assert_true(p->value_peak <= p->value_bytes);
}

static void expect_sound(const tr_schedule *s, const tr_stage_table *t) {
    tr_program_set *set = lower(s, t);
    for (int r = 0; r < set->ranks; r++) expect_offloads(t, &set->program[r]);
    for (int r = 0; r < set->ranks; r++) expect_no_overlap(&set->program[r]);
    expect_matched(set);
    expect_reductions(s, t, set);
    expect_buckets(s, t, set);
    for (int r = 0; r < set->ranks; r++) expect_gathers(t, &set->program[r]);
    /* Whether a program ends does not depend on time: try other costs and latencies. */
    static const double latencies[] = {0, 1e-3, 100};
    for (int k = 0; k < 3; k++) tr_simulation_destroy(simulate(set, t, latencies[k]));
    tr_program_set_destroy(set);
}

static void test_random_programs(void **state) {
    (void)state;
    test_random r = {tr_test_seed(91731)};
    for (int trial = 0; trial < 400; trial++) {
        int ranks = test_between(&r, 1, 4), stages = ranks * test_between(&r, 1, 3);
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 4), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 6)), *f = NULL;
        assert_int_equal(tr_schedule_forward_of(s, NULL, 5, &f), TR_OK);
        expect_sound(s, &t);
        expect_sound(f, &t);
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
    expect_sound(s, &t);
    /* The turn of the V stays on rank 1: stage 1 writes where stage 2 reads. */
    tr_program_set *set = lower(s, &t);
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
            tr_program_set *set = lower(s, &t);
            sim = simulate(set, &t, 0);
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

/* GPipe and 1F1B: (m + p - 1)(F + I + W) at equal costs; m and min(m, p - i) micro-batches. */
static void test_formulas(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 12; m++)
            for (int n = 0; n < 2; n++) {
                tr_stage_table t;
                tr_schedule *s = NULL;
                test_table_chain(p, 4096, 8192, 2048, &t);
                assert_int_equal(generate_order(n ? "1f1b" : "gpipe", p, p, m, &s), TR_OK);
                tr_program_set *set = lower(s, &t);
                tr_simulation *sim = simulate(set, &t, 0);
                assert_true(sim->makespan == 3.0 * (m + p - 1));
                for (int i = 0; i < p; i++) {
                    assert_true(sim->time[i].busy == 3.0 * m);
                    int want = n ? (m < p - i ? m : p - i) : m;
                    assert_int_equal(sim->in_flight[i], want);
                    /* One rank sends nothing: its memory is the blocks of micro-batches in flight,
                     * and that of B. */
                    if (p == 1)
                        assert_int_equal(set->program[i].live_peak_bytes,
                                         (size_t)want * (4096 + 8192) + 1024 + 1024);
                }
                tr_simulation_destroy(sim);
                tr_program_set_destroy(set);
                tr_schedule_destroy(s);
                tr_stage_table_free(&t);
            }
}

/* GPipe with two ranks and messages of F / 2: a step takes two delays longer, not m. */
static void test_latency_is_hidden(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 2, 2, 8, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    tr_simulation *sim = simulate(set, &t, 0.5);
    assert_true(sim->makespan == 3.0 * 9 + 2 * 0.5);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A channel has two landing buffers: while a slow rank computes, two messages have arrived, and
 * each further one arrives when the one two before it has been taken. */
static void test_messages_wait_for_landing_buffers(void **state) {
    (void)state;
    enum { MESSAGES = 6, SLOW = 10 };
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    t.cost[1].f = SLOW;
    assert_int_equal(generate_order("gpipe", 2, 2, MESSAGES, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    tr_simulation *sim = simulate(set, &t, 0);
    double taken[MESSAGES], arrived[MESSAGES];
    int sends = 0, receives = 0;
    for (int k = 0; k < set->program[0].count; k++)
        if (set->program[0].instr[k].action.type == TR_ACTION_SEND)
            arrived[sends++] = sim->instr[0][k].complete;
    for (int k = 0; k < set->program[1].count; k++)
        if (set->program[1].instr[k].action.type == TR_ACTION_RECV)
            taken[receives++] = sim->instr[1][k].end;
    assert_int_equal(sends, MESSAGES);
    assert_int_equal(receives, MESSAGES);
    for (int k = 0; k < MESSAGES; k++) {
        assert_true(taken[k] == 1 + SLOW * k);
        assert_true(arrived[k] == (k < 3 ? k + 1 : taken[k - 2]));
    }
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* One stage and micro-batch: F takes 1 and B 2, and B completes the buckets after 1/4, 1/2 and all
 * of its time. */
static void test_reductions_have_a_link(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    const tr_simulated_links links = {.sum = {.latency = 0.1, .per_byte = 0.01}};
    const tr_bucket bucket[] = {{.bytes = 50, .w = 0, .b = 0.25},
                                {.bytes = 0, .w = 0, .b = 0.25},
                                {.bytes = 100, .w = 0, .b = 0.5},
                                {.bytes = 50, .w = 1, .b = 1}};
    const double begins[] = {1.5, 2.1, 3.2}, ends[] = {2.1, 3.2, 3.8};
    test_table_chain(1, 256, 256, 256, &t);
    t.cost[0].buckets = 4;
    t.cost[0].bucket = t.bucket = calloc(4, sizeof *t.bucket);
    assert_non_null(t.bucket);
    memcpy(t.bucket, bucket, sizeof bucket);
    assert_int_equal(generate_order("gpipe", 1, 1, 1, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    tr_simulation *sim = NULL;
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    int n = 0;
    for (int k = 0; k < set->program[0].count; k++) {
        const tr_instr_time *time = &sim->instr[0][k];
        if (set->program[0].instr[k].action.type != TR_ACTION_REDUCE_START) continue;
        assert_true(fabs(time->begin - begins[n]) < 1e-9);
        assert_true(fabs(time->complete - ends[n++]) < 1e-9);
    }
    assert_int_equal(n, 3);
    assert_true(fabs(sim->makespan - 3.8) < 1e-9 && fabs(sim->exposed[0] - 0.8) < 1e-9);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* One stage and four micro-batches: each F takes 1, each B 2, and a copy as much as an F, behind
 * which it hides, or twice as much: then every F but the first waits for the copy behind it. */
static void test_copies_have_links(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(1, 256, 256, 256, &t);
    t.cost[0].offload = true;
    assert_int_equal(generate_order("gpipe", 1, 1, 4, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    for (int slow = 0; slow < 2; slow++) {
        static const double begins[2][2][4] = {{{1, 2, 3, 4}, {3, 4, 6, 8}},
                                               {{1, 3, 5, 7}, {5, 7, 9, 11}}};
        const tr_simulated_links links = {.copy.per_byte = (1 + slow) / 512.0};
        tr_simulation *sim = NULL;
        int n = 0;
        assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
        for (int k = 0; k < set->program[0].count; k++) {
            const tr_action a = set->program[0].instr[k].action;
            const tr_instr_time *time = &sim->instr[0][k];
            if (a.type != TR_ACTION_OFFLOAD && a.type != TR_ACTION_FETCH) continue;
            assert_true(time->begin == begins[slow][a.type == TR_ACTION_FETCH][a.micro_batch]);
            assert_true(time->complete == time->begin + 1 + slow);
            n++;
        }
        assert_int_equal(n, 8);
        assert_true(sim->copying[0] == 3 * slow && sim->makespan == 12 + 3 * slow);
        tr_simulation_destroy(sim);
    }
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* One micro-batch through three stages, of which two are on the first host: F, I and W take 1 and
 * messages 256 bytes. */
static void test_messages_have_links(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    tr_simulation *sim = NULL;
    const tr_simulated_links links = {.near = {.latency = 0.1, .per_byte = 0.001},
                                      .far = {.latency = 0.5, .per_byte = 0.01},
                                      .line = 1,
                                      .host = 2};
    const double near = 0.1 + 0.001 * 256, far = 0.5 + 0.01 * 256;
    test_table_chain(3, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 3, 1, 1, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    assert_true(fabs(sim->makespan - (9 + 2 * near + 2 * far)) < 1e-9);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

/* A wait for a message that is sent only after the wait is found and named. */
static void test_waits_can_deadlock(void **state) {
    (void)state;
    tr_stage_table t;
    tr_schedule *s = NULL;
    test_table_chain(2, 256, 256, 256, &t);
    assert_int_equal(generate_order("gpipe", 2, 2, 4, &s), TR_OK);
    tr_program_set *set = lower(s, &t);
    tr_program *p = &set->program[0];
    int wait = p->count - 1, third = 0;
    while (!(p->instr[wait].action.type == TR_ACTION_WAIT_SENT && p->instr[wait].message == 3))
        wait--;
    while (!(p->instr[third].action.type == TR_ACTION_SEND && p->instr[third].message == 2))
        third++;
    tr_instr kept = p->instr[wait];
    for (int k = wait; k > third; k--) p->instr[k] = p->instr[k - 1];
    p->instr[third] = kept;
    tr_simulation *sim = NULL;
    assert_int_equal(tr_simulate(set, t.cost, NULL, &sim), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "rank 0 at 0WAIT_SENT_F3 waits for rank 1"));
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

static int gathers_in(const tr_program *p) {
    int count = 0;
    for (int k = 0; k < p->count; k++) count += p->instr[k].action.type == TR_ACTION_GATHER_START;
    return count;
}

/* Breadth-first: the gradients of two stages are alive at one time; without several micro-batches
 * too. Depth-first: those of all stages. The values of two stages are always alive; breadth-first
 * those of all but the last two are gathered twice, depth-first with almost every change of stage.
 */
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
        tr_program_set *set = lower(s, &t);
        expect_sound(s, &t);
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
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_latency_is_hidden),
        cmocka_unit_test(test_messages_wait_for_landing_buffers),
        cmocka_unit_test(test_reductions_have_a_link),
        cmocka_unit_test(test_copies_have_links),
        cmocka_unit_test(test_messages_have_links),
        cmocka_unit_test(test_waits_can_deadlock),
        cmocka_unit_test(test_buckets_follow_the_order),
        cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_forward_only_holds_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
