#include "pipeline/orders/auto.h"

#include "base/memory.h"
#include "base/philox.h"
#include "pipeline/orders/auto_impl.h"
#include "pipeline/orders/generate_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHUNKS = 4, ANY = 1 << 30 };
/* Actions that may be evaluated: in orders made by rule, in orders that follow others, by moves;
 * and each of them at most so often for every action of the order: small ones are soon exhausted.
 */
static const int64_t list_steps = 600000, refill_steps = 1300000, improve_steps = 4000000,
                     often = 6000;

/* How an order was made: by rule, in front perhaps after a known schedule. The same can be made for
 * other numbers of micro-batches, and loses about as much time there. */
typedef struct recipe {
    tr_auto_rule rule;
    bool follows;
    char schedule[32]; /* that it follows */
    double idle;       /* makespan - work; INFINITY: none */
} recipe;

typedef struct candidate {
    tr_auto_shape shape;
    int *order;
    double makespan; /* INFINITY: no order yet */
    recipe recipe;
    char from[32];
} candidate;

typedef struct search {
    tr_schedule_request request;
    candidate *candidate;
    int candidates;
    double *costs; /* of the shapes' stages and ranks */
    double best;
    double bound;
    int *order; /* for the largest shape */
    uint64_t seed, drawn;
} search;

static double draw(search *x) {
    return (double)(tr_mix64(x->seed + 0x9E3779B97F4A7C15u * ++x->drawn) >> 11) * 0x1p-53;
}

/* --- shapes ----------------------------------------------------------------------------------- */

/* Latency from stage 0 to the last, or from the last back to `stage`. */
static double way(const tr_auto_shape *s, int from) {
    double sum = 0;
    for (int k = from; k + 1 < s->stages; k++) sum += tr_auto_hop(s, k);
    return sum;
}

/* The shape's I, which sends only when W has ended too where `whole`. */
static double input_of(const tr_auto_shape *s, int stage, bool whole) {
    return s->cost[TR_ACTION_I][stage] + (whole ? s->cost[TR_ACTION_W][stage] : 0);
}

/* The first micro-batch goes down and back up, and W of stage 0 follows. */
static double path_of(const tr_auto_shape *s, bool whole) {
    double path = 2 * way(s, 0) + (whole ? 0 : s->cost[TR_ACTION_W][0]);
    for (int k = 0; k < s->stages; k++) path += s->cost[TR_ACTION_F][k] + input_of(s, k, whole);
    return path;
}

/* A rank is idle before its first F, and again before its first I once it has run as many F as
 * `cap` allows. */
static double bound_of(const tr_auto_shape *s, double cap, bool whole) {
    double bound = path_of(s, whole), down = way(s, 0), before = 0;
    const double *f = s->cost[TR_ACTION_F];
    int64_t pairs = (int64_t)s->chunks * s->micro_batches;
    double slots = floor(cap * s->chunks / s->mb * (1 + 1e-12));
    if (slots > (double)pairs) slots = (double)pairs;
    for (int k = 0; k < s->stages; k++) down += f[k];
    for (int r = 0; r < s->ranks; r++) { /* its first stage is stage r */
        int stage = tr_auto_stage(s, r, s->chunks - 1);
        double input = down + way(s, stage), longest = 0;
        for (int k = s->stages - 1; k > stage; k--) input += input_of(s, k, whole);
        for (int q = 0; q < s->chunks; q++) longest = fmax(longest, f[tr_auto_stage(s, r, q)]);
        bound = fmax(bound, s->work[r] + fmax(before, input - slots * longest));
        before += f[r] + s->c;
    }
    return bound;
}

/* Costs of the stages, and work of the ranks, in x->costs at `at`. */
static tr_status fill_costs(const search *x, tr_auto_shape *s, double *at) {
    const tr_schedule_request *q = &x->request;
    size_t stages = (size_t)s->stages;
    double *cost[3] = {at, at + stages, at + 2 * stages}, *work = at + 3 * stages;
    for (size_t k = 0; k < stages; k++) {
        cost[TR_ACTION_F][k] = s->f;
        cost[TR_ACTION_I][k] = s->i;
        cost[TR_ACTION_W][k] = s->w;
    }
    if (q->stage_costs)
        TR_TRY(q->stage_costs(q->context, s->stages, cost[TR_ACTION_F], cost[TR_ACTION_I],
                              cost[TR_ACTION_W]));
    for (int type = TR_ACTION_F; type <= TR_ACTION_W; type++) {
        s->cost[type] = cost[type];
        for (int k = 0; k < s->stages; k++)
            work[tr_auto_rank(s, k)] += s->micro_batches * cost[type][k];
    }
    if (!q->stage_costs) /* the sum itself, without its rounding */
        for (int r = 0; r < s->ranks; r++)
            work[r] = q->micro_batches * (q->costs.f + q->costs.i + q->costs.w);
    s->work = work;
    for (int r = 0; r < s->ranks; r++) s->most_work = fmax(s->most_work, work[r]);
    return TR_OK;
}

static tr_status add_shape(search *x, int chunks, bool wave, double *costs) {
    const tr_schedule_request *q = &x->request;
    tr_auto_shape s = {.ranks = q->ranks,
                       .chunks = chunks,
                       .stages = chunks * q->ranks,
                       .micro_batches = q->micro_batches,
                       .wave = wave,
                       .f = q->costs.f / chunks,
                       .i = q->costs.i / chunks,
                       .w = q->costs.w / chunks,
                       .c = q->costs.c,
                       .mb = q->memory.mb,
                       .mw = q->memory.mw,
                       .cap = q->memory.cap > 0 ? q->memory.cap * (1 + 1e-12) : INFINITY};
    TR_TRY(fill_costs(x, &s, costs));
    s.bound = bound_of(&s, s.cap, false);
    candidate *c = &x->candidate[x->candidates++];
    *c = (candidate){.shape = s, .makespan = INFINITY, .recipe.idle = INFINITY};
    return tr_calloc((size_t)s.ranks * (size_t)tr_auto_row(&s), sizeof *c->order, &c->order);
}

static int compare(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->shape.bound < y->shape.bound) return -1;
    if (x->shape.bound > y->shape.bound) return 1;
    return (x->shape.chunks > y->shape.chunks) - (x->shape.chunks < y->shape.chunks);
}

static int most_chunks(const tr_schedule_request *q) {
    if (q->chunks) return q->chunks;
    if (q->ranks == 1) return 1;
    return q->most_chunks && q->most_chunks < MOST_CHUNKS ? q->most_chunks : MOST_CHUNKS;
}

/* No order of the request ends earlier, whatever its shape and memory. */
static double bound_of_request(const search *x, int last) {
    const tr_schedule_request *q = &x->request;
    const tr_schedule_costs *c = &q->costs;
    if (!q->stage_costs) return tr_auto_bound(q->ranks, q->micro_batches, last, c);
    double least = INFINITY;
    for (int n = 0; n < x->candidates; n++)
        least = fmin(least, bound_of(&x->candidate[n].shape, INFINITY, false));
    return least;
}

/* The shapes that the request allows, the most promising first. */
static tr_status list_shapes(search *x) {
    const tr_schedule_request *q = &x->request;
    int last = most_chunks(q), first = q->chunks ? last : 1;
    size_t shapes = 2 * (size_t)(last - first + 1), ranks = (size_t)q->ranks;
    size_t costs = (3 * (size_t)last + 1) * ranks; /* of one shape, at most */
    TR_TRY(tr_calloc(shapes, sizeof *x->candidate, &x->candidate));
    TR_TRY(tr_calloc(shapes * costs, sizeof *x->costs, &x->costs));
    for (int v = first; v <= last; v++) {
        TR_TRY(add_shape(x, v, false, x->costs + (size_t)x->candidates * costs));
        if (v > 1 && q->ranks > 1)
            TR_TRY(add_shape(x, v, true, x->costs + (size_t)x->candidates * costs));
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
static bool take(search *x, candidate *c, double makespan, const char *from) {
    if (!(makespan < c->makespan)) return false;
    c->makespan = makespan;
    memcpy(c->order, x->order, bytes_of(&c->shape));
    (void)snprintf(c->from, sizeof c->from, "%s", from);
    if (makespan < x->best) x->best = makespan;
    return true;
}

static void note_recipe(candidate *c, const tr_auto_rule *rule, const char *follows) {
    c->recipe = (recipe){
        .rule = *rule, .follows = follows != NULL, .idle = c->makespan - c->shape.most_work};
    if (follows) memcpy(c->recipe.schedule, follows, sizeof c->recipe.schedule);
}

/* --- list scheduling -------------------------------------------------------------------------- */

static tr_auto_rule first_rule(const search *x) {
    return (tr_auto_rule){
        .first = TR_AUTO_TURNS, .reserve = 1, .admit = 2 * x->request.ranks, .late = ANY};
}

static double pick(search *x, const double *of, int count) {
    return of[(int)(draw(x) * count)];
}

/* The rule with one to three of its parts drawn again. */
static tr_auto_rule vary(search *x, const tr_auto_shape *s, tr_auto_rule rule) {
    static const double depths[] = {0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 16, 1e6};
    static const double waits[] = {0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2};
    enum { DEPTHS = sizeof depths / sizeof *depths, WAITS = sizeof waits / sizeof *waits };
    int parts = 1 + (int)(draw(x) * 3), p = s->ranks;
    while (parts--) switch ((int)(draw(x) * 7)) {
        case 0: rule.first = (unsigned)(draw(x) * 3); break;
        case 1: rule.forward_depth = pick(x, depths, DEPTHS); break;
        case 2: rule.input_depth = pick(x, depths, DEPTHS); break;
        case 3: rule.patience = pick(x, waits, WAITS) * s->f; break;
        case 4: rule.reserve = 1 + (int)(draw(x) * p); break;
        case 5: rule.admit = p / 2 + 1 + (int)(draw(x) * 2 * p); break;
        default:
            rule.late =
                draw(x) < 0.3 ? 3 * s->chunks * s->micro_batches : (int)(draw(x) * p * s->chunks);
        }
    return rule;
}

static tr_status list_orders(search *x, candidate *c, int64_t steps) {
    int64_t used = 0;
    tr_auto_rule best = first_rule(x), rule = best;
    while (used < steps && c->makespan > c->shape.bound * (1 + 1e-12)) {
        double makespan;
        TR_TRY(tr_auto_list(&c->shape, &rule, NULL, c->makespan, x->order, &makespan, &used));
        if (take(x, c, makespan, "list")) {
            best = rule;
            note_recipe(c, &rule, NULL);
        }
        used += 64;
        rule = vary(x, &c->shape, best);
    }
    return TR_OK;
}

/* --- known schedules -------------------------------------------------------------------------- */

static bool same_place(const tr_schedule *s, const tr_auto_shape *shape) {
    if (s->stages != shape->stages) return false;
    for (int k = 0; k < s->stages; k++)
        if (s->rank_of[k] != tr_auto_rank(shape, k)) return false;
    return true;
}

/* The order with B as I and W, and pairs one after the other: what they send leaves earlier. False
 * when it holds more than the cap. */
static bool unfold(const tr_schedule *s, const tr_auto_shape *shape, int *order) {
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
    request.name = name;
    request.chunks = chunks;
    tr_schedule *s = NULL;
    tr_status status = tr_generate_order(&request, &s);
    if (status == TR_ERR_CONFIG) {
        tr_error_clear(); /* it has no order under this cap */
        return TR_OK;
    }
    TR_TRY(status);
    for (int n = 0; n < x->candidates && status == TR_OK; n++) {
        candidate *c = &x->candidate[n];
        if (!same_place(s, &c->shape) || !unfold(s, &c->shape, x->order)) continue;
        double makespan;
        status = tr_auto_improve(&c->shape, 0, 0, x->order, &makespan);
        if (status == TR_OK) (void)take(x, c, makespan, name);
        break;
    }
    tr_schedule_destroy(s);
    return status;
}

/* No order of the known schedule, in this shape, ends earlier: some are defined by the
 * micro-batches that a rank may hold, some send gradients when I and W have both ended. */
static double bound_of_known(const tr_auto_shape *s, const char *name) {
    static const char *const whole[] = {"gpipe", "1f1b", "interleaved", "bfs", "1f1b-v"};
    int p = s->ranks;
    bool waits = false;
    double most = INFINITY;
    if (strcmp(name, "v-half") == 0) most = (double)((p + 2) / 2);
    if (strcmp(name, "v-min") == 0) most = (double)((p + 4) / 3);
    if (strcmp(name, "1f1b-v") == 0 && p >= 4) most = 0.5 * ((3 * p + 1) / 2);
    for (size_t n = 0; n < sizeof whole / sizeof *whole; n++) waits |= strcmp(name, whole[n]) == 0;
    double one = waits ? s->mb : fmax(s->mb, s->mw); /* as tr_best_cap has it */
    return bound_of(s, fmin(s->cap, one * most), waits);
}

/* Every known schedule that could be better than the best so far. */
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

/* The candidate's best order with W, and the tail, by rule: it, or the known schedule that it came
 * from, is followed in front. */
static tr_status refill(search *x, candidate *c, int64_t steps) {
    static const double gaps[] = {0, 0.25, 0.5, 0.75, 1};
    /* What won most often; tail in stages, patience in F. */
    static const struct {
        unsigned first;
        double patience, gap, tail;
        int slope;
    } tried[] = {
        {TR_AUTO_TURNS, 0, 1, 2, 0},         {TR_AUTO_TURNS, 0.1, 0, 2, 0},
        {TR_AUTO_INPUTS, 0, 1, 2.2, 0},      {TR_AUTO_TURNS, 0.25, 1, 3.3, 1},
        {TR_AUTO_FORWARDS, 0.25, 0, 3, 3},   {TR_AUTO_FORWARDS, 0.25, 0, 3.8, 1},
        {TR_AUTO_TURNS, 0.25, 0, 2.2, 3},    {TR_AUTO_TURNS, 0.25, 0, 3.4, 0},
        {TR_AUTO_FORWARDS, 0.25, 0.5, 4, 0}, {TR_AUTO_TURNS, 0, 0.5, 1.6, 0},
    };
    enum { TRIED = sizeof tried / sizeof *tried };
    int trial = 0;
    enum { GAPS = sizeof gaps / sizeof *gaps };
    enum { FEW = 8 };
    if (steps < FEW * (int64_t)c->shape.ranks * tr_auto_row(&c->shape)) return TR_OK;
    tr_status status = TR_OK;
    size_t bytes = bytes_of(&c->shape);
    int *from[2] = {NULL, NULL};
    char name[32];
    int64_t used = 0;
    memcpy(name, c->from, sizeof name);
    TR_TRY_OUT(tr_calloc(bytes, 1, &from[0]));
    TR_TRY_OUT(tr_calloc(bytes, 1, &from[1]));
    memcpy(from[0], c->order, bytes);
    memcpy(from[1], c->order, bytes);
    tr_auto_rule best = c->recipe.follows ? c->recipe.rule : first_rule(x), rule = best;
    if (!c->recipe.follows) rule.tail = 2 * c->shape.stages;
    int source = 0;
    bool known = strcmp(name, "list") != 0 && !c->recipe.follows;
    while (used < steps && c->makespan > c->shape.bound * (1 + 1e-12)) {
        double makespan;
        TR_TRY_OUT(
            tr_auto_list(&c->shape, &rule, from[source], c->makespan, x->order, &makespan, &used));
        if (take(x, c, makespan, name)) {
            memcpy(from[1], c->order, bytes);
            best = rule;
            if (known && source == 0) note_recipe(c, &rule, name);
        }
        used += 64;
        if (trial < TRIED && !c->recipe.follows) {
            rule = first_rule(x);
            rule.first = tried[trial].first;
            rule.patience = tried[trial].patience * c->shape.f;
            rule.gap = tried[trial].gap;
            rule.tail = (int)(tried[trial].tail * c->shape.stages);
            rule.slope = tried[trial++].slope;
            continue;
        }
        rule = vary(x, &c->shape, best);
        source = draw(x) < 0.5;
        if (draw(x) < 0.5) rule.tail = (int)((1 + 4 * draw(x)) * c->shape.stages);
        if (draw(x) < 0.25) rule.slope = (int)(draw(x) * 7) - 3;
        if (draw(x) < 0.25) rule.gap = pick(x, gaps, GAPS);
    }
out:
    free(from[1]);
    free(from[0]);
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

/* Moves in the candidate's best order, where there is work for more than a few of them. */
static tr_status improve(search *x, candidate *c, int64_t steps) {
    enum { FEW = 200 };
    const tr_auto_shape *s = &c->shape;
    if (steps < FEW * (int64_t)s->ranks * tr_auto_row(s)) return TR_OK;
    char from[32];
    double makespan;
    memcpy(from, c->from, sizeof from);
    memcpy(x->order, c->order, bytes_of(s));
    TR_TRY(tr_auto_improve(s, x->seed, steps, x->order, &makespan));
    (void)take(x, c, makespan, from);
    return TR_OK;
}

static tr_status to_schedule(const candidate *c, tr_schedule **out) {
    const tr_auto_shape *s = &c->shape;
    int *rank_of = NULL;
    tr_schedule *schedule = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *rank_of, &rank_of));
    for (int k = 0; k < s->stages; k++) rank_of[k] = tr_auto_rank(s, k);
    TR_TRY_OUT(
        tr_schedule_create("auto", s->ranks, s->stages, s->micro_batches, rank_of, &schedule));
    int row = tr_auto_row(s);
    for (int r = 0; r < s->ranks; r++)
        for (int n = 0; n < row; n++) {
            int action = c->order[(size_t)r * (size_t)row + (size_t)n], m = s->micro_batches;
            tr_action a = {.stage = action / m % s->stages,
                           .type = (tr_action_type)(action / m / s->stages),
                           .micro_batch = action % m};
            TR_TRY_OUT(tr_schedule_add(schedule, r, a));
        }
    *out = schedule;
    schedule = NULL;
out:
    tr_schedule_destroy(schedule);
    free(rank_of);
    return status;
}

static const candidate *best_of(const search *x) {
    const candidate *best = NULL;
    for (int n = 0; n < x->candidates; n++)
        if (x->candidate[n].makespan <= x->best && x->candidate[n].makespan < INFINITY && !best)
            best = &x->candidate[n];
    return best;
}

/* Small orders have up to four times as many steps, as far as each action is placed seldom enough.
 */
static int64_t budget(const search *x, int64_t steps) {
    int64_t actions = (int64_t)(bytes_of(&x->candidate[0].shape) / sizeof(int));
    double small = 4096.0 / (4096.0 + (double)actions);
    steps += (int64_t)(3 * (double)steps * small * small);
    return steps < often * actions ? steps : often * actions;
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
    for (int n = 0; n < x->candidates; n++) free(x->candidate[n].order);
    free(x->candidate);
    free(x->costs);
    free(x->order);
}

/* The candidate's order for these micro-batches by the recipe of one for fewer. */
static tr_status cook(search *x, candidate *c, const recipe *how) {
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
    if (take(x, c, makespan, how->follows ? how->schedule : "list"))
        note_recipe(c, &how->rule, how->follows ? how->schedule : NULL);
out:
    free(from);
    return status;
}

static tr_status make_orders(search *x);

/* Recipes of the best orders for few micro-batches, more than which only repeat their middle. */
static tr_status cook_from_fewer(search *x) {
    enum { MOST = 3 };
    search few = {.request = x->request, .best = INFINITY, .seed = x->seed};
    few.request.micro_batches = x->request.micro_batches % x->request.ranks + 2 * x->request.ranks;
    tr_status status = list_shapes(&few);
    if (status == TR_OK) status = make_orders(&few);
    for (int round = 0; round < MOST && status == TR_OK; round++) {
        candidate *best = NULL;
        for (int n = 0; n < few.candidates; n++)
            if (!best || few.candidate[n].recipe.idle < best->recipe.idle) best = &few.candidate[n];
        if (!best || !(best->recipe.idle < INFINITY)) break;
        for (int n = 0; n < x->candidates; n++) {
            candidate *c = &x->candidate[n];
            if (c->shape.chunks == best->shape.chunks && c->shape.wave == best->shape.wave &&
                can_win(x, c))
                status = cook(x, c, &best->recipe);
        }
        best->recipe.idle = INFINITY;
    }
    close_search(&few);
    return status;
}

/* An order of every shape that may win, at least as good as every known schedule. */
static tr_status make_orders(search *x) {
    int64_t steps = budget(x, list_steps);
    bool few = x->request.micro_batches < 3 * x->request.ranks || x->request.ranks == 1;
    if (!few) TR_TRY(cook_from_fewer(x));
    for (int n = 0; few && n < x->candidates; n++) {
        if (!can_win(x, &x->candidate[n])) continue;
        steps /= 2;
        TR_TRY(list_orders(x, &x->candidate[n], steps));
    }
    TR_TRY(try_schedules(x));
    return on_best(x, budget(x, few ? refill_steps : refill_steps / 2), refill);
}

static tr_status run(search *x) {
    TR_TRY(list_shapes(x));
    if (tr_auto_fits(&x->candidate[0].shape, x->candidate[0].shape.chunks, 0))
        TR_TRY(make_orders(x));
    TR_TRY(on_best(x, budget(x, improve_steps), improve));
    if (!best_of(x))
        return TR_FAIL(TR_ERR_CONFIG,
                       "no schedule holds at most %g on a rank when a micro-batch takes %g there",
                       x->request.memory.cap, fmax(x->request.memory.mb, x->request.memory.mw));
    return TR_OK;
}

double tr_auto_bound(int ranks, int micro_batches, double chunks, const tr_schedule_costs *c) {
    double fill = micro_batches * (c->f + c->i + c->w) + (ranks - 1) * (c->f / chunks + c->c);
    double path = ranks * (c->f + c->i) + 2 * (ranks - 1) * c->c + c->w / chunks;
    return fmax(fill, path);
}

tr_status tr_schedule_auto(const tr_schedule_request *request, tr_auto_report *report,
                           tr_schedule **out) {
    search x = {.best = INFINITY, .seed = 1};
    TR_TRY(tr_generate_complete(request, &x.request));
    tr_status status = run(&x);
    const candidate *best = status == TR_OK ? best_of(&x) : NULL;
    if (best) status = to_schedule(best, out);
    if (best && report) {
        *report = (tr_auto_report){.makespan = best->makespan,
                                   .bound = x.bound,
                                   .shape_bound = best->shape.bound,
                                   .gap = best->makespan / x.bound - 1,
                                   .chunks = best->shape.chunks};
        memcpy(report->from, best->from, sizeof report->from);
    }
    close_search(&x);
    return status == TR_OK ? TR_OK : tr_trace_at(__FILE__, __LINE__, status);
}
