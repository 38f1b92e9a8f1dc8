/* The schedule auto: lower bound, list scheduling, refilling of known schedules and local moves;
 * docs/auto.md explains why this works. */
#include "pipeline/orders/auto.h"

#include "base/memory.h"
#include "pipeline/orders/auto_impl.h"
#include "pipeline/orders/generate_best.h"
#include "pipeline/orders/generate_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHUNKS = 4 };
/* Budgets of list scheduling, refilling and moves, in placed or evaluated actions, so that the
 * order does not depend on the machine. Together they take about two seconds of one core for 32
 * ranks and 256 micro-batches; four times as much gains little (docs/auto.md has each phase's
 * gain). Small orders converge early, so each phase evaluates an action at most most_per_action
 * times. */
static const int64_t list_steps = 600000, refill_steps = 1300000, improve_steps = 4000000,
                     most_per_action = 6000;

/* How an order was made: by list scheduling, perhaps after the front of a known schedule. The same
 * method makes orders for other numbers of micro-batches, with about the same idle time. */
typedef struct method {
    tr_auto_rule rule;
    bool follows;
    char schedule[32]; /* the schedule that it follows */
    double idle;       /* makespan - work; INFINITY: no method yet */
} method;

typedef struct candidate {
    tr_auto_shape shape;
    int *order;
    double makespan; /* INFINITY: no order yet */
    method method;
    char from[32];
} candidate;

typedef struct search {
    tr_schedule_request request;
    candidate *candidate;
    int candidates;
    double best;
    double bound;
    int *order; /* for the largest shape */
    tr_auto_draws draws;
} search;

/* --- shapes ----------------------------------------------------------------------------------- */

static tr_status add_shape(search *x, int chunks, bool wave, bool whole) {
    candidate *c = &x->candidate[x->candidates];
    const int *wanted = x->request.rank_of;
    *c = (candidate){.makespan = INFINITY, .method.idle = INFINITY};
    tr_status status = tr_auto_shape_open(&x->request, chunks, wave, whole, &c->shape);
    if (status != TR_OK ||
        (wanted && memcmp(wanted, c->shape.rank_of, (size_t)c->shape.stages * sizeof *wanted))) {
        tr_auto_shape_close(&c->shape);
        return status;
    }
    x->candidates++;
    return tr_calloc((size_t)c->shape.ranks * (size_t)tr_auto_row(&c->shape), sizeof *c->order,
                     &c->order);
}

/* No two shapes are equal, because qsort may leave equal ones in any order. */
static int compare(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->shape.bound < y->shape.bound) return -1;
    if (x->shape.bound > y->shape.bound) return 1;
    if (x->shape.chunks != y->shape.chunks) return x->shape.chunks < y->shape.chunks ? -1 : 1;
    if (x->shape.whole != y->shape.whole) return x->shape.whole ? 1 : -1;
    return x->shape.wave - y->shape.wave;
}

static int most_chunks(const tr_schedule_request *q) {
    if (q->chunks) return q->chunks;
    if (q->ranks == 1) return 1;
    return q->most_chunks && q->most_chunks < MOST_CHUNKS ? q->most_chunks : MOST_CHUNKS;
}

/* Returns a lower bound of the makespan for all shapes and memory. */
static double bound_of_request(const search *x, int last) {
    const tr_schedule_request *q = &x->request;
    if (!q->describe && !q->table)
        return tr_auto_bound(q->ranks, q->micro_batches, last, &q->share, q->latency);
    double least = INFINITY;
    for (int n = 0; n < x->candidates; n++)
        least = fmin(least, tr_auto_shape_bound(&x->candidate[n].shape, INFINITY, false));
    return least;
}

/* Lists the shapes that the request allows, the most promising first. Where a micro-batch takes
 * more after its I than before, orders with whole B may hold more micro-batches under a cap. */
static tr_status list_shapes(search *x) {
    const tr_schedule_request *q = &x->request;
    const bool whole = q->cap > 0 && q->share.m_w > q->share.m_b;
    int last = most_chunks(q), first = q->chunks ? last : 1;
    size_t shapes = 4 * (size_t)(last - first + 1), ranks = (size_t)q->ranks;
    TR_TRY(tr_schedule_check_size((int64_t)q->ranks * last, q->micro_batches));
    TR_TRY(tr_calloc(shapes, sizeof *x->candidate, &x->candidate));
    for (int v = first; v <= last; v++)
        for (int b = 0; b <= whole; b++) {
            TR_TRY(add_shape(x, v, false, b));
            if (v > 1 && q->ranks > 1) TR_TRY(add_shape(x, v, true, b));
        }
    qsort(x->candidate, (size_t)x->candidates, sizeof *x->candidate, compare);
    x->bound = bound_of_request(x, last);
    return tr_calloc(ranks * 3 * (size_t)last * (size_t)q->micro_batches, sizeof *x->order,
                     &x->order);
}

static bool can_win(const search *x, const candidate *c) {
    return c->shape.bound * (1 + 1e-12) < x->best;
}

static size_t bytes_of(const tr_auto_shape *s) {
    return (size_t)s->ranks * (size_t)tr_auto_row(s) * sizeof(int);
}

/* Takes x->order for the candidate when it is better. */
static bool accept(search *x, candidate *c, double makespan, const char *from) {
    if (!(makespan < c->makespan)) return false;
    c->makespan = makespan;
    memcpy(c->order, x->order, bytes_of(&c->shape));
    (void)snprintf(c->from, sizeof c->from, "%s", from);
    if (makespan < x->best) x->best = makespan;
    return true;
}

static void note_method(candidate *c, const tr_auto_rule *rule, const char *follows) {
    c->method = (method){
        .rule = *rule, .follows = follows != NULL, .idle = c->makespan - c->shape.most_work};
    if (follows) memcpy(c->method.schedule, follows, sizeof c->method.schedule);
}

/* --- list scheduling -------------------------------------------------------------------------- */

static tr_status list_orders(search *x, candidate *c, int64_t steps) {
    tr_auto_rule rule = tr_auto_first_rule(&c->shape);
    double makespan;
    TR_TRY(tr_auto_search(&c->shape, &x->draws, steps, x->order, &makespan, &rule));
    if (accept(x, c, makespan, "list")) note_method(c, &rule, NULL);
    return TR_OK;
}

/* --- known schedules -------------------------------------------------------------------------- */

static bool same_place(const tr_schedule *s, const tr_auto_shape *shape) {
    if (s->stages != shape->stages) return false;
    for (int k = 0; k < s->stages; k++)
        if (s->rank_of[k] != shape->rank_of[k]) return false;
    return true;
}

/* Writes the order with each B as I and W, and the actions of pairs in sequence, so that their
 * messages leave earlier. Returns false when it holds more than the cap. */
static bool split_actions(const tr_schedule *s, const tr_auto_shape *shape, int *order) {
    for (int r = 0; r < s->ranks; r++) {
        int *to = order + (size_t)r * (size_t)tr_auto_row(shape), whole = 0, kept = 0;
        for (int n = 0; n < s->count[r]; n++) {
            tr_action a = s->action[r][n];
            bool both = a.type == TR_ACTION_B;
            if (!both) *to++ = tr_auto_action(shape, a.type, a.stage, a.micro_batch);
            else {
                *to++ = tr_auto_action(shape, TR_ACTION_I, a.stage, a.micro_batch);
                *to++ = tr_auto_action(shape, TR_ACTION_W, a.stage, a.micro_batch);
            }
            whole += a.type == TR_ACTION_F;
            if (!tr_auto_fits(shape, whole, kept)) return false;
            bool input = both || a.type == TR_ACTION_I;
            whole -= input;
            kept += input;
            if (!tr_auto_fits(shape, whole, kept)) return false;
            kept -= both || a.type == TR_ACTION_W;
        }
    }
    return true;
}

static tr_status try_schedule(search *x, const char *name, int chunks) {
    tr_schedule_request request = x->request;
    request.table =
        NULL; /* equal stages in a chain: the orders also run with other edges to later stages */
    request.name = name;
    request.chunks = chunks;
    tr_schedule *s = NULL;
    tr_status status = tr_generate_order(&request, &s);
    if (status == TR_ERR_CONFIG) {
        tr_error_clear(); /* the schedule has no order under this cap */
        return TR_OK;
    }
    TR_TRY(status);
    for (int n = 0; n < x->candidates && status == TR_OK; n++) {
        candidate *c = &x->candidate[n];
        if (!same_place(s, &c->shape) || !split_actions(s, &c->shape, x->order)) continue;
        double makespan;
        status = tr_auto_improve(&c->shape, 0, 0, x->order, &makespan);
        if (status == TR_OK) (void)accept(x, c, makespan, name);
    }
    tr_schedule_destroy(s);
    return status;
}

/* Returns a lower bound of the known schedule's makespan in this shape. Some schedules limit the
 * micro-batches that a rank may hold; some send gradients only after both I and W. */
static double bound_of_known(const tr_auto_shape *s, const char *name) {
    static const char *const whole[] = {"gpipe", "1f1b", "interleaved", "bfs", "1f1b-v"};
    bool waits = false;
    for (size_t n = 0; n < sizeof whole / sizeof *whole; n++) waits |= strcmp(name, whole[n]) == 0;
    double one = s->chunks * (waits ? s->mean.m_b : fmax(s->mean.m_b, s->mean.m_w));
    return tr_auto_shape_bound(s, fmin(s->cap, one * tr_generate_most_held(name, s->ranks)), waits);
}

/* Tries every known schedule that could be better than the best order so far. */
static tr_status try_schedules(search *x) {
    const char *name;
    int chunks;
    for (int g = 0; tr_generate_get(g, &name, &chunks); g++) {
        if (strcmp(name, "auto") == 0 || strcmp(name, "forward") == 0) continue;
        for (int v = 1; v <= most_chunks(&x->request); v++) {
            if ((chunks && v != chunks) || (x->request.chunks && v != x->request.chunks)) continue;
            bool promising = false;
            for (int n = 0; n < x->candidates; n++) {
                const tr_auto_shape *s = &x->candidate[n].shape;
                promising |= s->chunks == v && bound_of_known(s, name) * (1 + 1e-12) < x->best;
            }
            if (promising) TR_TRY(try_schedule(x, name, v));
        }
    }
    return TR_OK;
}

typedef struct refill_rule {
    unsigned first;
    double patience, gap, tail; /* patience in F, tail in stages */
    int slope;
} refill_rule;

/* Rules that are tried before random ones. In a measurement with only random rules these gave the
 * best order most often (docs/auto.md). */
static const refill_rule first_refills[] = {
    {TR_AUTO_TURNS, 0, 1, 2, 0},         {TR_AUTO_TURNS, 0.1, 0, 2, 0},
    {TR_AUTO_INPUTS, 0, 1, 2.2, 0},      {TR_AUTO_TURNS, 0.25, 1, 3.3, 1},
    {TR_AUTO_FORWARDS, 0.25, 0, 3, 3},   {TR_AUTO_FORWARDS, 0.25, 0, 3.8, 1},
    {TR_AUTO_TURNS, 0.25, 0, 2.2, 3},    {TR_AUTO_TURNS, 0.25, 0, 3.4, 0},
    {TR_AUTO_FORWARDS, 0.25, 0.5, 4, 0}, {TR_AUTO_TURNS, 0, 0.5, 1.6, 0},
};

/* Returns the rule of a refill's next trial, and which order it follows: 0 the first, 1 the
 * best. */
static tr_auto_rule next_refill(search *x, const candidate *c, const tr_auto_rule *best, int *trial,
                                int *source) {
    static const double gaps[] = {0, 0.25, 0.5, 0.75, 1};
    const tr_auto_shape *s = &c->shape;
    enum { GAPS = sizeof gaps / sizeof *gaps };
    tr_auto_rule rule = tr_auto_first_rule(s);
    if (*trial < (int)(sizeof first_refills / sizeof *first_refills) && !c->method.follows) {
        const refill_rule *r = &first_refills[(*trial)++];
        rule.first = r->first;
        rule.patience = r->patience * s->mean.f;
        rule.gap = r->gap;
        rule.tail = (int)(r->tail * s->stages);
        rule.slope = r->slope;
        return rule;
    }
    rule = tr_auto_perturb(&x->draws, s, *best);
    *source = tr_auto_draw(&x->draws) < 0.5;
    if (tr_auto_draw(&x->draws) < 0.5)
        rule.tail = (int)((1 + 4 * tr_auto_draw(&x->draws)) * s->stages);
    if (tr_auto_draw(&x->draws) < 0.25) rule.slope = (int)(tr_auto_draw(&x->draws) * 7) - 3;
    if (tr_auto_draw(&x->draws) < 0.25) rule.gap = gaps[(int)(tr_auto_draw(&x->draws) * GAPS)];
    return rule;
}

/* Schedules W and the tail again by rule, after the front of the candidate's best order or of the
 * known schedule that it came from. */
static tr_status refill(search *x, candidate *c, int64_t steps) {
    enum { LEAST_TRIALS = 8 }; /* fewer trials improve nothing */
    if (steps < LEAST_TRIALS * (int64_t)c->shape.ranks * tr_auto_row(&c->shape)) return TR_OK;
    tr_status status = TR_OK;
    size_t bytes = bytes_of(&c->shape);
    int *from[2] = {NULL, NULL}, trial = 0, source = 0;
    char name[32];
    int64_t used = 0;
    memcpy(name, c->from, sizeof name);
    for (int k = 0; k < 2; k++) {
        TR_TRY_OUT(tr_calloc(bytes, 1, &from[k]));
        memcpy(from[k], c->order, bytes);
    }
    tr_auto_rule best = c->method.follows ? c->method.rule : tr_auto_first_rule(&c->shape),
                 rule = best;
    if (!c->method.follows) rule.tail = 2 * c->shape.stages;
    bool known = strcmp(name, "list") != 0 && !c->method.follows;
    while (used < steps && c->makespan > c->shape.bound * (1 + 1e-12)) {
        double makespan;
        TR_TRY_OUT(
            tr_auto_list(&c->shape, &rule, from[source], c->makespan, x->order, &makespan, &used));
        if (accept(x, c, makespan, name)) {
            memcpy(from[1], c->order, bytes);
            best = rule;
            if (known && source == 0) note_method(c, &rule, name);
        }
        used += TR_AUTO_TRIAL_STEPS;
        rule = next_refill(x, c, &best, &trial, &source);
    }
out:
    free(from[1]);
    free(from[0]);
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

/* Improves the candidate's best order by moves, if the budget allows more than a few. */
static tr_status improve(search *x, candidate *c, int64_t steps) {
    enum { LEAST_MOVES = 200 };
    const tr_auto_shape *s = &c->shape;
    if (steps < LEAST_MOVES * (int64_t)s->ranks * tr_auto_row(s)) return TR_OK;
    char from[32];
    double makespan;
    memcpy(from, c->from, sizeof from);
    memcpy(x->order, c->order, bytes_of(s));
    TR_TRY(tr_auto_improve(s, x->draws.seed, steps, x->order, &makespan));
    (void)accept(x, c, makespan, from);
    return TR_OK;
}

static const candidate *best_of(const search *x) {
    const candidate *best = NULL;
    for (int n = 0; n < x->candidates; n++)
        if (x->candidate[n].makespan <= x->best && x->candidate[n].makespan < INFINITY && !best)
            best = &x->candidate[n];
    return best;
}

/* Returns the budget: small orders get up to four times as many steps, limited by
 * most_per_action. */
static int64_t budget(const search *x, int64_t steps) {
    int64_t actions = (int64_t)(bytes_of(&x->candidate[0].shape) / sizeof(int));
    double small = 4096.0 / (4096.0 + (double)actions);
    steps += (int64_t)(3 * (double)steps * small * small);
    return steps < most_per_action * actions ? steps : most_per_action * actions;
}

/* Lets a function work on the best candidates that can still win, the first with half of the steps,
 * the next with a quarter, and so on. */
static tr_status on_best(search *x, int64_t steps,
                         tr_status (*work)(search *x, candidate *c, int64_t steps)) {
    bool *done = NULL;
    TR_TRY(tr_calloc((size_t)x->candidates, sizeof *done, &done));
    tr_status status = TR_OK;
    for (int round = 0; round < x->candidates && status == TR_OK; round++) {
        int at = -1;
        for (int n = 0; n < x->candidates; n++)
            if (!done[n] && x->candidate[n].makespan < INFINITY && can_win(x, &x->candidate[n]) &&
                (at < 0 || x->candidate[n].makespan < x->candidate[at].makespan))
                at = n;
        if (at < 0) break;
        done[at] = true;
        steps /= 2;
        status = work(x, &x->candidate[at], steps);
    }
    free(done);
    return status;
}

static void close_search(search *x) {
    for (int n = 0; n < x->candidates; n++) {
        tr_auto_shape_close(&x->candidate[n].shape);
        free(x->candidate[n].order);
    }
    free(x->candidate);
    free(x->order);
}

/* Makes an order for these micro-batches by the method of one for fewer. */
static tr_status apply_method(search *x, candidate *c, const method *how) {
    tr_status status = TR_OK;
    int *from = NULL;
    int64_t used = 0;
    double makespan;
    if (how->follows) {
        TR_TRY(try_schedule(x, how->schedule, c->shape.chunks));
        if (!(c->makespan < INFINITY)) return TR_OK;
        TR_TRY(tr_calloc(bytes_of(&c->shape), 1, &from));
        memcpy(from, c->order, bytes_of(&c->shape));
    }
    TR_TRY_OUT(tr_auto_list(&c->shape, &how->rule, from, c->makespan, x->order, &makespan, &used));
    if (accept(x, c, makespan, how->follows ? how->schedule : "list"))
        note_method(c, &how->rule, how->follows ? how->schedule : NULL);
out:
    free(from);
    return status;
}

/* Lists orders of the shapes, the most promising first and with half of the steps. */
static tr_status list_all(search *x) {
    int64_t steps = budget(x, list_steps);
    for (int n = 0; n < x->candidates; n++) {
        if (!can_win(x, &x->candidate[n])) continue;
        steps /= 2;
        TR_TRY(list_orders(x, &x->candidate[n], steps));
    }
    return TR_OK;
}

static bool is_small(const search *x) {
    return x->request.micro_batches < 3 * x->request.ranks || x->request.ranks == 1;
}

/* Searches with few micro-batches, and applies the methods of its best orders: with more, the
 * middle of an order repeats, and what a method loses at the ends stays the same. */
static tr_status scale_up(search *x) {
    enum { MOST = 3 };
    search few = {.request = x->request, .best = INFINITY, .draws.seed = x->draws.seed};
    few.request.micro_batches = x->request.micro_batches % x->request.ranks + 2 * x->request.ranks;
    tr_status status = list_shapes(&few);
    if (status == TR_OK) status = list_all(&few);
    if (status == TR_OK) status = try_schedules(&few);
    if (status == TR_OK) status = on_best(&few, budget(&few, refill_steps), refill);
    for (int round = 0; round < MOST && status == TR_OK; round++) {
        candidate *best = NULL;
        for (int n = 0; n < few.candidates; n++)
            if (!best || few.candidate[n].method.idle < best->method.idle) best = &few.candidate[n];
        if (!best || !(best->method.idle < INFINITY)) break;
        for (int n = 0; n < x->candidates; n++) {
            candidate *c = &x->candidate[n];
            if (c->shape.chunks == best->shape.chunks && c->shape.wave == best->shape.wave &&
                c->shape.whole == best->shape.whole && can_win(x, c))
                status = apply_method(x, c, &best->method);
        }
        best->method.idle = INFINITY;
    }
    close_search(&few);
    return status;
}

/* Makes an order of every shape that may be best, at least as good as every known schedule. */
static tr_status make_orders(search *x) {
    TR_TRY(is_small(x) ? list_all(x) : scale_up(x));
    TR_TRY(try_schedules(x));
    return on_best(x, budget(x, is_small(x) ? refill_steps : refill_steps / 2), refill);
}

static tr_status run(search *x) {
    TR_TRY(list_shapes(x));
    if (tr_auto_fits(&x->candidate[0].shape, x->candidate[0].shape.chunks, 0))
        TR_TRY(make_orders(x));
    TR_TRY(on_best(x, budget(x, improve_steps), improve));
    if (!best_of(x))
        return TR_FAIL(TR_ERR_CONFIG,
                       "no schedule holds at most %g on a rank when a micro-batch takes %g there: "
                       "raise the cap",
                       x->request.cap, x->request.share.m_b);
    return TR_OK;
}

tr_status tr_schedule_auto(const tr_schedule_request *request, tr_auto_report *report,
                           tr_schedule **out) {
    search x = {.best = INFINITY, .draws.seed = 1};
    tr_best_rules rules = {0};
    TR_TRY(tr_generate_complete(request, &x.request));
    x.request.rules = &rules; /* searches with few micro-batches and with all share them */
    tr_status status = run(&x);
    const candidate *best = status == TR_OK ? best_of(&x) : NULL;
    if (best) status = tr_auto_schedule(&best->shape, "auto", best->order, out);
    if (best && report) {
        *report = (tr_auto_report){.makespan = best->makespan,
                                   .bound = x.bound,
                                   .shape_bound = best->shape.bound,
                                   .gap = best->makespan / x.bound - 1,
                                   .chunks = best->shape.chunks};
        memcpy(report->from, best->from, sizeof report->from);
    }
    close_search(&x);
    tr_best_rules_free(&rules);
    return status == TR_OK ? TR_OK : tr_trace_at(__FILE__, __LINE__, status);
}
