#include "base/memory.h"
#include "pipeline/program/lower_impl.h"

#include <stdlib.h>

/* Instructions that come before instruction `at`. */
typedef struct insertion {
    int at;
    tr_instr instr;
} insertion;

typedef struct inserter {
    const tr_stage_table *t;
    const tr_program *program;
    insertion *list; /* [count] */
    size_t capacity;
    int count;
} inserter;

static bool computes(const tr_program *program, int k) {
    return tr_action_computes(program->instr[k].action);
}

/* Returns true when instructions may be added before instruction k: not between the SENDs of an
 * action, not inside a pair, and not between a W and the sums that start in it. */
static bool may_add_at(const tr_program *program, int k) {
    const tr_instr *instr = &program->instr[k];
    return instr->action.type != TR_ACTION_SEND && instr->action.type != TR_ACTION_REDUCE_START &&
           !(k > 0 && program->instr[k - 1].action.overlap);
}

static int next_place(const tr_program *program, int k) {
    do k++;
    while (!may_add_at(program, k)); /* FINISH is the last */
    return k;
}

static int place_before(const tr_program *program, int k) {
    while (!may_add_at(program, k)) k--;
    return k;
}

/* Returns the first I or B of F's micro-batch. */
static int gradient_of(const tr_program *program, int forward) {
    const tr_action f = program->instr[forward].action;
    for (int k = forward + 1; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (a.stage == f.stage && a.micro_batch == f.micro_batch &&
            (a.type == TR_ACTION_I || a.type == TR_ACTION_B))
            return k;
    }
    return -1;
}

static tr_status add(inserter *x, int at, int forward, tr_action_type type) {
    const tr_action f = x->program->instr[forward].action;
    TR_TRY(tr_grow(&x->list, &x->capacity, (size_t)x->count + 1, sizeof *x->list));
    x->list[x->count++] = (insertion){
        .at = at,
        .instr = {.action = {.stage = f.stage, .type = type, .micro_batch = f.micro_batch},
                  .memory = -1}};
    return TR_OK;
}

/* Adds the offload of F's micro-batch, if its place is free while the rank computes. */
static tr_status add_offload(inserter *x, int forward) {
    const tr_program *program = x->program;
    const tr_stage_cost *cost = &x->t->cost[program->instr[forward].action.stage];
    const int gradient = gradient_of(program, forward);
    if (gradient < 0 || cost->bytes[TR_LIFE_FI] + cost->bytes[TR_LIFE_FW] == 0) return TR_OK;
    const int out = next_place(program, forward), in_wait = place_before(program, gradient);
    int after = out, before = in_wait - 1;
    while (after < in_wait && !computes(program, after)) after++;
    while (before > out && !computes(program, before)) before--;
    const int out_wait = next_place(program, after), in = place_before(program, before);
    bool frees = false;
    for (int k = out_wait; k < in; k++) frees |= computes(program, k);
    if (!frees) return TR_OK;
    TR_TRY(add(x, out, forward, TR_ACTION_OFFLOAD));
    TR_TRY(add(x, out_wait, forward, TR_ACTION_OFFLOAD_WAIT));
    TR_TRY(add(x, in, forward, TR_ACTION_FETCH));
    return add(x, in_wait, forward, TR_ACTION_FETCH_WAIT);
}

/* By place; at one place waits come first, so that FETCHes get the places that they free. */
static int compare(const void *left, const void *right) {
    static const int rank[TR_ACTION_TYPES] = {
        [TR_ACTION_OFFLOAD] = 2, [TR_ACTION_FETCH] = 3, [TR_ACTION_FETCH_WAIT] = 1};
    const insertion *a = left, *b = right;
    const tr_action x = a->instr.action, y = b->instr.action;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    if (rank[x.type] != rank[y.type]) return rank[x.type] - rank[y.type];
    if (x.stage != y.stage) return x.stage < y.stage ? -1 : 1;
    return x.micro_batch - y.micro_batch;
}

/* Rebuilds the program with the insertions. */
static tr_status insert(inserter *x, tr_program *program) {
    tr_instr *instr = NULL;
    int *moved = NULL, n = 0, next = 0;
    tr_status status = TR_OK;
    qsort(x->list, (size_t)x->count, sizeof *x->list, compare);
    TR_TRY_OUT(tr_calloc((size_t)program->count, sizeof *moved, &moved));
    TR_TRY_OUT(tr_calloc((size_t)(program->count + x->count), sizeof *instr, &instr));
    for (int k = 0; k < program->count; k++) {
        while (next < x->count && x->list[next].at == k) instr[n++] = x->list[next++].instr;
        moved[k] = n;
        instr[n] = program->instr[k];
        if (instr[n].action.type == TR_ACTION_WAIT_SENT) instr[n].send = moved[instr[n].send];
        n++;
    }
    free(program->instr);
    program->instr = instr;
    program->count = n;
out:
    free(moved);
    return status;
}

tr_status tr_lower_offload(const tr_stage_table *t, tr_program *program) {
    inserter x = {.t = t, .program = program};
    tr_status status = TR_OK;
    for (int k = 0; k < program->count && !program->forward_only; k++) {
        const tr_action a = program->instr[k].action;
        if (a.type == TR_ACTION_F && t->cost[a.stage].offload) TR_TRY_OUT(add_offload(&x, k));
    }
    if (x.count > 0) TR_TRY_OUT(insert(&x, program));
out:
    free(x.list);
    return status;
}
