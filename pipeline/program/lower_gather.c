#include "pipeline/program/lower_impl.h"

#include "base/memory.h"

#include <stdlib.h>

/* One action, or both of an OVERLAP_F_B. */
typedef struct cell {
    int first, last; /* instructions */
    int stage[2];    /* equal if there is one */
    tr_action_type type[2];
} cell;

/* What the rank has of a stage's values. */
typedef enum held { ABSENT, STARTED, READY } held;

typedef struct gatherer {
    const tr_stage_table *t;
    tr_program *program;
    bool divided; /* else the values are updated */
    cell *cell;   /* [cells] */
    int cells;
    held *held;     /* [stages] */
    tr_instr *made; /* the new program, [count] */
    size_t capacity;
    int count;
} gatherer;

/* Returns true when a stage has divided values, or updated ones. */
static bool has_values(const tr_stage_table *t, bool divided) {
    for (int s = 0; s < t->stages; s++)
        for (int k = 0; k < t->cost[s].buckets; k++) {
            const tr_bucket *bucket = &t->cost[s].bucket[k];
            if (divided ? bucket->values : bucket->updated) return true;
        }
    return false;
}

static void list_cells(gatherer *g) {
    bool second = false;
    for (int k = 0; k < g->program->count; k++) {
        const tr_action a = g->program->instr[k].action;
        if (!tr_action_computes(a)) continue;
        cell *to = &g->cell[second ? g->cells - 1 : g->cells++];
        if (!second) *to = (cell){.first = k};
        to->last = k;
        for (int i = second; i < 2; i++) {
            to->stage[i] = a.stage;
            to->type[i] = a.type;
        }
        second = a.overlap;
    }
}

static bool runs(const cell *c, int stage) {
    return c->stage[0] == stage || c->stage[1] == stage;
}

/* Returns true when cell a runs all stages of cell b. */
static bool covers(const cell *a, const cell *b) {
    return runs(a, b->stage[0]) && runs(a, b->stage[1]);
}

/* Returns the first cell from `at` on with a stage that cell `at` does not run; cell `at` itself
 * when there is none. */
static const cell *next_of(const gatherer *g, int at) {
    for (int k = at + 1; k < g->cells; k++)
        if (!covers(&g->cell[at], &g->cell[k])) return &g->cell[k];
    return &g->cell[at];
}

static tr_status push(gatherer *g, tr_instr instr) {
    TR_TRY(tr_grow(&g->made, &g->capacity, (size_t)g->count + 1, sizeof *g->made));
    g->made[g->count++] = instr;
    return TR_OK;
}

/* Returns the share of an action's time before the layer of bucket k; of I that of B. */
static double share_before(const tr_stage_cost *cost, int k, tr_action_type type) {
    if (type == TR_ACTION_F) return cost->bucket[k].f;
    if (k == 0) return 0;
    return type == TR_ACTION_W ? cost->bucket[k - 1].w : cost->bucket[k - 1].b;
}

/* Adds the starts of a stage's gathers, or the waits, in the order in which an action of type `use`
 * comes to the layers. */
static tr_status push_gathers(gatherer *g, int stage, tr_action_type type, tr_action_type use) {
    const tr_stage_cost *cost = &g->t->cost[stage];
    for (int i = 0; i < cost->buckets; i++) {
        const int k = use == TR_ACTION_F ? cost->buckets - 1 - i : i;
        const tr_bucket *bucket = &cost->bucket[k];
        const size_t bytes = g->divided ? bucket->values : bucket->updated;
        if (!bytes) continue;
        TR_TRY(push(g, (tr_instr){.action = {.stage = stage, .type = type, .micro_batch = k},
                                  .memory = -1,
                                  .offset = TR_NO_PLACE,
                                  .bytes = bytes,
                                  .gathered = bucket->gathered,
                                  .ready = share_before(cost, k, use)}));
    }
    return TR_OK;
}

/* Starts the gathers of the values of a cell's stage, unless the rank has them. */
static tr_status start_stage(gatherer *g, const cell *c, int i) {
    if (g->held[c->stage[i]] != ABSENT) return TR_OK;
    g->held[c->stage[i]] = STARTED;
    return push_gathers(g, c->stage[i], TR_ACTION_GATHER_START, c->type[i]);
}

/* Starts the gathers of all stages, in the order in which the rank runs them. */
static tr_status start_all(gatherer *g) {
    for (int c = 0; c < g->cells; c++)
        for (int i = 0; i < 2; i++) TR_TRY(start_stage(g, &g->cell[c], i));
    return TR_OK;
}

/* Drops the values of all stages that neither cell runs, and starts the gathers of those that are
 * missing. Values that are on their way stay: after a pair of stages one of the two may run alone
 * before the next one. */
static tr_status push_starts(gatherer *g, const cell *now, const cell *next) {
    for (int s = 0; s < g->t->stages; s++)
        if (g->held[s] == READY && !runs(now, s) && !runs(next, s)) g->held[s] = ABSENT;
    for (int k = 0; k < 4; k++) TR_TRY(start_stage(g, k < 2 ? now : next, k % 2));
    return TR_OK;
}

static tr_status push_waits(gatherer *g, const cell *now) {
    for (int k = 0; k < 2; k++) {
        if (g->held[now->stage[k]] != STARTED) continue;
        g->held[now->stage[k]] = READY;
        TR_TRY(push_gathers(g, now->stage[k], TR_ACTION_GATHER_WAIT, now->type[k]));
    }
    return TR_OK;
}

/* Returns the first instruction after a cell's actions, and after the sends and sums that start
 * with them, which must not be delayed. */
static int end_of(const gatherer *g, const cell *c) {
    int k = c->last + 1;
    while (g->program->instr[k].action.type == TR_ACTION_SEND ||
           g->program->instr[k].action.type == TR_ACTION_REDUCE_START)
        k++;
    return k;
}

static tr_status make(gatherer *g) {
    int from = 0;
    if (!g->divided) TR_TRY(start_all(g));
    for (int c = 0; c < g->cells; c++) {
        const cell *now = &g->cell[c];
        const int start = c > 0 ? end_of(g, &g->cell[c - 1]) : 0;
        for (; from < start; from++) TR_TRY(push(g, g->program->instr[from]));
        if (g->divided) TR_TRY(push_starts(g, now, next_of(g, c)));
        for (; from < now->first; from++) TR_TRY(push(g, g->program->instr[from]));
        TR_TRY(push_waits(g, now));
    }
    for (; from < g->program->count; from++) TR_TRY(push(g, g->program->instr[from]));
    return TR_OK;
}

tr_status tr_lower_gathers(const tr_stage_table *t, tr_program *program) {
    tr_status status = TR_OK;
    gatherer g = {.t = t, .program = program, .divided = has_values(t, true)};
    if (!g.divided && (program->forward_only || !has_values(t, false))) return TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)program->count, sizeof *g.cell, &g.cell));
    TR_TRY_OUT(tr_calloc((size_t)t->stages, sizeof *g.held, &g.held));
    list_cells(&g);
    TR_TRY_OUT(make(&g));
    free(program->instr);
    program->instr = g.made;
    program->count = g.count;
    g.made = NULL;
out:
    free(g.made);
    free(g.held);
    free(g.cell);
    return status;
}
