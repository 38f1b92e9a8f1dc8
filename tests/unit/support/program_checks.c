#include "support/program_checks.h"

#include "base/memory.h"
#include "pipeline/action.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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
 * FETCH. */
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

/* Fails if instructions of offloads delay the sends or sums that start with an action, or come
 * between two actions that form a pair. */
static void expect_aside(const tr_program *p) {
    for (int k = 0; k < p->count; k++) {
        int next = k;
        while (tr_action_offloads(p->instr[next].action)) next++;
        if (next == k) continue;
        assert_true(p->instr[next].action.type != TR_ACTION_SEND &&
                    p->instr[next].action.type != TR_ACTION_REDUCE_START);
        assert_true(k > 0 && !p->instr[k - 1].action.overlap);
    }
}

int expect_offloads(const tr_stage_table *t, const tr_program *p) {
    offload all[64];
    int n = 0;
    expect_aside(p);
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
    return n;
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

/* Returns true when instruction k is an action of the stage, or forms a pair with one. */
static bool uses(const tr_program *p, int k, int stage) {
    const int to = p->instr[k].action.overlap ? 1 : -1;
    int other = k + to;
    if (!tr_action_computes(p->instr[k].action)) return false;
    if (p->instr[k].action.stage == stage) return true;
    while (other >= 0 && !tr_action_computes(p->instr[other].action)) other += to;
    return other >= 0 && (to > 0 || p->instr[other].action.overlap) &&
           p->instr[other].action.stage == stage;
}

/* Fails unless the rank runs only another stage between the uses of a stage's values before and
 * after the gather that starts at `start`. */
static void expect_missing(const tr_program *p, int start) {
    const int stage = p->instr[start].action.stage;
    int last = start, next = start, between = 0;
    for (; last >= 0 && !uses(p, last, stage); last--)
        between += tr_action_computes(p->instr[last].action);
    for (; !uses(p, next, stage); next++) between += tr_action_computes(p->instr[next].action);
    assert_true(last < 0 || between > 0);
}

void expect_gathers(const tr_stage_table *t, const tr_program *p) {
    bool pairs = false;
    for (int k = 0; k < p->count; k++) pairs |= p->instr[k].action.overlap;
    for (int k = 0; k < p->count; k++) {
        const tr_instr *instr = &p->instr[k];
        const tr_action a = instr->action;
        int alive = 0;
        if (tr_action_gathers(a) && t->cost[a.stage].bucket[a.micro_batch].values) {
            const tr_arena_item *item = values_at(p, a.stage, a.micro_batch, k);
            assert_non_null(item);
            assert_true(p->offset[item->first] == instr->offset && item->bytes >= instr->bytes);
            assert_int_equal(instr->bytes, t->cost[a.stage].bucket[a.micro_batch].values);
            assert_true((item->start == k) == (a.type == TR_ACTION_GATHER_START));
            if (item->start == k) expect_missing(p, k);
            assert_true(tr_action_computes(p->instr[item->end].action));
            assert_int_equal(p->instr[item->end].action.stage, a.stage);
            int use = k;
            while (!tr_action_computes(p->instr[use].action) ||
                   p->instr[use].action.stage != a.stage)
                use++;
            const tr_bucket *bucket = &t->cost[a.stage].bucket[a.micro_batch];
            const tr_action_type type = p->instr[use].action.type;
            const bool first = a.micro_batch == 0;
            assert_true(instr->ready == (type == TR_ACTION_F   ? bucket->f
                                         : first               ? 0
                                         : type == TR_ACTION_W ? bucket[-1].w
                                                               : bucket[-1].b));
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

/* Fails unless the gather that starts at `start` is waited for once, right before the cell with the
 * first action of its stage. */
static void expect_wait(const tr_program *p, int start) {
    const tr_action gather = p->instr[start].action;
    int wait = -1, first = start;
    while (!tr_action_computes(p->instr[first].action) ||
           p->instr[first].action.stage != gather.stage)
        first++;
    for (int k = 0; k < p->count; k++) {
        const tr_action a = p->instr[k].action;
        if (a.type != TR_ACTION_GATHER_WAIT || a.stage != gather.stage ||
            a.micro_batch != gather.micro_batch)
            continue;
        assert_int_equal(wait, -1);
        wait = k;
    }
    assert_in_range(wait, start + 1, first - 1);
    for (int k = wait; k < first; k++)
        assert_true(!tr_action_computes(p->instr[k].action) || p->instr[k].action.overlap);
}

void expect_updated(const tr_schedule *s, const tr_stage_table *t, const tr_program *p) {
    int starts = 0, expected = 0;
    for (int k = 0; k < p->count; k++) {
        const tr_instr *instr = &p->instr[k];
        const tr_action a = instr->action;
        if (!tr_action_gathers(a) || t->cost[a.stage].bucket[a.micro_batch].values) continue;
        assert_true(instr->offset == TR_NO_PLACE);
        assert_int_equal(instr->bytes, t->cost[a.stage].bucket[a.micro_batch].updated);
        assert_true(instr->ready == t->cost[a.stage].bucket[a.micro_batch].f);
        if (a.type == TR_ACTION_GATHER_WAIT) continue;
        assert_int_equal(k, starts++);
        expect_wait(p, k);
    }
    for (int k = 0; k < t->stages && !s->forward_only; k++)
        for (int b = 0; b < t->cost[k].buckets && s->rank_of[k] == p->rank; b++)
            expected += t->cost[k].bucket[b].updated > 0;
    assert_int_equal(starts, expected);
}
