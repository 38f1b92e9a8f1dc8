/* Changes every generator's orders, and lowered programs, at random: each either runs to its end
 * with rendezvous for every message and no buffers, or is refused with a reason. The test has its
 * own executor, independent of check, lowering and proof, and all verdicts must agree.
 * TRIREME_LONG=1: more of it. */
#include "pipeline/orders/csv.h"
#include "pipeline/orders/transfers.h"
#include "pipeline/program/prove.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4, CELLS = 4096, CHANNEL = 2048 };

/* --- the executor ----------------------------------------------------------------------------- */

typedef enum op {
    OP_F,
    OP_I,
    OP_W,
    OP_B,
    OP_SEND,
    OP_RECV,
    OP_SENT,
    OP_REDUCE,
    OP_REDUCED,
    OP_GATHER,
    OP_GATHERED,
    OP_OUT,
    OP_OUT_WAIT,
    OP_BACK,
    OP_BACK_WAIT,
    OP_END
} op;

/* The next step of a rank. For transfers `id` is the message's number on both ranks. */
typedef struct step {
    op op;
    int stage, micro_batch;
    int peer, id;
    int bucket;
} step;

typedef struct world {
    int ranks, stages, micro_batches;
    bool forward_only;
    const int *rank_of;
    const tr_stage_table *t;
    int count[RANKS], next[RANKS];
    step *step[RANKS];
    /* Per (stage, micro-batch): bit 1 F, 2 I, 4 W. */
    unsigned char *done;
    /* Per message id: 1 offered by its sender, 2 also waited for; taken by its receiver. */
    unsigned char *offered, *taken;
    int *queue[RANKS][RANKS], head[RANKS][RANKS], tail[RANKS][RANKS];
    unsigned char *reduced;  /* [stages * TEST_BUCKETS]: 1 started, 2 also waited for */
    unsigned char *gathered; /* likewise; NULL: nothing gathers */
    /* Per (stage, micro-batch): how many of OFFLOAD, its wait, FETCH and its wait have run. */
    unsigned char *away;
} world;

static int message_id(const world *w, int edge, int micro_batch, bool gradient) {
    return (edge * 2 + gradient) * w->micro_batches + micro_batch;
}

static unsigned done_bits(const world *w, int stage, int k) {
    return w->done[stage * w->micro_batches + k];
}

/* Returns true when everything that the action reads is on its rank. */
static bool has_inputs(const world *w, const step *s) {
    unsigned done = done_bits(w, s->stage, s->micro_batch);
    if (s->op == OP_W) return done & 2u;
    bool gradient = s->op != OP_F;
    if (gradient && !(done & 1u)) return false;
    for (int e = 0; e < w->t->edges; e++) {
        const tr_edge *edge = &w->t->edge[e];
        if ((gradient ? edge->from : edge->to) != s->stage) continue;
        int other = gradient ? edge->to : edge->from;
        bool here = w->rank_of[other] == w->rank_of[s->stage]
                        ? (done_bits(w, other, s->micro_batch) & (gradient ? 2u : 1u)) != 0
                        : w->taken[message_id(w, e, s->micro_batch, gradient)] != 0;
        if (!here) return false;
    }
    return true;
}

static bool gathers_bucket(const world *w, int stage, int bucket) {
    const tr_bucket *b = &w->t->cost[stage].bucket[bucket];
    return b->values > 0 || (b->updated > 0 && !w->forward_only);
}

typedef enum outcome { DONE, WAITS, WRONG } outcome;

static outcome act(world *w, const step *s) {
    static const unsigned bits[] = {[OP_F] = 1, [OP_I] = 2, [OP_W] = 4, [OP_B] = 6};
    unsigned char *done = &w->done[s->stage * w->micro_batches + s->micro_batch];
    if ((*done & bits[s->op]) || !has_inputs(w, s)) return WRONG;
    if (w->away[done - w->done] % 4) return WRONG;
    for (int b = 0; w->gathered && b < w->t->cost[s->stage].buckets; b++)
        if (gathers_bucket(w, s->stage, b) && w->gathered[s->stage * TEST_BUCKETS + b] != 2)
            return WRONG;
    *done = (unsigned char)(*done | bits[s->op]);
    return DONE;
}

/* Only what F has kept, and no gradient has used, goes out. */
static outcome copy(world *w, const step *s) {
    const int at = s->stage * w->micro_batches + s->micro_batch;
    if (w->done[at] != 1 || w->away[at] != (unsigned char)(s->op - OP_OUT)) return WRONG;
    w->away[at]++;
    return DONE;
}

static outcome transfer(world *w, int rank, const step *s) {
    if (s->op == OP_SENT) {
        if (w->offered[s->id] != 1) return WRONG;
        if (!w->taken[s->id]) return WAITS;
        w->offered[s->id] = 2;
        return DONE;
    }
    int from = s->op == OP_SEND ? rank : s->peer, to = s->op == OP_SEND ? s->peer : rank;
    if (from == to) return WRONG;
    if (s->op == OP_SEND) {
        if (w->offered[s->id] ||
            !(done_bits(w, s->stage, s->micro_batch) & (s->id / w->micro_batches % 2 ? 2u : 1u)))
            return WRONG;
        w->offered[s->id] = 1;
        w->queue[from][to][w->tail[from][to]++] = s->id;
        return DONE;
    }
    if (w->head[from][to] == w->tail[from][to]) return WAITS;
    if (w->queue[from][to][w->head[from][to]++] != s->id) return WRONG;
    w->taken[s->id] = 1;
    return DONE;
}

/* Values may be gathered again, but not while a gather of theirs is in flight. */
static outcome gather(world *w, const step *s) {
    unsigned char *state = &w->gathered[s->stage * TEST_BUCKETS + s->bucket];
    if (!gathers_bucket(w, s->stage, s->bucket)) return WRONG;
    if ((s->op == OP_GATHER) == (*state == 1)) return WRONG;
    *state = s->op == OP_GATHER ? 1 : 2;
    return DONE;
}

static outcome take_step(world *w, int rank) {
    const step *s = &w->step[rank][w->next[rank]];
    switch (s->op) {
    case OP_SEND:
    case OP_RECV:
    case OP_SENT: return transfer(w, rank, s);
    case OP_REDUCE:
        for (int k = 0; k < w->micro_batches; k++)
            if (!(done_bits(w, s->stage, k) & 4u)) return WRONG;
        return w->reduced[s->stage * TEST_BUCKETS + s->bucket]++ ? WRONG : DONE;
    case OP_REDUCED: return ++w->reduced[s->stage * TEST_BUCKETS + s->bucket] == 2 ? DONE : WRONG;
    case OP_GATHER:
    case OP_GATHERED: return gather(w, s);
    case OP_OUT:
    case OP_OUT_WAIT:
    case OP_BACK:
    case OP_BACK_WAIT: return copy(w, s);
    case OP_END: return w->next[rank] == w->count[rank] - 1 ? DONE : WRONG;
    default: return act(w, s);
    }
}

/* Returns true when every rank reaches its end with every action done and every message taken. */
static bool run_world(world *w) {
    for (bool progress = true; progress;) {
        progress = false;
        for (int r = 0; r < w->ranks; r++)
            while (w->next[r] < w->count[r]) {
                outcome o = take_step(w, r);
                if (o == WRONG) return false;
                if (o == WAITS) break;
                w->next[r]++;
                progress = true;
            }
    }
    for (int r = 0; r < w->ranks; r++) {
        if (w->next[r] < w->count[r]) return false;
        for (int q = 0; q < w->ranks; q++)
            if (w->head[r][q] != w->tail[r][q]) return false;
    }
    for (int k = 0; k < w->stages * w->micro_batches; k++)
        if (w->done[k] != (w->forward_only ? 1 : 7)) return false;
    return true;
}

static void *zeroed(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    assert_non_null(p);
    return p;
}

static world *open_world(const tr_schedule *s, const tr_stage_table *t) {
    world *w = zeroed(1, sizeof *w);
    w->ranks = s->ranks;
    w->stages = s->stages;
    w->micro_batches = s->micro_batches;
    w->forward_only = s->forward_only;
    w->rank_of = s->rank_of;
    w->t = t;
    size_t messages = 2 * (size_t)t->edges * (size_t)s->micro_batches;
    w->done = zeroed((size_t)s->stages * (size_t)s->micro_batches, 1);
    w->away = zeroed((size_t)s->stages * (size_t)s->micro_batches, 1);
    w->offered = zeroed(messages, 1);
    w->taken = zeroed(messages, 1);
    w->reduced = zeroed((size_t)s->stages * TEST_BUCKETS, 1);
    for (int r = 0; r < s->ranks; r++) {
        w->step[r] = zeroed(CELLS, sizeof(step));
        for (int q = 0; q < s->ranks; q++) w->queue[r][q] = zeroed(CHANNEL, sizeof(int));
    }
    return w;
}

static void close_world(world *w) {
    for (int r = 0; r < w->ranks; r++) {
        free(w->step[r]);
        for (int q = 0; q < w->ranks; q++) free(w->queue[r][q]);
    }
    free(w->reduced);
    free(w->away);
    free(w->gathered);
    free(w->taken);
    free(w->offered);
    free(w->done);
    free(w);
}

static void add_step(world *w, int rank, step s) {
    assert_true(w->count[rank] < CELLS);
    w->step[rank][w->count[rank]++] = s;
}

static bool program_runs(const tr_schedule *s, const tr_stage_table *t, const tr_program_set *set) {
    world *w = open_world(s, t);
    w->gathered = zeroed((size_t)s->stages * TEST_BUCKETS, 1);
    for (int r = 0; r < set->ranks; r++)
        for (int k = 0; k < set->program[r].count; k++) {
            const tr_instr *i = &set->program[r].instr[k];
            tr_action a = i->action;
            static const op ops[TR_ACTION_TYPES] = {[TR_ACTION_F] = OP_F,
                                                    [TR_ACTION_I] = OP_I,
                                                    [TR_ACTION_W] = OP_W,
                                                    [TR_ACTION_B] = OP_B,
                                                    [TR_ACTION_RECV] = OP_RECV,
                                                    [TR_ACTION_SEND] = OP_SEND,
                                                    [TR_ACTION_WAIT_SENT] = OP_SENT,
                                                    [TR_ACTION_REDUCE_START] = OP_REDUCE,
                                                    [TR_ACTION_REDUCE_WAIT] = OP_REDUCED,
                                                    [TR_ACTION_GATHER_START] = OP_GATHER,
                                                    [TR_ACTION_GATHER_WAIT] = OP_GATHERED,
                                                    [TR_ACTION_OFFLOAD] = OP_OUT,
                                                    [TR_ACTION_OFFLOAD_WAIT] = OP_OUT_WAIT,
                                                    [TR_ACTION_FETCH] = OP_BACK,
                                                    [TR_ACTION_FETCH_WAIT] = OP_BACK_WAIT,
                                                    [TR_ACTION_FINISH] = OP_END};
            step one = {
                .op = ops[a.type], .stage = a.stage, .micro_batch = a.micro_batch, .peer = i->peer};
            if (tr_action_reduces(a) || tr_action_gathers(a)) one.bucket = a.micro_batch;
            if (tr_action_transfers(a)) one.id = message_id(w, i->edge, a.micro_batch, a.gradient);
            add_step(w, r, one);
        }
    bool ran = run_world(w);
    for (int stage = 0; ran && !s->forward_only && stage < s->stages; stage++)
        for (int b = 0; ran && b < TEST_BUCKETS; b++)
            ran = w->reduced[stage * TEST_BUCKETS + b] == (test_reduces(t, stage, b) ? 2 : 0);
    for (int k = 0; ran && k < s->stages * TEST_BUCKETS; k++) ran = w->gathered[k] != 1;
    for (int k = 0; ran && k < 2 * t->edges * s->micro_batches; k++) ran = w->offered[k] != 1;
    close_world(w);
    return ran;
}

/* --- the judge of orders ---------------------------------------------------------------------- */

static bool in_range(const tr_schedule *s, int rank, tr_action a) {
    return a.stage >= 0 && a.stage < s->stages && a.micro_batch >= 0 &&
           a.micro_batch < s->micro_batches && (unsigned)a.type < TR_COMPUTE_TYPES &&
           (a.type == TR_ACTION_F || !s->forward_only) && s->rank_of[a.stage] == rank;
}

static bool pairs_well(const tr_action *a, int left) {
    if (left < 2 || a[1].overlap) return false;
    if ((a[0].type == TR_ACTION_F) == (a[1].type == TR_ACTION_F)) return false;
    if (a[0].type == TR_ACTION_W || a[1].type == TR_ACTION_W) return false;
    return a[0].stage != a[1].stage || a[0].micro_batch != a[1].micro_batch;
}

/* Returns true when the order's actions can run if messages arrive at once. */
static bool order_runs(const tr_schedule *s, const tr_stage_table *t) {
    world *w = open_world(s, t);
    bool good = true, progress = true;
    for (int r = 0; good && r < s->ranks; r++)
        for (int k = 0; good && k < s->count[r]; k++) {
            const tr_action *a = &s->action[r][k];
            good = in_range(s, r, *a) && (!a->overlap || pairs_well(a, s->count[r] - k));
        }
    int next[RANKS] = {0};
    while (good && progress) {
        progress = false;
        for (int r = 0; good && r < s->ranks; r++)
            for (bool ready = true; good && ready && next[r] < s->count[r];) {
                const tr_action *a = &s->action[r][next[r]];
                int cells = a->overlap ? 2 : 1;
                step steps[2];
                for (int k = 0; k < cells; k++) {
                    steps[k] = (step){
                        .op = (op)a[k].type, .stage = a[k].stage, .micro_batch = a[k].micro_batch};
                    for (int e = 0; e < t->edges; e++) {
                        int mb = a[k].micro_batch;
                        if (done_bits(w, t->edge[e].from, mb) & 1u)
                            w->taken[message_id(w, e, mb, false)] = 1;
                        if (done_bits(w, t->edge[e].to, mb) & 2u)
                            w->taken[message_id(w, e, mb, true)] = 1;
                    }
                    ready = ready && has_inputs(w, &steps[k]);
                }
                for (int k = 0; ready && good && k < cells; k++) good = act(w, &steps[k]) == DONE;
                if (ready) next[r] += cells;
                progress = progress || ready;
            }
    }
    for (int r = 0; r < s->ranks; r++) good = good && next[r] == s->count[r];
    for (int k = 0; k < s->stages * s->micro_batches; k++)
        good = good && w->done[k] == (s->forward_only ? 1 : 7);
    close_world(w);
    return good;
}

/* --- mutations of orders ---------------------------------------------------------------------- */

static int some_rank(test_random *r, const tr_schedule *s) {
    int rank;
    do rank = test_between(r, 0, s->ranks - 1);
    while (!s->count[rank]);
    return rank;
}

static tr_action take_out(tr_schedule *s, int rank, int at) {
    tr_action *row = s->action[rank], a = row[at];
    memmove(&row[at], &row[at + 1], (size_t)(--s->count[rank] - at) * sizeof *row);
    return a;
}

static void put_in(tr_schedule *s, int rank, int at, tr_action a) {
    assert_int_equal(tr_schedule_add(s, rank, a), TR_OK);
    tr_action *row = s->action[rank];
    memmove(&row[at + 1], &row[at], (size_t)(s->count[rank] - 1 - at) * sizeof *row);
    row[at] = a;
}

static void mutate_order(test_random *r, tr_schedule *s) {
    int rank = some_rank(r, s), last = s->count[rank] - 1;
    int a = test_between(r, 0, last), b = test_between(r, 0, last);
    tr_action *row = s->action[rank];
    tr_action kept = row[a];
    switch (test_between(r, 0, 11)) {
    case 0: (void)take_out(s, rank, a); break;
    case 1: put_in(s, rank, b, kept); break;
    case 2: row[a].micro_batch = test_between(r, -1, s->micro_batches); break;
    case 3: row[a].stage = test_between(r, -1, s->stages); break;
    case 4: row[a].type = (tr_action_type)test_between(r, 0, TR_COMPUTE_TYPES - 1); break;
    case 5: row[a].overlap = !kept.overlap; break;
    case 6: {
        int other = test_between(r, 0, s->ranks - 1);
        kept = take_out(s, rank, a);
        put_in(s, other, test_between(r, 0, s->count[other]), kept);
        break;
    }
    case 7:
    case 8: /* neighbours */
        if (a == last) break;
        row[a] = row[a + 1];
        row[a + 1] = kept;
        break;
    case 9:
        row[a] = row[b];
        row[b] = kept;
        break;
    default: /* to a place nearby */
        kept = take_out(s, rank, a);
        b = a + test_between(r, -3, 3);
        put_in(s, rank, b < 0 ? 0 : b > s->count[rank] ? s->count[rank] : b, kept);
    }
}

static void test_orders(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(8101))};
    int ran = 0, refused = 0;
    for (int trial = 0; trial < tr_test_trials(10000); trial++) {
        tr_schedule *s = test_schedule_named(&r, RANKS);
        tr_stage_table t;
        if (test_between(&r, 0, 3)) test_table_chain(s->stages, 512, 512, 512, &t);
        else test_table_random(&r, s->stages, test_between(&r, 0, 2), &t);
        if (tr_schedule_check(s, &t, NULL) != TR_OK || !order_runs(s, &t))
            fail_msg("trial %d, %s: %s", trial, s->name, tr_error_message());
        for (int n = test_between(&r, 1, 3); n > 0; n--) {
            int left = 0;
            for (int k = 0; k < s->ranks; k++) left += s->count[k];
            if (left > 1) mutate_order(&r, s);
        }
        tr_error_clear();
        tr_status status = tr_schedule_check(s, &t, NULL);
        if ((status == TR_OK) != order_runs(s, &t))
            fail_msg("trial %d, %s: check says %d, %s", trial, s->name, (int)status,
                     tr_error_message());
        if (status == TR_OK) {
            tr_program_set *set = NULL;
            if (tr_lower(s, &t, &set) != TR_OK)
                fail_msg("trial %d, %s: %s", trial, s->name, tr_error_message());
            if (!program_runs(s, &t, set)) fail_msg("trial %d: program of %s", trial, s->name);
            tr_program_set_destroy(set);
            ran++;
        } else {
            assert_int_equal(status, TR_ERR_CONFIG);
            assert_true(strlen(tr_error_message()) > 20);
            refused++;
        }
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    print_message("%d ran, %d were refused\n", ran, refused);
    assert_true(ran > tr_test_trials(1000) && refused > tr_test_trials(1000));
}

/* --- mutations of lists with transfers -------------------------------------------------------- */

static void mutate_list(test_random *r, tr_schedule *s) {
    int row = test_between(r, 0, s->ranks - 1), last = s->count[row] - 1;
    if (last < 1) return;
    tr_action *action = s->action[row];
    int a = test_between(r, 0, last), b = test_between(r, 0, last);
    tr_action kept = action[a];
    switch (test_between(r, 0, 8)) {
    case 0: (void)take_out(s, row, a); break;
    case 1: assert_int_equal(tr_schedule_add(s, row, kept), TR_OK); break;
    case 2:
        action[a].type = (tr_action_type)test_between(r, 0, TR_ACTION_TYPES - 1);
        action[a].gradient = tr_action_transfers(action[a]) && test_between(r, 0, 1);
        break;
    case 3:
        if (kept.micro_batch >= 0) action[a].micro_batch = test_between(r, 0, 5);
        break;
    case 4:
    case 5:
        action[a] = action[b];
        action[b] = kept;
        break;
    default:
        if (a == last) break;
        action[a] = action[a + 1];
        action[a + 1] = kept;
    }
    if (a >= s->count[row]) return;
    action = s->action[row]; /* an inserted action may have moved the array */
    bool whole = !tr_action_computes(action[a]) && !tr_action_transfers(action[a]);
    if (whole) action[a].micro_batch = -1;
    else if (action[a].micro_batch < 0) action[a].micro_batch = 0;
}

/* Returns true when the list runs as it is. */
static bool list_runs(const tr_schedule *s, const tr_stage_table *t) {
    world *w = open_world(s, t);
    bool good = true;
    for (int row = 0; good && row < s->ranks; row++)
        for (int k = 0; good && k < s->count[row]; k++) {
            tr_action a = s->action[row][k];
            if (a.type == TR_ACTION_UNSHARD || a.type == TR_ACTION_RESHARD) continue;
            step one = {.stage = a.stage, .micro_batch = a.micro_batch};
            good = a.stage < s->stages && a.micro_batch < s->micro_batches;
            bool up = (a.type == TR_ACTION_SEND) != a.gradient;
            int other = a.stage + (up ? 1 : -1);
            switch (a.type) {
            case TR_ACTION_SEND:
            case TR_ACTION_RECV:
                good = good && other >= 0 && other < s->stages && s->rank_of[other] != row;
                if (!good) break;
                one.op = a.type == TR_ACTION_SEND ? OP_SEND : OP_RECV;
                one.peer = s->rank_of[other];
                one.id = message_id(w, up ? a.stage : other, a.micro_batch, a.gradient);
                break;
            case TR_ACTION_REDUCE: one.op = OP_REDUCE; break;
            case TR_ACTION_WAIT_SENT:
            case TR_ACTION_REDUCE_START:
            case TR_ACTION_REDUCE_WAIT:
            case TR_ACTION_GATHER_START:
            case TR_ACTION_GATHER_WAIT:
            case TR_ACTION_OFFLOAD:
            case TR_ACTION_OFFLOAD_WAIT:
            case TR_ACTION_FETCH:
            case TR_ACTION_FETCH_WAIT:
            case TR_ACTION_FINISH: good = false; break;
            default: one.op = (op)a.type;
            }
            add_step(w, row, one);
        }
    good = good && run_world(w);
    close_world(w);
    return good;
}

static void test_lists(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(8102))};
    int ran = 0, refused = 0;
    for (int trial = 0; trial < tr_test_trials(10000); trial++) {
        tr_schedule *s = test_schedule_named(&r, RANKS), *list = NULL;
        tr_stage_table t;
        for (int k = 0; k < s->ranks; k++)
            for (int j = 0; j < s->count[k]; j++) s->action[k][j].overlap = false;
        if (tr_schedule_list_transfers(s, NULL, &list) != TR_OK)
            fail_msg("trial %d, %s: %s", trial, s->name, tr_error_message());
        for (int stage = test_between(&r, 0, s->stages); stage < s->stages && !s->forward_only;
             stage++) {
            tr_action reduce = {.stage = stage, .type = TR_ACTION_REDUCE, .micro_batch = -1};
            assert_int_equal(tr_schedule_add(list, s->rank_of[stage], reduce), TR_OK);
        }
        if (tr_schedule_check(list, NULL, NULL) != TR_OK) fail_msg("%s", tr_error_message());
        for (int n = test_between(&r, 1, 2); n > 0; n--) mutate_list(&r, list);
        tr_error_clear();
        tr_status status = tr_schedule_check(list, NULL, NULL);
        assert_true(status == TR_OK || status == TR_ERR_CONFIG);
        if (status != TR_OK) assert_true(strlen(tr_error_message()) > 20);
        test_table_chain(s->stages, 256, 256, 256, &t);
        if ((status == TR_OK) != list_runs(list, &t)) {
            char *text = NULL;
            print_message("check says %d, %s\n", (int)status, tr_error_message());
            assert_int_equal(tr_schedule_print(list, true, &text), TR_OK);
            fail_msg("trial %d, %s:\n%s", trial, s->name, text);
        }
        if (status == TR_OK) {
            tr_program_set *set = NULL;
            if (tr_lower(list, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
            assert_true(program_runs(list, &t, set));
            tr_program_set_destroy(set);
        }
        tr_stage_table_free(&t);
        *(status == TR_OK ? &ran : &refused) += 1;
        tr_schedule_destroy(list);
        tr_schedule_destroy(s);
    }
    print_message("%d ran, %d were refused\n", ran, refused);
    assert_true(ran > tr_test_trials(1000) && refused > tr_test_trials(1000));
}

/* --- mutations of programs -------------------------------------------------------------------- */

static bool computes(tr_action a) {
    return tr_action_computes(a);
}

static bool transfers(tr_action a) {
    return tr_action_transfers(a);
}

static bool computes_or_transfers(tr_action a) {
    return computes(a) || transfers(a);
}

static void test_programs(void **state) {
    (void)state;
    bool (*const kinds[])(tr_action a) = {computes, transfers, computes_or_transfers};
    test_random r = {tr_mix64(tr_test_seed(8105))};
    int ran = 0, refused = 0;
    for (int trial = 0; trial < tr_test_trials(4000); trial++) {
        tr_stage_table t;
        tr_program_set *set = NULL;
        test_table_random(&r, test_between(&r, 1, 6), test_between(&r, 0, 2), &t);
        for (int k = 0; k < TEST_BUCKETS * t.stages; k++)
            t.bucket[k].values = t.bucket[k].updated = 0; /* test_program_mutations has gathers */
        int ranks = test_between(&r, 1, t.stages < RANKS ? t.stages : RANKS);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 5));
        if (tr_lower(s, &t, &set) != TR_OK) fail_msg("trial %d: %s", trial, tr_error_message());
        test_program_change(&r, &set->program[test_between(&r, 0, ranks - 1)],
                            kinds[test_between(&r, 0, 2)], s->micro_batches - 1);
        tr_error_clear();
        const tr_status status = tr_program_prove(set, &t);
        if ((status == TR_OK) != program_runs(s, &t, set))
            fail_msg("trial %d: the proof says %d, \"%s\"", trial, (int)status, tr_error_message());
        *(status == TR_OK ? &ran : &refused) += 1;
        tr_program_set_destroy(set);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
    print_message("%d ran, %d were refused\n", ran, refused);
    assert_true(ran > tr_test_trials(400) && refused > tr_test_trials(400));
}

int main(void) {
    (void)alarm(getenv("TRIREME_LONG") ? 36000 : 590); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
