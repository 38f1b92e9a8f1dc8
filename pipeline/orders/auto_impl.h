/* Private to the generators: list scheduling and local moves on one placement of the stages. */
#pragma once

#include "pipeline/orders/generate.h"

#include <stdbool.h>
#include <stdint.h>

/* One placement of the stages, with the costs and bytes of a stage. Chunk q of rank r is stage
 * q p + r in a loop; in a wave every second pass goes back: q p + p - 1 - r for odd q (q = 2: a
 * V). */
typedef struct tr_auto_shape {
    int ranks, chunks, stages, micro_batches;
    bool wave;
    bool whole;            /* B instead of I and W: I takes the time of both, W none */
    bool span;             /* an order's time is the longest span of a rank, not the makespan */
    tr_graph graph;        /* edges between the stages */
    int *rank_of;          /* of every stage */
    tr_stage_cost mean;    /* of one stage */
    double latency;        /* between ranks */
    const double *cost[3]; /* F, I, W of every stage */
    const double *work;    /* of every rank: the sum of its actions */
    double most_work;      /* the largest of them */
    double cap;            /* of a rank; INFINITY: no cap */
    const double *down;    /* of every stage: when F of the first micro-batch can start */
    const double *back[2]; /* and its I; [1]: if I's output is sent after W */
    double bound;          /* lower bound of the makespan of this shape under the cap */
    double *doubles;       /* memory of the arrays: [6 stages + ranks] */
} tr_auto_shape;

/* Returns the number of an action: (type * stages + stage) * m + micro-batch; type F, I or W. */
static inline int tr_auto_action(const tr_auto_shape *s, tr_action_type type, int stage, int k) {
    return ((int)type * s->stages + stage) * s->micro_batches + k;
}
static inline int tr_auto_stage(const tr_auto_shape *s, int rank, int chunk) {
    return chunk * s->ranks + (s->wave && chunk % 2 ? s->ranks - 1 - rank : rank);
}
/* Returns the number of actions of a rank. */
static inline int tr_auto_row(const tr_auto_shape *s) {
    return 3 * s->chunks * s->micro_batches;
}
/* Returns the latency between two stages. */
static inline double tr_auto_latency(const tr_auto_shape *s, int from, int to) {
    return s->rank_of[from] == s->rank_of[to] ? 0 : s->latency;
}
/* Returns true when a rank may hold `whole` (stage, micro-batch) pairs before their I, and `kept`
 * after it. */
static inline bool tr_auto_fits(const tr_auto_shape *s, int whole, int kept) {
    return whole * s->mean.m_b + kept * s->mean.m_w <= s->cap;
}

/* How the list scheduler chooses among the actions that a rank can start. */
typedef struct tr_auto_rule {
    enum { TR_AUTO_INPUTS, TR_AUTO_TURNS, TR_AUTO_FORWARDS } first; /* I first, in turns, F first */
    double forward_depth; /* the F with the least micro-batch - forward_depth * chunk comes first */
    double input_depth;   /* the same of I, chunks counted from the last */
    double patience;      /* longest wait for an action that is about to arrive */
    double warm_up;       /* the same before the rank's first I; 0: patience */
    int reserve;          /* number of oldest micro-batches with reserved memory for their F */
    double ahead[2];      /* most F of a rank's first chunk that wait for their I, on the first rank
                             and on the last; linear between them; 0: unlimited */
    bool guard;      /* a W waits when an F or I of the last micro-batch is nearer than a mean W */
    int admit;       /* most micro-batches on a rank */
    int late;        /* most W that wait while an F or I can start */
    double gap;      /* with `from`: a rank that would wait for this many mean W runs a W */
    int tail, slope; /* with `from`: the last tail + slope * rank actions are chosen again */
} tr_auto_rule;

/* Makes an order by list scheduling with the shape's costs, in O(actions * chunks). from: NULL, or
 * an order that runs and respects the cap; then all except the last actions of a rank keep its
 * order of F and I, and W are placed again: when the rank would wait, when the next F has no room,
 * and when more than rule->late wait. order: ranks rows of tr_auto_row actions, not `from`.
 * *makespan is INFINITY when the order cannot end before `limit`, or blocks, which can happen only
 * with `from` or with a cap below one micro-batch. Adds the placed actions to *steps. */
tr_status tr_auto_list(const tr_auto_shape *shape, const tr_auto_rule *rule, const int *from,
                       double limit, int *order, double *makespan, int64_t *steps);

/* A trial's overhead, in evaluated actions. */
enum { TR_AUTO_TRIAL_STEPS = 64 };

/* Random numbers that depend only on the seed and on how many were drawn. */
typedef struct tr_auto_draws {
    uint64_t seed, drawn;
} tr_auto_draws;

/* Draws 64 bits, or a number from [0, 1) with the first 53 of them. */
uint64_t tr_auto_random(tr_auto_draws *draws);
double tr_auto_draw(tr_auto_draws *draws);

/* Returns the rule that trials begin with. */
tr_auto_rule tr_auto_first_rule(const tr_auto_shape *shape);

/* Returns the rule with one to three of its fields drawn again. `ahead` is drawn only if the rule
 * has it. */
tr_auto_rule tr_auto_perturb(tr_auto_draws *draws, const tr_auto_shape *shape, tr_auto_rule rule);

/* Lists orders by *rule and by random rules around the best so far, until `steps` actions are
 * placed or the shape's bound is reached. Returns the best order, its time and its rule. */
tr_status tr_auto_search(const tr_auto_shape *shape, tr_auto_draws *draws, int64_t steps,
                         int *order, double *makespan, tr_auto_rule *rule);

/* Makes the schedule of an order. The caller releases it with tr_schedule_destroy. */
tr_status tr_auto_schedule(const tr_auto_shape *shape, const char *name, const int *order,
                           tr_schedule **out);

/* Improves an order that runs, respects the cap and has W, I and F ascending in every stage, by
 * moves of single actions, until `steps` actions are evaluated or the shape's bound is reached. The
 * result depends only on the arguments. */
tr_status tr_auto_improve(const tr_auto_shape *shape, uint64_t seed, int64_t steps, int *order,
                          double *makespan);

/* Makes the placement of `chunks` stages on every rank of the request, with its costs, edges and
 * bound; `whole`: for orders with B. The caller releases it with tr_auto_shape_close, also after a
 * failure. */
tr_status tr_auto_shape_open(const tr_schedule_request *request, int chunks, bool wave, bool whole,
                             tr_auto_shape *out);
void tr_auto_shape_close(tr_auto_shape *shape);

/* Returns true when list scheduling makes the same orders for both shapes. */
bool tr_auto_shape_equal(const tr_auto_shape *a, const tr_auto_shape *b);

/* Returns a lower bound of the makespan of the shape under that cap; `whole`: of orders that send
 * I's output after its W. */
double tr_auto_shape_bound(const tr_auto_shape *shape, double cap, bool whole);
