#include "partition/cut.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Costs are sums of few numbers, so a smaller difference is rounding. */
static const double relative_tolerance = 1e-12;

typedef struct cut {
    int n;
    double *sum;   /* [n + 1]: cost of the first k layers */
    int *blocks;   /* [n + 1]: blocks among the first k layers */
    double *value; /* [(stages + 1) * (n + 1)]: best for layers k.. in s stages */
    int *length;   /* the same shape: layers of the first of these stages */
} cut;

static double segment(const cut *c, int from, int to) {
    return c->sum[to] - c->sum[from];
}

/* Computes `value` for layers from `from` on in s stages, given the values for s - 1. Minimises the
 * largest stage when limit is infinite, else the sum of squares of stages that are at most
 * limit. */
static void solve(const cut *c, int s, int from, double limit) {
    size_t row = (size_t)c->n + 1, at = (size_t)s * row + (size_t)from;
    c->value[at] = INFINITY;
    c->length[at] = 0;
    for (int to = from + 1; to <= c->n; to++) {
        double mine = segment(c, from, to), rest = c->value[(size_t)(s - 1) * row + (size_t)to];
        if (c->blocks[to] == c->blocks[from] || mine > limit || isinf(rest)) continue;
        double total = isinf(limit) ? fmax(mine, rest) : mine * mine + rest;
        /* Of equal cuts keeps the one with the shortest first stage. */
        if (isinf(c->value[at]) || total < c->value[at] * (1 - relative_tolerance)) {
            c->value[at] = total;
            c->length[at] = to - from;
        }
    }
}

static double solve_all(const cut *c, int stages, double limit) {
    size_t row = (size_t)c->n + 1;
    for (int k = 0; k <= c->n; k++) c->value[k] = k == c->n ? 0 : INFINITY;
    for (int s = 1; s <= stages; s++)
        for (int from = c->n; from >= 0; from--) solve(c, s, from, limit);
    return c->value[(size_t)stages * row];
}

tr_status tr_cut_balanced(const double *cost, const bool *block, int n, int stages, int *first) {
    tr_status status = TR_OK;
    cut c = {.n = n};
    size_t row = (size_t)(n < 0 ? 0 : n) + 1, cells;
    if (stages < 1 || n < 1)
        return TR_FAIL(TR_ERR_CONFIG, "parallel.pp=%d stages of %d layers: both must be 1 or more",
                       stages, n);
    if (!tr_mul_size((size_t)stages + 1, row, &cells))
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.pp=%d is too large: it must be at most the number of layers",
                       stages);
    TR_TRY_OUT(tr_calloc(row, sizeof *c.sum, &c.sum));
    TR_TRY_OUT(tr_calloc(row, sizeof *c.blocks, &c.blocks));
    for (int k = 0; k < n; k++) {
        c.sum[k + 1] = c.sum[k] + cost[k];
        c.blocks[k + 1] = c.blocks[k] + (!block || block[k]);
    }
    if (c.blocks[n] < stages) {
        status = TR_FAIL(TR_ERR_CONFIG,
                         "parallel.pp=%d stages need a layer each, but model.layers=%d: lower "
                         "parallel.pp (or parallel.virtual) or raise model.layers",
                         stages, c.blocks[n]);
        goto out;
    }
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.value, &c.value));
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.length, &c.length));
    double largest = solve_all(&c, stages, INFINITY);
    (void)solve_all(&c, stages, largest * (1 + relative_tolerance));
    first[0] = 0;
    for (int k = 0; k < stages; k++)
        first[k + 1] = first[k] + c.length[(size_t)(stages - k) * row + (size_t)first[k]];
out:
    free(c.length);
    free(c.value);
    free(c.blocks);
    free(c.sum);
    return status;
}
