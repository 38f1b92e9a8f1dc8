#include "pipeline/program/lower.h"

#include "base/memory.h"
#include "pipeline/orders/check.h"
#include "pipeline/orders/csv.h"
#include "pipeline/program/lower_impl.h"
#include "pipeline/program/prove.h"
#include "pipeline/program/simulate.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct message {
    int edge, micro_batch;
    bool gradient;
    double taken; /* simulated time */
} message;

/* What a rank does, before transfers are instructions: an action, the transfers in front of one or
 * behind it, or the reduction of its stage. */
typedef enum duty_kind { DUTY_RECEIVE, DUTY_ACT, DUTY_SEND, DUTY_REDUCE } duty_kind;
typedef struct duty {
    duty_kind kind;
    tr_action action;
} duty;

typedef struct script {
    duty *duty;
    size_t capacity;
    int count;
} script;

/* One directed pair of ranks: its messages in the sender's order. */
typedef struct link {
    message *message;
    size_t capacity;
    int count;
    int taken; /* by the RECVs made so far */
} link;

typedef struct builder {
    const tr_schedule *s;
    const tr_stage_table *t;
    tr_program_set *set;
    link *link;       /* [ranks * ranks], from * ranks + to */
    int *number;      /* [2 * edges * micro_batches]: a message's number on its link */
    size_t *capacity; /* [ranks]: of instr */
    int *left;        /* [stages]: W or B still to come */
    bool *reduced;    /* [stages]: a list says where */
    script script;    /* of one rank at a time */
} builder;

static link *link_of(const builder *b, int from, int to) {
    return &b->link[(size_t)from * (size_t)b->s->ranks + (size_t)to];
}

static int *number_of(const builder *b, int edge, int micro_batch, bool gradient) {
    size_t row = (size_t)edge * 2 + (gradient ? 1 : 0);
    return &b->number[row * (size_t)b->s->micro_batches + (size_t)micro_batch];
}

static tr_status push(builder *b, int rank, tr_instr instr) {
    tr_program *program = &b->set->program[rank];
    TR_TRY(tr_grow(&program->instr, &b->capacity[rank], (size_t)program->count + 1,
                   sizeof *program->instr));
    program->instr[program->count++] = instr;
    return TR_OK;
}

/* True when edge e carries a tensor away from action a's stage to another rank (*peer); *gradient:
 * it is the gradient of an input. */
static bool sends(const builder *b, tr_action a, int e, int *peer, bool *gradient) {
    const tr_edge *edge = &b->t->edge[e];
    *gradient = a.type != TR_ACTION_F;
    if (a.type == TR_ACTION_W || a.stage != (*gradient ? edge->to : edge->from)) return false;
    *peer = b->s->rank_of[*gradient ? edge->from : edge->to];
    return *peer != b->s->rank_of[a.stage];
}

/* The same for a tensor that action a needs from another rank. */
static bool receives(const builder *b, tr_action a, int e, int *peer, bool *gradient) {
    const tr_edge *edge = &b->t->edge[e];
    *gradient = a.type != TR_ACTION_F;
    if (a.type == TR_ACTION_W || a.stage != (*gradient ? edge->from : edge->to)) return false;
    *peer = b->s->rank_of[*gradient ? edge->to : edge->from];
    return *peer != b->s->rank_of[a.stage];
}

/* Numbers all messages in their sender's order: an action's messages in edge order. */
static tr_status list_messages(builder *b, int rank) {
    for (int k = 0; k < b->script.count; k++)
        for (int e = 0; e < b->t->edges; e++) {
            tr_action a = b->script.duty[k].action;
            int peer;
            bool gradient;
            if (b->script.duty[k].kind != DUTY_SEND || !sends(b, a, e, &peer, &gradient)) continue;
            link *l = link_of(b, rank, peer);
            TR_TRY(tr_grow(&l->message, &l->capacity, (size_t)l->count + 1, sizeof *l->message));
            *number_of(b, e, a.micro_batch, gradient) = l->count;
            l->message[l->count++] =
                (message){.edge = e, .micro_batch = a.micro_batch, .gradient = gradient};
        }
    return TR_OK;
}

/* RECVs that action a needs; those before them on their channels come along. */
static tr_status push_receives(builder *b, int rank, tr_action a) {
    for (int e = 0; e < b->t->edges; e++) {
        int peer;
        bool gradient;
        if (!receives(b, a, e, &peer, &gradient)) continue;
        link *l = link_of(b, peer, rank);
        int need = *number_of(b, e, a.micro_batch, gradient);
        for (; l->taken <= need; l->taken++) {
            message m = l->message[l->taken];
            const tr_edge *edge = &b->t->edge[m.edge];
            TR_TRY(push(b, rank,
                        (tr_instr){.kind = TR_INSTR_RECV,
                                   .stage = m.gradient ? edge->from : edge->to,
                                   .micro_batch = m.micro_batch,
                                   .memory = -1,
                                   .edge = m.edge,
                                   .gradient = m.gradient,
                                   .peer = peer,
                                   .message = l->taken,
                                   .bytes = edge->bytes}));
        }
    }
    return TR_OK;
}

static tr_status push_sends(builder *b, int rank, tr_action a) {
    for (int e = 0; e < b->t->edges; e++) {
        int peer;
        bool gradient;
        if (!sends(b, a, e, &peer, &gradient)) continue;
        TR_TRY(push(b, rank,
                    (tr_instr){.kind = TR_INSTR_SEND,
                               .stage = a.stage,
                               .micro_batch = a.micro_batch,
                               .memory = -1,
                               .edge = e,
                               .gradient = gradient,
                               .peer = peer,
                               .message = *number_of(b, e, a.micro_batch, gradient),
                               .bytes = b->t->edge[e].bytes}));
    }
    return TR_OK;
}

static tr_status build_rank(builder *b, int rank) {
    tr_program *program = &b->set->program[rank];
    for (int k = 0; k < b->script.count; k++) {
        tr_action a = b->script.duty[k].action;
        switch (b->script.duty[k].kind) {
        case DUTY_RECEIVE: TR_TRY(push_receives(b, rank, a)); break;
        case DUTY_SEND: TR_TRY(push_sends(b, rank, a)); break;
        case DUTY_ACT:
            TR_TRY(push(b, rank,
                        (tr_instr){.kind = (tr_instr_kind)a.type,
                                   .stage = a.stage,
                                   .micro_batch = a.micro_batch,
                                   .memory = program->memories++,
                                   .overlap = a.overlap}));
            break;
        case DUTY_REDUCE:
            TR_TRY(push(
                b, rank,
                (tr_instr){
                    .kind = TR_INSTR_REDUCE, .stage = a.stage, .micro_batch = -1, .memory = -1}));
        }
    }
    return push(b, rank,
                (tr_instr){.kind = TR_INSTR_FINISH, .stage = -1, .micro_batch = -1, .memory = -1});
}

/* --- scripts ---------------------------------------------------------------------------------- */

static tr_status add_duty(builder *b, duty_kind kind, tr_action a) {
    script *s = &b->script;
    TR_TRY(tr_grow(&s->duty, &s->capacity, (size_t)s->count + 1, sizeof *s->duty));
    s->duty[s->count++] = (duty){.kind = kind, .action = a};
    return TR_OK;
}

/* True when a list has its own SEND (RECV) for the action: the neighbour is on another rank. */
static bool has_listed(const builder *b, tr_action a, bool send) {
    int neighbour = a.stage + ((a.type == TR_ACTION_F) == send ? 1 : -1);
    return b->s->list && a.type != TR_ACTION_W && neighbour >= 0 && neighbour < b->s->stages &&
           b->s->rank_of[neighbour] != b->s->rank_of[a.stage];
}

/* One action, or the two of a pair, with the transfers that no list places. */
static tr_status script_cell(builder *b, const tr_action *cell) {
    int actions = cell->overlap ? 2 : 1;
    for (int j = 0; j < actions; j++)
        if (!has_listed(b, cell[j], false)) TR_TRY(add_duty(b, DUTY_RECEIVE, cell[j]));
    for (int j = 0; j < actions; j++) TR_TRY(add_duty(b, DUTY_ACT, cell[j]));
    for (int j = 0; j < actions; j++)
        if (!has_listed(b, cell[j], true)) TR_TRY(add_duty(b, DUTY_SEND, cell[j]));
    return TR_OK;
}

/* REDUCE behind the last W or B of a stage, where no list places it. */
static tr_status script_reduce(builder *b, const tr_action *cell) {
    for (int j = 0; j < (cell->overlap ? 2 : 1); j++) {
        bool weight = cell[j].type == TR_ACTION_W || cell[j].type == TR_ACTION_B;
        if (weight && --b->left[cell[j].stage] == 0 && !b->reduced[cell[j].stage])
            TR_TRY(add_duty(b, DUTY_REDUCE, cell[j]));
    }
    return TR_OK;
}

static tr_status script_order(builder *b, int rank) {
    const tr_action *action = b->s->action[rank];
    for (int k = 0; k < b->s->count[rank]; k += action[k].overlap ? 2 : 1) {
        TR_TRY(script_cell(b, &action[k]));
        TR_TRY(script_reduce(b, &action[k]));
    }
    return TR_OK;
}

static tr_action action_of(const tr_csv_cell *cell) {
    return (tr_action){.stage = cell->stage,
                       .type = (tr_action_type)cell->kind,
                       .micro_batch = cell->micro_batch,
                       .overlap = cell->overlap};
}

/* A transfer or reduction of a list. Parameters are whole here: UNSHARD and RESHARD are nothing. */
static tr_status script_transfer(builder *b, const tr_csv_cell *cell) {
    tr_action a = {.stage = cell->stage, .type = TR_ACTION_I, .micro_batch = cell->micro_batch};
    switch (cell->kind) {
    case TR_CSV_SEND_F: a.type = TR_ACTION_F; return add_duty(b, DUTY_SEND, a);
    case TR_CSV_RECV_F: a.type = TR_ACTION_F; return add_duty(b, DUTY_RECEIVE, a);
    case TR_CSV_SEND_B: return add_duty(b, DUTY_SEND, a);
    case TR_CSV_RECV_B: return add_duty(b, DUTY_RECEIVE, a);
    case TR_CSV_REDUCE_GRAD: return add_duty(b, DUTY_REDUCE, a);
    default: return TR_OK;
    }
}

static bool is_send(tr_csv_kind kind) {
    return kind == TR_CSV_SEND_F || kind == TR_CSV_SEND_B;
}

/* A row of a compute_comms file as it is. */
static tr_status script_list(builder *b, int rank) {
    const tr_csv_cell *cell = b->s->list->cell[rank];
    int count = b->s->list->count[rank];
    for (int k = 0; k < count; k++)
        if (cell[k].kind == TR_CSV_REDUCE_GRAD) b->reduced[cell[k].stage] = true;
    for (int k = 0; k < count; k++) {
        if (cell[k].kind > TR_CSV_B) {
            TR_TRY(script_transfer(b, &cell[k]));
            continue;
        }
        bool pair = cell[k].overlap;
        tr_action a[2] = {action_of(&cell[k]), action_of(&cell[pair ? k + 1 : k])};
        TR_TRY(script_cell(b, a));
        k += pair;
        /* What the action made leaves before its rank waits for a reduction. */
        for (; k + 1 < count && is_send(cell[k + 1].kind); k++)
            TR_TRY(script_transfer(b, &cell[k + 1]));
        TR_TRY(script_reduce(b, a));
    }
    return TR_OK;
}

static tr_status write_script(builder *b, int rank) {
    b->script.count = 0;
    for (int k = 0; k < b->s->stages; k++) b->left[k] = b->s->micro_batches;
    return b->s->list ? script_list(b, rank) : script_order(b, rank);
}

/* --- waits ------------------------------------------------------------------------------------ */

/* Mean seconds of one action. */
static double mean_action(const tr_stage_table *t, bool forward_only) {
    double sum = 0;
    for (int k = 0; k < t->stages; k++)
        sum += forward_only ? t->cost[k].f : (t->cost[k].f + t->cost[k].i + t->cost[k].w) / 2;
    return sum / t->stages;
}

/* Rebuilds the rank's program with a WAIT_SENT for every SEND. before[j] lists, as a chain through
 * following[], the SENDs whose wait stands in front of instruction j. */
static tr_status insert_waits(const builder *b, tr_program *program, const double *start,
                              const double *complete, double slack) {
    tr_status status = TR_OK;
    size_t count = (size_t)program->count, sends_count = 0;
    int *before = NULL, *following = NULL, *moved = NULL;
    tr_instr *instr = NULL;
    TR_TRY_OUT(tr_calloc(count, sizeof *before, &before));
    TR_TRY_OUT(tr_calloc(count, sizeof *following, &following));
    TR_TRY_OUT(tr_calloc(count, sizeof *moved, &moved));
    for (size_t k = 0; k < count; k++) before[k] = -1;
    /* Backwards, so that every chain is in sending order. */
    for (int k = program->count - 1; k >= 0; k--) {
        const tr_instr *send = &program->instr[k];
        if (send->kind != TR_INSTR_SEND) continue;
        double taken = link_of(b, program->rank, send->peer)->message[send->message].taken;
        int j = k + 1;
        while (j < program->count - 1 &&
               (program->instr[j].kind == TR_INSTR_SEND || program->instr[j - 1].overlap ||
                start[j] < complete[k] + slack || start[j] <= taken))
            j++;
        following[k] = before[j];
        before[j] = k;
        sends_count++;
    }
    TR_TRY_OUT(tr_calloc(count + sends_count, sizeof *instr, &instr));
    int n = 0;
    for (int k = 0; k < program->count; k++) {
        for (int send = before[k]; send >= 0; send = following[send]) {
            instr[n] = program->instr[send];
            instr[n].kind = TR_INSTR_WAIT_SENT;
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

static tr_status place_waits(builder *b, double latency) {
    tr_simulation *simulation = NULL;
    tr_status status = TR_OK;
    double slack = mean_action(b->t, b->s->forward_only);
    TR_TRY(tr_simulate(b->set, b->t->cost, latency, &simulation));
    for (int r = 0; r < b->s->ranks; r++)
        for (int k = 0; k < b->set->program[r].count; k++) {
            const tr_instr *instr = &b->set->program[r].instr[k];
            if (instr->kind == TR_INSTR_RECV)
                link_of(b, instr->peer, r)->message[instr->message].taken = simulation->end[r][k];
        }
    for (int r = 0; r < b->s->ranks; r++)
        TR_TRY_OUT(insert_waits(b, &b->set->program[r], simulation->start[r],
                                simulation->complete[r], slack));
    TR_TRY_OUT(tr_program_prove(b->set));
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

static tr_status builder_open(builder *b) {
    size_t ranks = (size_t)b->s->ranks, micro_batches = (size_t)b->s->micro_batches;
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
    TR_TRY(tr_calloc(ranks * ranks, sizeof *b->link, &b->link));
    TR_TRY(tr_calloc(2 * (size_t)b->t->edges * micro_batches, sizeof *b->number, &b->number));
    TR_TRY(tr_calloc(ranks, sizeof *b->capacity, &b->capacity));
    TR_TRY(tr_calloc((size_t)b->s->stages, sizeof *b->left, &b->left));
    TR_TRY(tr_calloc((size_t)b->s->stages, sizeof *b->reduced, &b->reduced));
    return TR_OK;
}

static void builder_close(builder *b) {
    size_t ranks = (size_t)b->s->ranks;
    for (size_t k = 0; b->link && k < ranks * ranks; k++) free(b->link[k].message);
    free(b->script.duty);
    free(b->reduced);
    free(b->link);
    free(b->number);
    free(b->capacity);
    free(b->left);
    tr_program_set_destroy(b->set);
}

tr_status tr_lower(const tr_schedule *s, const tr_stage_table *t, double latency,
                   tr_program_set **out) {
    TR_TRY(tr_schedule_check(s, t, NULL));
    if (s->list) TR_TRY(tr_csv_check(s->list));
    TR_TRY(check_table(t));
    tr_status status = TR_OK;
    builder b = {.s = s, .t = t};
    TR_TRY_OUT(builder_open(&b));
    for (int r = 0; r < s->ranks; r++) {
        TR_TRY_OUT(write_script(&b, r));
        TR_TRY_OUT(list_messages(&b, r));
    }
    for (int r = 0; r < s->ranks; r++) {
        TR_TRY_OUT(write_script(&b, r));
        TR_TRY_OUT(build_rank(&b, r));
    }
    TR_TRY_OUT(place_waits(&b, latency));
    for (int r = 0; r < s->ranks; r++) TR_TRY_OUT(tr_lower_place(s, t, &b.set->program[r]));
    *out = b.set;
    b.set = NULL;
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
    }
    free(set->program);
    free(set);
}

void tr_instr_print(const tr_instr *instr, char *text, size_t size) {
    char action[32];
    bool transfer = instr->kind == TR_INSTR_RECV || instr->kind == TR_INSTR_SEND ||
                    instr->kind == TR_INSTR_WAIT_SENT;
    tr_action a = {.stage = instr->stage, .micro_batch = instr->micro_batch};
    if (transfer) a.type = instr->gradient ? TR_ACTION_I : TR_ACTION_F;
    else a.type = (tr_action_type)instr->kind;
    tr_action_print(a, action, sizeof action);
    switch (instr->kind) {
    case TR_INSTR_RECV:
        (void)snprintf(text, size, "RECV for %s from rank %d", action, instr->peer);
        break;
    case TR_INSTR_SEND:
        (void)snprintf(text, size, "SEND of %s to rank %d", action, instr->peer);
        break;
    case TR_INSTR_WAIT_SENT:
        (void)snprintf(text, size, "WAIT_SENT of %s to rank %d", action, instr->peer);
        break;
    case TR_INSTR_REDUCE: (void)snprintf(text, size, "REDUCE of stage %d", instr->stage); break;
    case TR_INSTR_FINISH: (void)snprintf(text, size, "FINISH"); break;
    default: (void)snprintf(text, size, "%s", action); break;
    }
}
