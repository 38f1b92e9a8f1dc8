#include "partition/cut.h"

#include "base/memory.h"
#include "base/minmax.h"

#include <math.h>
#include <stdlib.h>

/* Costs are sums of few numbers, so a smaller difference is rounding. */
static const double relative_tolerance = 1e-12;

typedef struct cut {
    int n;
    double *sum;     /* [n + 1]: cost of the first k layers */
    int *blocks;     /* [n + 1]: blocks among the first k layers */
    double *value;   /* [(stages + 1) * (n + 1)]: best for layers k.. in s stages */
    int *length;     /* the same shape: layers of the first of these stages */
    int *low, *high; /* [stages + 1]: the layers that the last s stages can begin with */
    double *need; /* [stages * (n + 1)]: of the first k layers in a stage; NULL: no room is given */
    const double *room; /* [stages] */
} cut;

static double segment(const cut *c, int from, int to) {
    return c->sum[to] - c->sum[from];
}

/* Returns true when the layers from `from` on have a block for each of `stages` stages. */
static bool can_cut(const cut *c, int from, int stages) {
    return c->blocks[c->n] - c->blocks[from] >= stages;
}

/* Returns true when stage `stage` has room for the layers from `from` up to `to`. */
static bool has_room(const cut *c, int stage, int from, int to) {
    if (!c->need) return true;
    const double *need = c->need + (size_t)stage * ((size_t)c->n + 1);
    return need[to] - need[from] <= c->room[stage];
}

typedef enum cut_goal { LARGEST, SQUARES } cut_goal;

/* Computes `value` for layers from `from` on in s stages, given the values for s - 1. Minimises the
 * largest stage, or the sum of squares, of stages that are at most limit. The first stage alone
 * makes a cut no better from some length on, because costs and needs only add up. */
static void solve(const cut *c, int stages, int s, int from, cut_goal goal, double limit) {
    const size_t row = (size_t)c->n + 1, at = (size_t)s * row + (size_t)from;
    const double *rest = c->value + (size_t)(s - 1) * row;
    const int begin = from + 1 > c->low[s - 1] ? from + 1 : c->low[s - 1];
    double best = INFINITY;
    int length = 0;
    for (int to = begin; to <= c->high[s - 1] && can_cut(c, to, s - 1); to++) {
        const double cost = segment(c, from, to), mine = goal == LARGEST ? cost : cost * cost;
        const bool better = mine < best * (1 - relative_tolerance);
        if (!better || cost > limit || !has_room(c, stages - s, from, to)) break;
        if (c->blocks[to] == c->blocks[from] || rest[to] == INFINITY) continue;
        const double total = goal == LARGEST ? tr_max_f64(mine, rest[to]) : mine + rest[to];
        /* Of equal cuts keeps the one with the shortest first stage. */
        if (total < best * (1 - relative_tolerance)) {
            best = total;
            length = to - from;
        }
    }
    c->value[at] = best;
    c->length[at] = length;
}

/* Finds the layers that the last s stages can begin with when no stage exceeds the limit: they cost
 * at most s times as much, and those before them at most as much as the other stages may. With a
 * limit near the mean these are few, so the work grows with the layers, not with their square. */
static void find_range(cut *c, int stages, double limit) {
    const double most = limit * (1 + 1e-9), all = c->sum[c->n]; /* leaves room for rounding */
    int low = c->n, high = c->n;
    for (int s = 0; s <= stages; s++) {
        while (low > 0 && all - c->sum[low - 1] <= (double)s * most) low--;
        while (high > 0 && c->sum[high] > (double)(stages - s) * most) high--;
        c->low[s] = low;
        c->high[s] = high;
    }
}

/* Solves for the layers that the last s stages can begin with: the stages before them have a block
 * each, too. */
static double solve_all(cut *c, int stages, cut_goal goal, double limit) {
    size_t row = (size_t)c->n + 1;
    find_range(c, stages, limit);
    for (size_t k = 0; k < row * ((size_t)stages + 1); k++) c->value[k] = INFINITY;
    c->value[c->n] = 0;
    for (int s = 1; s <= stages; s++)
        for (int from = c->high[s]; from >= c->low[s] && c->blocks[from] >= stages - s; from--)
            if (can_cut(c, from, s)) solve(c, stages, s, from, goal, limit);
    return c->value[(size_t)stages * row];
}

/* Returns the smallest possible cost of the largest stage. Most lists have a cut without a stage
 * above the mean and a layer; only without one all cuts are tried. */
static double find_largest(cut *c, int stages) {
    double layer = 0;
    for (int k = 0; k < c->n; k++) layer = tr_max_f64(layer, segment(c, k, k + 1));
    const double largest = solve_all(c, stages, LARGEST, c->sum[c->n] / stages + layer);
    return isinf(largest) ? solve_all(c, stages, LARGEST, INFINITY) : largest;
}

static tr_status sum_needs(cut *c, int stages, const tr_cut_room *room) {
    const size_t row = (size_t)c->n + 1;
    c->room = room->room;
    TR_TRY(tr_calloc((size_t)stages * row, sizeof *c->need, &c->need));
    for (size_t s = 0; s < (size_t)stages; s++)
        for (size_t k = 0; k + 1 < row; k++)
            c->need[s * row + k + 1] = c->need[s * row + k] + room->need[s * (row - 1) + k];
    return TR_OK;
}

/* Checks the numbers, and sums the costs. */
static tr_status begin(cut *c, const double *cost, const bool *block, int stages) {
    size_t row = (size_t)(c->n < 0 ? 0 : c->n) + 1, cells;
    if (stages < 1 || c->n < 1)
        return TR_FAIL(TR_ERR_CONFIG, "parallel.pp=%d stages of %d layers: both must be 1 or more",
                       stages, c->n);
    if (!tr_mul_size((size_t)stages + 1, row, &cells))
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp=%d is too large: it must be at most the number of layers",
                       stages);
    TR_TRY(tr_calloc(row, sizeof *c->sum, &c->sum));
    TR_TRY(tr_calloc(row, sizeof *c->blocks, &c->blocks));
    for (int k = 0; k < c->n; k++) {
        c->sum[k + 1] = c->sum[k] + cost[k];
        c->blocks[k + 1] = c->blocks[k] + (!block || block[k]);
    }
    if (c->blocks[c->n] < stages)
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp=%d stages need a layer each, but model.layers=%d: lower "
                       "parallel.pp (or parallel.virtual) or raise model.layers",
                       stages, c->blocks[c->n]);
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *c->low, &c->low));
    TR_TRY(tr_calloc((size_t)stages + 1, sizeof *c->high, &c->high));
    TR_TRY(tr_calloc(cells, sizeof *c->value, &c->value));
    return tr_calloc(cells, sizeof *c->length, &c->length);
}

tr_status tr_cut_balanced(const double *cost, const bool *block, int n, int stages,
                          const tr_cut_room *room, int *first, bool *found) {
    tr_status status = TR_OK;
    cut c = {.n = n};
    TR_TRY_OUT(begin(&c, cost, block, stages));
    if (room) TR_TRY_OUT(sum_needs(&c, stages, room));
    const size_t row = (size_t)n + 1;
    const double largest = find_largest(&c, stages);
    *found = !isinf(largest);
    if (!*found) goto out;
    (void)solve_all(&c, stages, SQUARES, largest * (1 + relative_tolerance));
    first[0] = 0;
    for (int k = 0; k < stages; k++)
        first[k + 1] = first[k] + c.length[(size_t)(stages - k) * row + (size_t)first[k]];
out:
    free(c.length);
    free(c.value);
    free(c.need);
    free(c.high);
    free(c.low);
    free(c.blocks);
    free(c.sum);
    return status;
}
