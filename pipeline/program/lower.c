#include "pipeline/program/lower.h"

#include "base/memory.h"
#include "pipeline/orders/check.h"
#include "pipeline/program/lower_impl.h"
#include "pipeline/program/pairs.h"
#include "pipeline/program/prove.h"
#include "pipeline/program/simulate.h"
#include "pipeline/walk.h"

#include <stdlib.h>
#include <string.h>

typedef struct message {
    int edge, micro_batch;
    bool gradient;
    double taken; /* simulated time */
} message;

/* One directed pair of ranks: its messages in the sender's order. */
typedef struct link {
    message *message;
    size_t capacity;
    int count;
    int taken; /* messages taken by the RECVs made so far */
} link;

typedef struct builder {
    const tr_schedule *s;
    const tr_stage_table *t;
    tr_program_set *set;
    tr_walk walk;
    tr_lower_edges edges;
    tr_pairs pairs;
    link *link;  /* [pairs] */
    int *number; /* [2 * edges * micro_batches]: a message's number on its link; -1: not sent */
    size_t *capacity; /* [ranks]: of instr */
    int *left;        /* [stages]: remaining W or B; below 0: a list places REDUCE */
    bool *begun;      /* [2 * stages]: the stage has had an F; a W or B */
    int *awaited;     /* [ranks]: REDUCE_STARTs from this instruction on have not been waited for */
    bool paced;       /* ranks wait for the messages of earlier F before later ones */
} builder;

/* Returns the stage's k-th edge, or -1 after the last one. */
static int edge_of(const builder *b, int stage, int k) {
    const int at = b->edges.first[stage] + k;
    return at < b->edges.first[stage + 1] ? b->edges.edge[at] : -1;
}

static link *link_of(const builder *b, int from, int to) {
    return &b->link[tr_pairs_find(&b->pairs, from, to)];
}

static int *number_of(const builder *b, int edge, int micro_batch, bool gradient) {
    size_t row = (size_t)edge * 2 + (gradient ? 1 : 0);
    return &b->number[row * (size_t)b->s->micro_batches + (size_t)micro_batch];
}

static bool is_gradient(tr_action a) {
    return tr_action_transfers(a) ? a.gradient : a.type != TR_ACTION_F;
}

/* Returns true, and sets *peer, when edge e carries a message that action a sends to another rank,
 * or needs from it. */
static bool crosses(const builder *b, tr_action a, bool sends, int e, int *peer) {
    const tr_edge *edge = &b->t->edge[e];
    bool at_start = sends != is_gradient(a);
    if (a.type == TR_ACTION_W || a.stage != (at_start ? edge->from : edge->to)) return false;
    *peer = b->s->rank_of[at_start ? edge->to : edge->from];
    return *peer != b->s->rank_of[a.stage];
}

static tr_status push(builder *b, int rank, tr_instr instr) {
    tr_program *program = &b->set->program[rank];
    TR_TRY(tr_grow(&program->instr, &b->capacity[rank], (size_t)program->count + 1,
                   sizeof *program->instr));
    program->instr[program->count++] = instr;
    return TR_OK;
}

/* Returns true when other ranks have sent all inputs of the action. */
static bool has_arrived(const builder *b, tr_action a) {
    for (int k = 0, e, peer; (e = edge_of(b, a.stage, k)) >= 0; k++)
        if (crosses(b, a, false, e, &peer) && *number_of(b, e, a.micro_batch, is_gradient(a)) < 0)
            return false;
    return true;
}

/* Adds the RECVs that action a needs, with all earlier ones on their channels. */
static tr_status push_receives(builder *b, int rank, tr_action a) {
    for (int k = 0, e, peer; (e = edge_of(b, a.stage, k)) >= 0; k++) {
        if (!crosses(b, a, false, e, &peer)) continue;
        link *l = link_of(b, peer, rank);
        int need = *number_of(b, e, a.micro_batch, is_gradient(a));
        for (; l->taken <= need; l->taken++) {
            message m = l->message[l->taken];
            const tr_edge *edge = &b->t->edge[m.edge];
            TR_TRY(push(b, rank,
                        (tr_instr){.action = {.stage = m.gradient ? edge->from : edge->to,
                                              .type = TR_ACTION_RECV,
                                              .micro_batch = m.micro_batch,
                                              .gradient = m.gradient},
                                   .memory = -1,
                                   .edge = m.edge,
                                   .peer = peer,
                                   .message = l->taken,
                                   .bytes = edge->bytes}));
        }
    }
    return TR_OK;
}

/* Adds the SENDs of action a's outputs, in the order of the edges. */
static tr_status push_sends(builder *b, int rank, tr_action a) {
    bool gradient = is_gradient(a);
    for (int k = 0, e, peer; (e = edge_of(b, a.stage, k)) >= 0; k++) {
        if (!crosses(b, a, true, e, &peer)) continue;
        link *l = link_of(b, rank, peer);
        TR_TRY(tr_grow(&l->message, &l->capacity, (size_t)l->count + 1, sizeof *l->message));
        *number_of(b, e, a.micro_batch, gradient) = l->count;
        l->message[l->count] =
            (message){.edge = e, .micro_batch = a.micro_batch, .gradient = gradient};
        TR_TRY(push(b, rank,
                    (tr_instr){.action = {.stage = a.stage,
                                          .type = TR_ACTION_SEND,
                                          .micro_batch = a.micro_batch,
                                          .gradient = gradient},
                               .memory = -1,
                               .edge = e,
                               .peer = peer,
                               .message = l->count++,
                               .bytes = b->t->edge[e].bytes}));
    }
    return TR_OK;
}

/* Returns true when an earlier action of the stage has written the gradients that this one makes;
 * this one counts as earlier from now on. */
static bool adds(builder *b, tr_action a) {
    if (a.type != TR_ACTION_F && a.type != TR_ACTION_W && a.type != TR_ACTION_B) return false;
    bool *begun = &b->begun[2 * a.stage + (a.type == TR_ACTION_F ? 0 : 1)], before = *begun;
    *begun = true;
    return before;
}

/* Adds the action itself, or FINISH. */
static tr_status push_action(builder *b, int rank, tr_action a) {
    int memory = tr_action_computes(a) ? b->set->program[rank].memories++ : -1;
    return push(b, rank, (tr_instr){.action = a, .memory = memory, .adds = adds(b, a)});
}

/* Adds the starts of the stage's reductions: at this place, or in the stage's last W or B. */
static tr_status push_starts(builder *b, int rank, tr_action a, bool here) {
    const tr_stage_cost *cost = &b->t->cost[a.stage];
    const tr_bucket all = {.bytes = 0, .w = 1, .b = 1};
    for (int k = 0; k < (cost->buckets ? cost->buckets : 1); k++) {
        const tr_bucket *bucket = cost->buckets ? &cost->bucket[k] : &all;
        if (cost->buckets && !bucket->bytes && !bucket->arena) continue;
        TR_TRY(
            push(b, rank,
                 (tr_instr){
                     .action = {.stage = a.stage, .type = TR_ACTION_REDUCE_START, .micro_batch = k},
                     .memory = -1,
                     .bytes = bucket->bytes,
                     .early = !here,
                     .ready = a.type == TR_ACTION_B ? bucket->b : bucket->w}));
    }
    return TR_OK;
}

/* Adds a wait for every reduction that the rank has started and not waited for, in the order of the
 * starts; not `all`: except those of the stage that started last. */
static tr_status push_reduce_waits(builder *b, int rank, bool all) {
    const tr_program *program = &b->set->program[rank];
    const int count = program->count;
    int last = -1, *k = &b->awaited[rank];
    for (int j = *k; j < count && !all; j++)
        if (program->instr[j].action.type == TR_ACTION_REDUCE_START)
            last = program->instr[j].action.stage;
    for (; *k < count; ++*k) {
        tr_instr instr = program->instr[*k];
        if (instr.action.type != TR_ACTION_REDUCE_START) continue;
        if (instr.action.stage == last) break;
        instr.action.type = TR_ACTION_REDUCE_WAIT;
        TR_TRY(push(b, rank, instr));
    }
    return TR_OK;
}

/* Returns true when the action is the first of its stage that writes gradients in the arena. */
static bool begins_buckets(const builder *b, tr_action a) {
    const tr_stage_cost *cost = &b->t->cost[a.stage];
    const bool forward = a.type == TR_ACTION_F;
    if (b->s->forward_only || a.type == TR_ACTION_I || b->begun[2 * a.stage + !forward])
        return false;
    for (int k = 0; k < cost->buckets; k++)
        if (cost->bucket[k].arena && (!forward || cost->bucket[k].in_forward)) return true;
    return false;
}

/* Lowers F, I, W or B, or both actions of a pair, with their transfers unless a list has them. */
static tr_status lower_cell(builder *b, int rank, const tr_action *cell, int actions) {
    for (int k = 0; k < actions && !b->s->listed; k++) TR_TRY(push_receives(b, rank, cell[k]));
    for (int k = 0; k < actions; k++)
        if (begins_buckets(b, cell[k])) TR_TRY(push_reduce_waits(b, rank, false));
    for (int k = 0; k < actions; k++) TR_TRY(push_action(b, rank, cell[k]));
    for (int k = 0; k < actions; k++) {
        bool weight = cell[k].type == TR_ACTION_W || cell[k].type == TR_ACTION_B;
        if (weight && --b->left[cell[k].stage] == 0) TR_TRY(push_starts(b, rank, cell[k], false));
    }
    for (int k = 0; k < actions && !b->s->listed; k++) TR_TRY(push_sends(b, rank, cell[k]));
    return TR_OK;
}

/* Lowers a rank's action at a place once all its inputs have been sent, so that the order of each
 * link's messages is known when they are taken. */
static tr_status lower_step(void *context, int rank, int at, int *done) {
    builder *b = context;
    const tr_action *a = &b->s->action[rank][at];
    int actions = a->overlap ? 2 : 1;
    bool takes = b->s->listed ? a->type == TR_ACTION_RECV : tr_action_computes(*a);
    for (int k = 0; k < actions && takes; k++)
        if (!has_arrived(b, a[k])) return TR_OK;
    *done = actions;
    if (a->type == TR_ACTION_SEND) return push_sends(b, rank, *a);
    if (tr_action_computes(*a)) return lower_cell(b, rank, a, actions);
    if (a->type == TR_ACTION_RECV) return push_receives(b, rank, *a);
    return a->type == TR_ACTION_REDUCE ? push_starts(b, rank, *a, true) : TR_OK;
}

static tr_status lower_all(builder *b) {
    const tr_schedule *s = b->s;
    bool ended;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++)
            if (s->action[r][k].type == TR_ACTION_REDUCE) b->left[s->action[r][k].stage] = -1;
    for (int k = 0; k < s->stages; k++)
        if (!b->left[k]) b->left[k] = s->micro_batches;
    memset(b->number, -1, 2 * (size_t)b->t->edges * (size_t)s->micro_batches * sizeof(int));
    TR_TRY(tr_walk_advance(&b->walk, &ended));
    for (int r = 0; r < s->ranks; r++) {
        TR_TRY(push_reduce_waits(b, r, true));
        TR_TRY(push_action(b, r,
                           (tr_action){.stage = -1, .type = TR_ACTION_FINISH, .micro_batch = -1}));
    }
    return TR_OK;
}

/* --- waits ------------------------------------------------------------------------------------ */

/* Returns the mean seconds of one action. */
static double mean_action(const tr_stage_table *t, bool forward_only) {
    double sum = 0;
    for (int k = 0; k < t->stages; k++)
        sum += forward_only ? t->cost[k].f : (t->cost[k].f + t->cost[k].i + t->cost[k].w) / 2;
    return sum / t->stages;
}

/* Returns true when a wait may be inserted: not between the SENDs of one action, and not inside a
 * pair. */
static bool may_wait_at(const tr_program *program, int j) {
    return program->instr[j].action.type != TR_ACTION_SEND && !program->instr[j - 1].action.overlap;
}

/* Messages of a stage that may be in flight in a paced program. */
enum { MOST_SENT = 2 };

/* Returns true for orders of F alone, on one stage a rank, in which every rank's F ascend. */
static bool is_paced(const tr_schedule *s) {
    if (!s->forward_only || s->stages != s->ranks) return false;
    for (int r = 0; r < s->ranks; r++)
        for (int k = 1; k < s->count[r]; k++)
            if (s->action[r][k].micro_batch < s->action[r][k - 1].micro_batch) return false;
    return true;
}

/* Returns the instruction before which the SEND at `at` must be complete at the latest: FINISH, or
 * in a paced program the F of the micro-batch MOST_SENT later. Without that limit the ranks before
 * a slow one, which no backward holds up, run ahead of it, with the more buffers the more
 * micro-batches there are. As F ascend on all ranks, a receiver takes a message before it can wait
 * for a later one. The message of a skip waits for the stages between, and so does its sender by
 * the message to the next stage. */
static int last_wait_of(const builder *b, const tr_program *program, int at) {
    const int later = program->instr[at].action.micro_batch + MOST_SENT;
    const tr_edge *edge = &b->t->edge[program->instr[at].edge];
    int j = at + 1;
    if (!b->paced || edge->to != edge->from + 1) return program->count - 1;
    while (j < program->count - 1 && !(program->instr[j].action.type == TR_ACTION_F &&
                                       program->instr[j].action.micro_batch >= later))
        j++;
    return j;
}

/* Returns the instruction before which the SEND at `at` is waited for: the first one that starts
 * `slack` after the send is complete and after the receiver has taken the message, or
 * last_wait_of. */
static int wait_place(const builder *b, const tr_program *program, const tr_instr_time *time,
                      double slack, int at) {
    const tr_instr *send = &program->instr[at];
    const double taken = link_of(b, program->rank, send->peer)->message[send->message].taken;
    const double earliest = time[at].complete + slack;
    const int last = last_wait_of(b, program, at);
    int j = at + 1;
    while (j < last &&
           !(may_wait_at(program, j) && time[j].start >= earliest && time[j].start > taken))
        j++;
    return j;
}

/* Rebuilds the rank's program with a WAIT_SENT for every SEND. before[j] starts a chain through
 * following[] of the SENDs to wait for before instruction j. */
static tr_status insert_waits(const builder *b, tr_program *program, const tr_instr_time *time,
                              double slack) {
    tr_status status = TR_OK;
    size_t count = (size_t)program->count, sends = 0;
    int *before = NULL, *following = NULL, *moved = NULL;
    tr_instr *instr = NULL;
    TR_TRY_OUT(tr_calloc(count, sizeof *before, &before));
    TR_TRY_OUT(tr_calloc(count, sizeof *following, &following));
    TR_TRY_OUT(tr_calloc(count, sizeof *moved, &moved));
    for (size_t k = 0; k < count; k++) before[k] = -1;
    /* Backwards, so that every chain is in the order of sending. */
    for (int k = program->count - 1; k >= 0; k--) {
        if (program->instr[k].action.type != TR_ACTION_SEND) continue;
        const int j = wait_place(b, program, time, slack, k);
        following[k] = before[j];
        before[j] = k;
        sends++;
    }
    TR_TRY_OUT(tr_calloc(count + sends, sizeof *instr, &instr));
    int n = 0;
    for (int k = 0; k < program->count; k++) {
        for (int send = before[k]; send >= 0; send = following[send]) {
            instr[n] = program->instr[send];
            instr[n].action.type = TR_ACTION_WAIT_SENT;
            instr[n++].send = moved[send];
        }
        moved[k] = n;
        instr[n++] = program->instr[k];
    }
    free(program->instr);
    program->instr = instr;
    program->count = n;
out:
    free(moved);
    free(following);
    free(before);
    return status;
}

static tr_status place_waits(builder *b) {
    tr_simulation *simulation = NULL;
    tr_status status = TR_OK;
    double slack = mean_action(b->t, b->s->forward_only);
    TR_TRY(tr_simulate(b->set, b->t->cost, NULL, &simulation));
    for (int r = 0; r < b->s->ranks; r++)
        for (int k = 0; k < b->set->program[r].count; k++) {
            const tr_instr *instr = &b->set->program[r].instr[k];
            if (instr->action.type == TR_ACTION_RECV)
                link_of(b, instr->peer, r)->message[instr->message].taken =
                    simulation->instr[r][k].end;
        }
    for (int r = 0; r < b->s->ranks; r++)
        TR_TRY_OUT(insert_waits(b, &b->set->program[r], simulation->instr[r], slack));
out:
    tr_simulation_destroy(simulation);
    return status;
}

/* --- the whole -------------------------------------------------------------------------------- */

static tr_status check_table(const tr_stage_table *t) {
    for (int e = 0; e < t->edges; e++) {
        const tr_edge *edge = &t->edge[e];
        if (!edge->bytes || (edge->life != TR_LIFE_FI && edge->life != TR_LIFE_FW))
            return TR_FAIL(TR_ERR_INTERNAL,
                           "edge %d (%s) has %zu bytes and lifetime %d: it must have bytes that "
                           "live from F on",
                           e, edge->tensor.name, edge->bytes, (int)edge->life);
    }
    return TR_OK;
}

/* Lists the pairs between which the edges' tensors and their gradients move. */
static tr_status list_pairs(builder *b) {
    TR_TRY(tr_pairs_open(b->s->ranks, &b->pairs));
    for (int e = 0; e < b->t->edges; e++) {
        const int from = b->s->rank_of[b->t->edge[e].from], to = b->s->rank_of[b->t->edge[e].to];
        if (from == to) continue;
        TR_TRY(tr_pairs_add(&b->pairs, from, to));
        TR_TRY(tr_pairs_add(&b->pairs, to, from));
    }
    return TR_OK;
}

static tr_status builder_open(builder *b) {
    size_t ranks = (size_t)b->s->ranks, micro_batches = (size_t)b->s->micro_batches;
    b->walk = (tr_walk){.name = b->s->name, .context = b, .step = lower_step};
    b->paced = is_paced(b->s);
    TR_TRY(tr_calloc(1, sizeof *b->set, &b->set));
    TR_TRY(tr_calloc(ranks, sizeof *b->set->program, &b->set->program));
    b->set->ranks = b->s->ranks;
    for (int r = 0; r < b->s->ranks; r++)
        b->set->program[r] = (tr_program){.rank = r,
                                          .ranks = b->s->ranks,
                                          .stages = b->s->stages,
                                          .micro_batches = b->s->micro_batches,
                                          .edges = b->t->edges,
                                          .forward_only = b->s->forward_only};
    TR_TRY(tr_lower_edges_make(b->t, &b->edges));
    TR_TRY(list_pairs(b));
    TR_TRY(tr_calloc((size_t)b->pairs.count, sizeof *b->link, &b->link));
    TR_TRY(tr_calloc(2 * (size_t)b->t->edges * micro_batches, sizeof *b->number, &b->number));
    TR_TRY(tr_calloc(ranks, sizeof *b->capacity, &b->capacity));
    TR_TRY(tr_calloc((size_t)b->s->stages, sizeof *b->left, &b->left));
    TR_TRY(tr_calloc(2 * (size_t)b->s->stages, sizeof *b->begun, &b->begun));
    TR_TRY(tr_calloc(ranks, sizeof *b->awaited, &b->awaited));
    return tr_walk_open(&b->walk, b->s->ranks, b->s->count);
}

static void builder_close(builder *b) {
    for (int k = 0; b->link && k < b->pairs.count; k++) free(b->link[k].message);
    tr_pairs_close(&b->pairs);
    tr_lower_edges_free(&b->edges);
    free(b->awaited);
    free(b->begun);
    tr_walk_close(&b->walk);
    free(b->link);
    free(b->number);
    free(b->capacity);
    free(b->left);
    tr_program_set_destroy(b->set);
}

/* Makes the instructions of all ranks. The caller releases the builder with builder_close, also
 * after a failure. */
static tr_status lower_instructions(builder *b) {
    TR_TRY(tr_schedule_check(b->s, b->t, NULL));
    TR_TRY(check_table(b->t));
    TR_TRY(builder_open(b));
    TR_TRY(lower_all(b));
    for (int r = 0; r < b->s->ranks; r++) TR_TRY(tr_lower_gathers(b->t, &b->set->program[r]));
    TR_TRY(place_waits(b));
    for (int r = 0; r < b->s->ranks; r++) TR_TRY(tr_lower_offload(b->t, &b->set->program[r]));
    return TR_OK;
}

tr_status tr_lower(const tr_schedule *s, const tr_stage_table *t, tr_program_set **out) {
    tr_status status = TR_OK;
    builder b = {.s = s, .t = t};
    TR_TRY_OUT(lower_instructions(&b));
    TR_TRY_OUT(tr_program_prove(b.set, t));
    for (int r = 0; r < s->ranks; r++)
        TR_TRY_OUT(tr_lower_place(s, t, &b.edges, &b.set->program[r]));
    *out = b.set;
    b.set = NULL;
out:
    builder_close(&b);
    return status;
}

tr_status tr_lower_arenas(const tr_schedule *s, const tr_stage_table *t, size_t *arena) {
    tr_status status = TR_OK;
    builder b = {.s = s, .t = t};
    TR_TRY_OUT(lower_instructions(&b));
    for (int r = 0; r < s->ranks; r++) {
        TR_TRY_OUT(tr_lower_pack(s, t, &b.edges, &b.set->program[r]));
        arena[r] = b.set->program[r].arena_bytes;
    }
out:
    builder_close(&b);
    return status;
}

void tr_program_set_destroy(tr_program_set *set) {
    if (!set) return;
    for (int r = 0; set->program && r < set->ranks; r++) {
        tr_program *program = &set->program[r];
        free(program->instr);
        free(program->memory);
        free(program->piece);
        free(program->place);
        free(program->item);
        free(program->key);
        free(program->offset);
        free(program->bucket);
        free(program->copy);
    }
    free(set->program);
    free(set);
}
