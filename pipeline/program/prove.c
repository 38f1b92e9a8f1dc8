#include "pipeline/program/prove.h"

#include "base/memory.h"
#include "pipeline/walk.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct prover {
    const tr_program_set *set;
    tr_walk walk;
    int *sent, *taken; /* [ranks * ranks], from * ranks + to: messages so far */
    int buckets;       /* most of a stage */
    int meetings;      /* collectives */
    int **meeting;     /* [ranks][count]: number of the instruction's collective, or -1 */
    int *members;      /* [meetings]: ranks that start it */
    int **line;        /* [ranks]: the rank's sums and gathers in the order of its starts */
    int *begun, *over; /* [ranks]: of these, those that it has started; that have ended */
    int absent;        /* ranks that have not entered FINISH */
    bool *arrived;     /* [ranks]: has entered it */
} prover;

static size_t channel_of(const prover *p, int from, int to) {
    return (size_t)from * (size_t)p->set->ranks + (size_t)to;
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
            moved = true;
        }
    }
}

static bool is_over(const prover *p, int rank, int meeting) {
    for (int k = 0; k < p->over[rank]; k++)
        if (p->line[rank][k] == meeting) return true;
    return false;
}

/* Executes the rank's next instruction if it can run. */
static tr_status step(void *context, int rank, int at, int *done) {
    prover *p = context;
    const tr_instr *instr = instr_of(p, rank, at);
    size_t to = channel_of(p, rank, instr->peer), from = channel_of(p, instr->peer, rank);
    int meeting = p->meeting[rank][at];
    *done = 1;
    switch (instr->action.type) {
    case TR_ACTION_SEND:
        if (instr->message == p->sent[to]++) return TR_OK;
        return fail_order(rank, instr, "it is not the next of its channel");
    case TR_ACTION_RECV:
        if (instr->message != p->taken[from])
            return fail_order(
                rank, instr, "messages of a channel are taken in the order in which they are sent");
        if ((*done = instr->message < p->sent[from])) p->taken[from]++;
        return TR_OK;
    case TR_ACTION_WAIT_SENT: *done = instr->message < p->taken[to]; return TR_OK;
    case TR_ACTION_REDUCE_START:
    case TR_ACTION_GATHER_START:
        p->line[rank][p->begun[rank]++] = meeting;
        end_collectives(p);
        return TR_OK;
    case TR_ACTION_REDUCE_WAIT:
    case TR_ACTION_GATHER_WAIT: *done = is_over(p, rank, meeting); return TR_OK;
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
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = p->walk.next[r]; k < p->walk.count[r]; k++) {
            const tr_instr *instr = instr_of(p, r, k);
            if (p->meeting[r][k] != meeting || ends_collective(instr->action)) continue;
            if (k > p->walk.next[r]) return r;
            break; /* it is in FINISH */
        }
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
        for (int b = 0; b < p->set->ranks; b++) {
            int sent = p->sent[channel_of(p, a, b)], taken = p->taken[channel_of(p, a, b)];
            if (sent != taken)
                return TR_FAIL(TR_ERR_CONFIG,
                               "the program: rank %d sends %d messages to rank %d, which takes %d",
                               a, sent, b, taken);
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
            if (b.type == TR_ACTION_FINISH && j < k)
                return fail_order(rank, &program->instr[k], "it comes after FINISH");
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

/* How far the offload of a micro-batch is: F has run, ..., a gradient has used what F has kept. */
enum { BEFORE_F, KEPT, GOING, GONE, COMING, BACK, USED };

/* Returns the state in which the instruction must find its micro-batch; BEFORE_F: any but those of
 * an offload under way. *next: after it. */
static int needed_state(tr_action_type type, int *next) {
    switch (type) {
    case TR_ACTION_OFFLOAD: *next = GOING; return KEPT;
    case TR_ACTION_OFFLOAD_WAIT: *next = GONE; return GOING;
    case TR_ACTION_FETCH: *next = COMING; return GONE;
    case TR_ACTION_FETCH_WAIT: *next = BACK; return COMING;
    default: return BEFORE_F;
    }
}

/* Fails unless what a micro-batch offloads goes out after its F, is waited for, comes back, and is
 * there before its first gradient. */
static tr_status check_offload(int rank, const tr_program *program) {
    tr_status status = TR_OK;
    int micro_batches = 1;
    char *state = NULL; /* [stages * micro_batches] */
    for (int k = 0; k < program->count; k++)
        if (program->instr[k].action.micro_batch >= micro_batches)
            micro_batches = program->instr[k].action.micro_batch + 1;
    TR_TRY(tr_calloc((size_t)program->stages * (size_t)micro_batches, 1, &state));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        int next = 0;
        if (!tr_action_computes(a) && !tr_action_offloads(a)) continue;
        char *at = &state[a.stage * micro_batches + a.micro_batch];
        const int need = needed_state(a.type, &next);
        if (need && *at != need)
            TR_TRY_OUT(fail_order(rank, &program->instr[k], "the offload has another order"));
        if (!need && *at >= GOING && *at <= COMING)
            TR_TRY_OUT(fail_order(rank, &program->instr[k], "what it uses is offloaded"));
        *at = (char)(need ? next : a.type == TR_ACTION_F ? KEPT : USED);
    }
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (!tr_action_offloads(a)) continue;
        if (state[a.stage * micro_batches + a.micro_batch] < BACK)
            TR_TRY_OUT(fail_order(rank, &program->instr[k], "the offload does not end"));
    }
out:
    free(state);
    return status;
}

/* Fails unless each gather of the rank is waited for, within an action before FINISH, and the
 * values of a stage that gathers are complete in each of its actions. */
static tr_status check_gathers(const prover *p, int rank) {
    enum { ABSENT, STARTED, AWAITED, READY };
    const tr_program *program = &p->set->program[rank];
    tr_status status = TR_OK;
    int *held = NULL, open = 0;
    bool ended = false;
    bool *gathers = NULL; /* [stages * buckets] */
    const size_t keys = (size_t)p->set->program[0].stages * (size_t)p->buckets;
    TR_TRY_OUT(tr_calloc(keys, sizeof *held, &held));
    TR_TRY_OUT(tr_calloc(keys, sizeof *gathers, &gathers));
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (tr_action_gathers(a)) gathers[a.stage * p->buckets + a.micro_batch] = true;
    }
    for (int k = 0; k < program->count && status == TR_OK; k++) {
        const tr_action a = program->instr[k].action;
        const char *problem = NULL;
        for (int b = 0; b < p->buckets && tr_action_computes(a); b++) {
            const int key = a.stage * p->buckets + b;
            if (gathers[key] && held[key] < AWAITED)
                problem = "the values of the stage have not been gathered";
            open -= held[key] == AWAITED;
            if (held[key] == AWAITED) held[key] = READY;
        }
        ended |= a.type == TR_ACTION_FINISH;
        if (ended && open > 0) problem = "a gather has not been waited for";
        if (tr_action_gathers(a)) {
            int *of = &held[a.stage * p->buckets + a.micro_batch];
            const bool start = a.type == TR_ACTION_GATHER_START;
            if (start && (*of == STARTED || *of == AWAITED))
                problem = "the gather before it has not been waited for";
            if (!start && *of != STARTED) problem = "the gather has not started";
            if (ended) problem = "it comes after FINISH";
            *of = start ? STARTED : AWAITED;
            open += start;
        }
        if (problem) status = fail_order(rank, &program->instr[k], problem);
    }
out:
    free(gathers);
    free(held);
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

/* Counts the ranks of every collective. */
static tr_status count_members(prover *p) {
    TR_TRY(tr_calloc((size_t)p->meetings, sizeof *p->members, &p->members));
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = 0; k < p->set->program[r].count; k++) {
            const int meeting = p->meeting[r][k];
            if (meeting >= 0 && !ends_collective(instr_of(p, r, k)->action)) p->members[meeting]++;
        }
    p->absent = p->members[0];
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
        TR_TRY(check_reductions(p, r));
        TR_TRY(check_offload(r, program));
        TR_TRY(check_gathers(p, r));
        TR_TRY(number_meetings(p, r));
    }
    return count_members(p);
}

tr_status tr_program_prove(const tr_program_set *set) {
    tr_status status = TR_OK;
    prover p = {.set = set};
    p.walk = (tr_walk){.name = "the program", .context = &p, .step = step, .blocked = blocked};
    size_t ranks = (size_t)set->ranks;
    TR_TRY_OUT(tr_walk_open(&p.walk, set->ranks, NULL));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p.arrived, &p.arrived));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.sent, &p.sent));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.taken, &p.taken));
    TR_TRY_OUT(open_meetings(&p));
    for (int r = 0; r < set->ranks; r++) p.walk.count[r] = set->program[r].count;
    TR_TRY_OUT(tr_walk_run(&p.walk, NULL));
    TR_TRY_OUT(check_all_taken(&p));
out:
    for (int r = 0; p.meeting && r < set->ranks; r++) free(p.meeting[r]);
    for (int r = 0; p.line && r < set->ranks; r++) free(p.line[r]);
    free(p.meeting);
    free(p.line);
    free(p.over);
    free(p.begun);
    free(p.members);
    free(p.taken);
    free(p.sent);
    free(p.arrived);
    tr_walk_close(&p.walk);
    return status;
}
