#include "pipeline/program/prove.h"

#include "base/memory.h"
#include "pipeline/program/pairs.h"
#include "pipeline/walk.h"

#include <stdio.h>
#include <stdlib.h>

/* One directed pair of ranks. */
typedef struct channel {
    const tr_instr **send; /* [sent]: of each message */
    size_t capacity;
    int sent, taken; /* messages so far */
} channel;

typedef struct prover {
    const tr_program_set *set;
    tr_walk walk;
    tr_pairs pairs;
    channel *channel;  /* [pairs] */
    int buckets;       /* most of a stage */
    int meetings;      /* collectives */
    int **meeting;     /* [ranks][count]: number of the instruction's collective, or -1 */
    int *members;      /* [meetings]: ranks that start it */
    bool *ended;       /* [meetings], on all of them */
    int **line;        /* [ranks]: the rank's sums and gathers in the order of its starts */
    int *begun, *over; /* [ranks]: of these, those that it has started; that have ended */
    int absent;        /* ranks that have not entered FINISH */
    bool *arrived;     /* [ranks]: has entered it */
} prover;

static channel *channel_of(const prover *p, int from, int to) {
    return &p->channel[tr_pairs_find(&p->pairs, from, to)];
}

static const tr_instr *instr_of(const prover *p, int rank, int at) {
    return &p->set->program[rank].instr[at];
}

static bool ends_collective(tr_action a) {
    return a.type == TR_ACTION_REDUCE_WAIT || a.type == TR_ACTION_GATHER_WAIT;
}

static tr_status fail_order(int rank, const tr_instr *instr, const char *problem) {
    char text[32];
    tr_action_print(instr->action, text, sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "the program: rank %d, %s: %s", rank, text, problem);
}

/* Returns true when the rank's oldest collective is also the oldest of all other ranks that take
 * part, and all have started it. */
static bool can_end(const prover *p, int rank) {
    int oldest = p->line[rank][p->over[rank]], ready = 0;
    for (int r = 0; r < p->set->ranks; r++)
        ready += p->over[r] < p->begun[r] && p->line[r][p->over[r]] == oldest;
    return ready == p->members[oldest];
}

/* Ends every collective that can. A rank's collectives end in the order of its starts. */
static void end_collectives(prover *p) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < p->set->ranks; rank++) {
            if (p->over[rank] == p->begun[rank] || !can_end(p, rank)) continue;
            int oldest = p->line[rank][p->over[rank]];
            for (int r = 0; r < p->set->ranks; r++)
                p->over[r] += p->over[r] < p->begun[r] && p->line[r][p->over[r]] == oldest;
            p->ended[oldest] = moved = true;
        }
    }
}

/* Returns true when a SEND and a RECV or WAIT_SENT are of the same tensor. */
static bool same_message(const tr_instr *a, const tr_instr *b) {
    return a->message == b->message && a->edge == b->edge && a->bytes == b->bytes &&
           a->action.micro_batch == b->action.micro_batch &&
           a->action.gradient == b->action.gradient;
}

static tr_status send(channel *to, int rank, const tr_instr *instr) {
    if (instr->message != to->sent)
        return fail_order(rank, instr, "it is not the next of its channel");
    TR_TRY(tr_grow(&to->send, &to->capacity, (size_t)to->sent + 1, sizeof(tr_instr *)));
    to->send[to->sent++] = instr;
    return TR_OK;
}

/* Takes the message if it has been sent. */
static tr_status receive(channel *from, int rank, const tr_instr *instr, int *done) {
    if (instr->message != from->taken)
        return fail_order(rank, instr,
                          "messages of a channel are taken in the order in which they are sent");
    *done = instr->message < from->sent;
    if (!*done) return TR_OK;
    if (same_message(from->send[from->taken++], instr)) return TR_OK;
    return fail_order(rank, instr, "another tensor is sent");
}

/* Executes the rank's next instruction if it can run. */
static tr_status step(void *context, int rank, int at, int *done) {
    prover *p = context;
    const tr_instr *instr = instr_of(p, rank, at);
    int meeting = p->meeting[rank][at];
    *done = 1;
    switch (instr->action.type) {
    case TR_ACTION_SEND: return send(channel_of(p, rank, instr->peer), rank, instr);
    case TR_ACTION_RECV: return receive(channel_of(p, instr->peer, rank), rank, instr, done);
    case TR_ACTION_WAIT_SENT:
        *done = instr->message < channel_of(p, rank, instr->peer)->taken;
        return TR_OK;
    case TR_ACTION_REDUCE_START:
    case TR_ACTION_GATHER_START:
        p->line[rank][p->begun[rank]++] = meeting;
        end_collectives(p);
        return TR_OK;
    case TR_ACTION_REDUCE_WAIT:
    case TR_ACTION_GATHER_WAIT: *done = p->ended[meeting]; return TR_OK;
    case TR_ACTION_FINISH:
        p->absent -= !p->arrived[rank];
        p->arrived[rank] = true;
        *done = p->absent == 0;
        return TR_OK;
    default: return TR_OK;
    }
}

/* Returns a rank for which `rank` waits in a collective: one that has not entered it; else one that
 * has started another collective before. */
static int missing_rank(const prover *p, int rank, int meeting) {
    for (int r = 0; r < p->set->ranks && meeting == 0; r++)
        if (!p->arrived[r]) return r;
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = p->walk.next[r]; k < p->walk.count[r]; k++)
            if (p->meeting[r][k] == meeting && !ends_collective(instr_of(p, r, k)->action))
                return r;
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = p->over[r]; r != rank && k < p->begun[r]; k++)
            if (p->line[r][k] == meeting) return r;
    return rank;
}

static int blocked(const void *context, int rank, int at, char *item, char *need) {
    const prover *p = context;
    const tr_instr *instr = instr_of(p, rank, at);
    int meeting = p->meeting[rank][at], peer = instr->peer;
    if (meeting >= 0) peer = missing_rank(p, rank, meeting);
    tr_action_print(instr->action, item, TR_WALK_TEXT);
    (void)snprintf(need, TR_WALK_TEXT, "rank %d", peer);
    return peer;
}

static tr_status check_all_taken(const prover *p) {
    for (int a = 0; a < p->set->ranks; a++)
        for (int k = 0; k < p->pairs.row[a].count; k++) {
            const tr_pair b = p->pairs.row[a].pair[k];
            const int sent = p->channel[b.number].sent, taken = p->channel[b.number].taken;
            if (sent != taken)
                return TR_FAIL(TR_ERR_CONFIG,
                               "the program: rank %d sends %d messages to rank %d, which takes %d",
                               a, sent, b.to, taken);
        }
    return TR_OK;
}

/* Fails unless each reduction of the rank starts once, after the stage's last weight gradient, and
 * is waited for once, before FINISH. */
static tr_status check_reductions(const prover *p, int rank) {
    const tr_program *program = &p->set->program[rank];
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        int starts = 0, waits = 0;
        if (!tr_action_reduces(a)) continue;
        for (int j = 0; j < program->count; j++) {
            const tr_action b = program->instr[j].action;
            if (b.stage != a.stage) continue;
            if (j > k && (b.type == TR_ACTION_W || b.type == TR_ACTION_B))
                return fail_order(rank, &program->instr[k],
                                  "a weight gradient of the stage comes later");
            if (b.micro_batch != a.micro_batch) continue;
            starts += b.type == TR_ACTION_REDUCE_START && (j <= k || a.type == b.type);
            waits += b.type == TR_ACTION_REDUCE_WAIT && (j >= k || a.type == b.type);
        }
        if (starts != 1)
            return fail_order(rank, &program->instr[k],
                              starts ? "the sum starts twice" : "the sum has not started");
        if (waits != 1)
            return fail_order(rank, &program->instr[k],
                              waits ? "the sum is waited for twice" : "nothing waits for the sum");
    }
    return TR_OK;
}

/* How far a micro-batch of a stage is: which of its actions have run, and where what its F keeps
 * is. */
enum { BEFORE_F, KEPT, GOING, GONE, COMING, BACK, AFTER_I, DONE };

/* The state in which an instruction leaves its micro-batch, and the two in which it may find it. */
static const struct {
    char to, from[2];
} moves[TR_ACTION_TYPES] = {[TR_ACTION_F] = {KEPT, {BEFORE_F, BEFORE_F}},
                            [TR_ACTION_I] = {AFTER_I, {KEPT, BACK}},
                            [TR_ACTION_W] = {DONE, {AFTER_I, AFTER_I}},
                            [TR_ACTION_B] = {DONE, {KEPT, BACK}},
                            [TR_ACTION_OFFLOAD] = {GOING, {KEPT, KEPT}},
                            [TR_ACTION_OFFLOAD_WAIT] = {GONE, {GOING, GOING}},
                            [TR_ACTION_FETCH] = {COMING, {GONE, GONE}},
                            [TR_ACTION_FETCH_WAIT] = {BACK, {COMING, COMING}}};

/* What one rank has executed. */
typedef struct executor {
    const tr_program *program;
    const tr_stage_table *table;
    int most;       /* micro-batches */
    char *state;    /* [stages][most] */
    bool *here;     /* [stages]: has an action on this rank */
    bool *received; /* [2 * edges][most]: of F, then of I */
    bool *awaited;  /* [count]: SENDs */
} executor;

static char *state_of(const executor *x, int stage, int micro_batch) {
    return &x->state[(size_t)stage * (size_t)x->most + (size_t)micro_batch];
}

static bool *received_of(const executor *x, int edge, tr_action a, bool gradient) {
    const size_t row = (size_t)edge + (gradient ? (size_t)x->table->edges : 0);
    return &x->received[row * (size_t)x->most + (size_t)a.micro_batch];
}

/* Returns true when the tensors that an F, or the gradients that an I or B reads are on the
 * rank. */
static bool has_inputs(const executor *x, tr_action a) {
    const bool gradient = a.type != TR_ACTION_F;
    for (int e = 0; e < x->table->edges && a.type != TR_ACTION_W; e++) {
        const tr_edge *edge = &x->table->edge[e];
        const int other = gradient ? edge->to : edge->from;
        if (a.stage != (gradient ? edge->from : edge->to)) continue;
        if (x->here[other] ? *state_of(x, other, a.micro_batch) < (gradient ? AFTER_I : KEPT)
                           : !*received_of(x, e, a, gradient))
            return false;
    }
    return true;
}

/* Executes an action or a part of an offload; returns what is wrong with it, or NULL. */
static const char *move_on(const executor *x, tr_action a) {
    char *state = state_of(x, a.stage, a.micro_batch);
    const char before = *state, *from = moves[a.type].from;
    *state = moves[a.type].to;
    if (before != from[0] && before != from[1])
        return tr_action_offloads(a)                 ? "the offload has another order"
               : before >= GOING && before <= COMING ? "what it uses is offloaded"
                                                     : "it comes twice, or out of order";
    return tr_action_offloads(a) || has_inputs(x, a) ? NULL : "it lacks an input";
}

static const char *receive_on(const executor *x, const tr_instr *instr) {
    const tr_action a = instr->action;
    const int e = instr->edge;
    if (e < 0 || e >= x->table->edges ||
        a.stage != (a.gradient ? x->table->edge[e].from : x->table->edge[e].to))
        return "its stage does not take this tensor";
    *received_of(x, e, a, a.gradient) = true;
    return NULL;
}

/* Returns what is wrong with a WAIT_SENT, or NULL. */
static const char *await(const executor *x, int at) {
    const tr_instr *instr = &x->program->instr[at];
    const int k = instr->send;
    if (k < 0 || k >= at || x->program->instr[k].action.type != TR_ACTION_SEND ||
        x->program->instr[k].peer != instr->peer || !same_message(&x->program->instr[k], instr))
        return "it does not belong to a SEND before it";
    if (x->awaited[k]) return "its message is waited for twice";
    x->awaited[k] = true;
    return NULL;
}

/* Executes an instruction of a micro-batch; returns what is wrong with it, or NULL. */
static const char *execute(const executor *x, int at) {
    const tr_action a = x->program->instr[at].action;
    switch (a.type) {
    case TR_ACTION_SEND:
        return *state_of(x, a.stage, a.micro_batch) >= (a.gradient ? AFTER_I : KEPT)
                   ? NULL
                   : "it has not been computed";
    case TR_ACTION_RECV: return receive_on(x, &x->program->instr[at]);
    case TR_ACTION_WAIT_SENT: return await(x, at);
    default: return move_on(x, a);
    }
}

/* Fails unless all micro-batches of the rank's stages have ended, with their offloads, and all
 * SENDs are waited for. */
static tr_status check_complete(const executor *x) {
    const tr_program *program = x->program;
    const char end = program->forward_only ? KEPT : DONE;
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        const tr_action a = instr->action;
        if (a.type == TR_ACTION_SEND && !x->awaited[k])
            return fail_order(program->rank, instr, "nothing waits for its buffer");
        if (tr_action_offloads(a) && *state_of(x, a.stage, a.micro_batch) < BACK)
            return fail_order(program->rank, instr, "the offload does not end");
    }
    for (int s = 0; s < program->stages; s++)
        for (int k = 0; k < program->micro_batches && x->here[s]; k++)
            if (*state_of(x, s, k) != end)
                return TR_FAIL(TR_ERR_CONFIG,
                               "the program: rank %d lacks an action of stage %d, micro-batch %d",
                               program->rank, s, k);
    return TR_OK;
}

static bool starts_sum(const tr_program *program, int stage, int bucket) {
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (a.type == TR_ACTION_REDUCE_START && a.stage == stage && a.micro_batch == bucket)
            return true;
    }
    return false;
}

/* Fails unless the rank reduces the buckets of its stages, except those without bytes. */
static tr_status check_buckets(const executor *x) {
    const tr_program *program = x->program;
    if (program->forward_only || !x->table->bucket) return TR_OK;
    for (int s = 0; s < program->stages; s++)
        for (int k = 0; k < x->table->cost[s].buckets && x->here[s]; k++) {
            const tr_bucket *bucket = &x->table->cost[s].bucket[k];
            if ((bucket->bytes || bucket->arena) && !starts_sum(program, s, k))
                return TR_FAIL(TR_ERR_CONFIG,
                               "the program: rank %d does not sum the weight gradients of stage "
                               "%d, bucket %d",
                               program->rank, s, k);
        }
    return TR_OK;
}

/* Returns true for the instructions that belong to a micro-batch of a stage. */
static bool has_micro_batch(tr_action a) {
    return tr_action_computes(a) || tr_action_transfers(a) || tr_action_offloads(a);
}

/* Fails unless each micro-batch of a stage has its actions once and in order, each with its inputs,
 * messages are sent after the action that makes them and waited for, and what a micro-batch
 * offloads goes out after its F and is back before its first gradient. */
static tr_status check_actions(const tr_program *program, const tr_stage_table *table) {
    tr_status status = TR_OK;
    const size_t stages = (size_t)program->stages;
    executor x = {.program = program, .table = table, .most = 1};
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (has_micro_batch(a) && a.micro_batch >= x.most) x.most = a.micro_batch + 1;
    }
    if (program->micro_batches > x.most) x.most = program->micro_batches;
    TR_TRY_OUT(tr_calloc(stages * (size_t)x.most, 1, &x.state));
    TR_TRY_OUT(tr_calloc(stages, sizeof *x.here, &x.here));
    TR_TRY_OUT(tr_calloc(2 * (size_t)table->edges * (size_t)x.most, sizeof(bool), &x.received));
    TR_TRY_OUT(tr_calloc((size_t)program->count, sizeof *x.awaited, &x.awaited));
    for (int k = 0; k < program->count; k++)
        if (tr_action_computes(program->instr[k].action))
            x.here[program->instr[k].action.stage] = true;
    for (int k = 0; k < program->count; k++) {
        const char *problem = has_micro_batch(program->instr[k].action) ? execute(&x, k) : NULL;
        if (problem) TR_TRY_OUT(fail_order(program->rank, &program->instr[k], problem));
    }
    TR_TRY_OUT(check_complete(&x));
    TR_TRY_OUT(check_buckets(&x));
out:
    free(x.awaited);
    free(x.received);
    free(x.here);
    free(x.state);
    return status;
}

/* Fails unless every stage has an action on a rank. */
static tr_status check_stages(const tr_program_set *set) {
    bool *acts; /* [stages] */
    int missing = 0;
    const int stages = set->program[0].stages;
    TR_TRY(tr_calloc((size_t)stages, sizeof *acts, &acts));
    for (int r = 0; r < set->ranks; r++)
        for (int k = 0; k < set->program[r].count; k++) {
            const tr_action a = set->program[r].instr[k].action;
            if (tr_action_computes(a)) acts[a.stage] = true;
        }
    while (missing < stages && acts[missing]) missing++;
    free(acts);
    if (missing == stages) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG, "the program: no rank has an action of stage %d", missing);
}

/* Fails if anything comes after FINISH. */
static tr_status check_finish(int rank, const tr_program *program) {
    for (int k = 1; k < program->count; k++)
        if (program->instr[k - 1].action.type == TR_ACTION_FINISH)
            return fail_order(rank, &program->instr[k], "it comes after FINISH");
    return TR_OK;
}

/* How far the gather of a bucket of values is on a rank. */
typedef enum gather_state { ABSENT, STARTED, AWAITED, READY } gather_state;

/* The gathers of one rank; a key is stage * buckets + bucket. */
typedef struct gather_checker {
    int buckets;         /* most of a stage */
    bool *gathers;       /* [keys]: the program gathers this bucket */
    gather_state *state; /* [keys] */
    int open;            /* gathers that have started and that no action has waited for */
} gather_checker;

/* Executes a GATHER_START or GATHER_WAIT; returns what is wrong with it, or NULL. */
static const char *gather_on(gather_checker *g, tr_action a) {
    gather_state *state = &g->state[a.stage * g->buckets + a.micro_batch];
    const gather_state before = *state;
    if (a.type == TR_ACTION_GATHER_WAIT) {
        *state = AWAITED;
        return before == STARTED ? NULL : "the gather has not started";
    }
    *state = STARTED;
    g->open++;
    return before == ABSENT || before == READY ? NULL
                                               : "the gather before it has not been waited for";
}

/* Executes an action: it makes the waits of its stage's gathers. Returns what is wrong, or NULL. */
static const char *use_values(gather_checker *g, tr_action a) {
    for (int b = 0; b < g->buckets; b++) {
        const int key = a.stage * g->buckets + b;
        if (!g->gathers[key]) continue;
        if (g->state[key] < AWAITED) return "the values of the stage have not been gathered";
        g->open -= g->state[key] == AWAITED;
        g->state[key] = READY;
    }
    return NULL;
}

/* Executes an instruction; returns what is wrong with it, or NULL. */
static const char *check_values(gather_checker *g, tr_action a) {
    if (tr_action_gathers(a)) return gather_on(g, a);
    if (tr_action_computes(a)) return use_values(g, a);
    return a.type == TR_ACTION_FINISH && g->open > 0 ? "a gather has not been waited for" : NULL;
}

/* Fails unless each gather of the rank is waited for, within an action before FINISH, and the
 * values of a stage that gathers are complete in each of its actions. */
static tr_status check_gathers(const prover *p, int rank) {
    const tr_program *program = &p->set->program[rank];
    tr_status status = TR_OK;
    gather_checker g = {.buckets = p->buckets};
    const size_t keys = (size_t)p->set->program[0].stages * (size_t)p->buckets;
    TR_TRY_OUT(tr_calloc(keys, sizeof *g.gathers, &g.gathers));
    TR_TRY_OUT(tr_calloc(keys, sizeof *g.state, &g.state));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (tr_action_gathers(a)) g.gathers[a.stage * p->buckets + a.micro_batch] = true;
    }
    for (int k = 0; k < program->count; k++) {
        const char *problem = check_values(&g, program->instr[k].action);
        if (problem) TR_TRY_OUT(fail_order(rank, &program->instr[k], problem));
    }
out:
    free(g.gathers);
    free(g.state);
    return status;
}

/* Counts the most buckets of a stage. */
static void count_buckets(prover *p) {
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = 0; k < p->set->program[r].count; k++) {
            const tr_action a = instr_of(p, r, k)->action;
            if ((tr_action_reduces(a) || tr_action_gathers(a)) && a.micro_batch >= p->buckets)
                p->buckets = a.micro_batch + 1;
        }
}

/* Numbers the collectives of a rank's instructions: 0 FINISH, then the sums of all buckets, the
 * first gathers of all, the second ones, and so on. */
static tr_status number_meetings(prover *p, int rank) {
    const tr_program *program = &p->set->program[rank];
    const int keys = program->stages * p->buckets;
    int *gathers; /* by bucket, so far */
    TR_TRY(tr_calloc((size_t)keys, sizeof *gathers, &gathers));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        const int bucket = a.stage * p->buckets + a.micro_batch;
        int *meeting = &p->meeting[rank][k];
        *meeting = a.type == TR_ACTION_FINISH ? 0 : tr_action_reduces(a) ? 1 + bucket : -1;
        if (tr_action_gathers(a)) {
            gathers[bucket] += a.type == TR_ACTION_GATHER_START;
            *meeting = 1 + keys * gathers[bucket] + bucket;
        }
        if (*meeting >= p->meetings) p->meetings = *meeting + 1;
    }
    free(gathers);
    return TR_OK;
}

/* Counts the ranks of every collective, none of which has ended. */
static tr_status count_members(prover *p) {
    TR_TRY(tr_calloc((size_t)p->meetings, sizeof *p->members, &p->members));
    TR_TRY(tr_calloc((size_t)p->meetings, sizeof *p->ended, &p->ended));
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = 0; k < p->set->program[r].count; k++) {
            const int meeting = p->meeting[r][k];
            if (meeting >= 0 && !ends_collective(instr_of(p, r, k)->action)) p->members[meeting]++;
        }
    return TR_OK;
}

static tr_status open_meetings(prover *p) {
    const tr_program_set *set = p->set;
    size_t ranks = (size_t)set->ranks;
    count_buckets(p);
    TR_TRY(tr_calloc(ranks, sizeof *p->meeting, &p->meeting));
    TR_TRY(tr_calloc(ranks, sizeof *p->line, &p->line));
    TR_TRY(tr_calloc(ranks, sizeof *p->begun, &p->begun));
    TR_TRY(tr_calloc(ranks, sizeof *p->over, &p->over));
    for (int r = 0; r < set->ranks; r++) {
        const tr_program *program = &set->program[r];
        TR_TRY(tr_calloc((size_t)program->count, sizeof **p->meeting, &p->meeting[r]));
        TR_TRY(tr_calloc((size_t)program->count, sizeof **p->line, &p->line[r]));
        TR_TRY(check_finish(r, program));
        TR_TRY(check_reductions(p, r));
        TR_TRY(check_gathers(p, r));
        TR_TRY(number_meetings(p, r));
    }
    return count_members(p);
}

tr_status tr_program_prove(const tr_program_set *set, const tr_stage_table *table) {
    tr_status status = TR_OK;
    prover p = {.set = set, .absent = set->ranks};
    p.walk = (tr_walk){.name = "the program", .context = &p, .step = step, .blocked = blocked};
    size_t ranks = (size_t)set->ranks;
    TR_TRY_OUT(tr_walk_open(&p.walk, set->ranks, NULL));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p.arrived, &p.arrived));
    TR_TRY_OUT(tr_pairs_of_programs(set, &p.pairs));
    TR_TRY_OUT(tr_calloc((size_t)p.pairs.count, sizeof *p.channel, &p.channel));
    TR_TRY_OUT(open_meetings(&p));
    for (int r = 0; r < set->ranks; r++) p.walk.count[r] = set->program[r].count;
    TR_TRY_OUT(tr_walk_run(&p.walk, NULL));
    TR_TRY_OUT(check_all_taken(&p));
    for (int r = 0; r < set->ranks; r++) TR_TRY_OUT(check_actions(&set->program[r], table));
    if (set->program[0].micro_batches > 0) TR_TRY_OUT(check_stages(set));
out:
    for (int k = 0; p.channel && k < p.pairs.count; k++) free(p.channel[k].send);
    for (int r = 0; p.meeting && r < set->ranks; r++) free(p.meeting[r]);
    for (int r = 0; p.line && r < set->ranks; r++) free(p.line[r]);
    free(p.meeting);
    free(p.line);
    free(p.over);
    free(p.begun);
    free(p.members);
    free(p.ended);
    free(p.channel);
    tr_pairs_close(&p.pairs);
    free(p.arrived);
    tr_walk_close(&p.walk);
    return status;
}
