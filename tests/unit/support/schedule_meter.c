#include "support/schedule_meter.h"

/* Returns when the inputs of an action have arrived; -1: not yet known. */
static double meter_ready(const meter_walk *w, tr_action a, double c) {
    int m = w->s->micro_batches, at = a.stage * m + a.micro_batch, other = -1;
    double own = a.type == TR_ACTION_F ? 0 : a.type == TR_ACTION_W ? w->input[at] : w->forward[at];
    const double *from = a.type == TR_ACTION_F ? w->forward : w->input;
    if (a.type == TR_ACTION_F) other = a.stage - 1;
    else if (a.type != TR_ACTION_W && a.stage + 1 < w->s->stages) other = a.stage + 1;
    if (own < 0 || other < 0) return own;
    double arrival = from[other * m + a.micro_batch];
    if (arrival < 0) return -1;
    if (w->s->rank_of[other] != w->s->rank_of[a.stage]) arrival += c;
    return arrival > own ? arrival : own;
}

static double meter_duration(const tr_schedule *s, tr_action a, const tr_stage_cost *c) {
    double v = (double)s->stages / s->ranks;
    return (a.type == TR_ACTION_F   ? c->f
            : a.type == TR_ACTION_I ? c->i
            : a.type == TR_ACTION_W ? c->w
                                    : c->i + c->w) /
           v;
}

/* Runs the rank's next action or pair if the times of its inputs are known; otherwise returns
 * false. */
static bool meter_step(meter_walk *w, int r, const tr_stage_cost *share, double latency) {
    const tr_action *cell = &w->s->action[r][w->next[r]];
    int n = cell->overlap ? 2 : 1, m = w->s->micro_batches;
    double start = w->now[r];
    for (int k = 0; k < n; k++) {
        double ready = meter_ready(w, cell[k], latency);
        if (ready < 0) return false;
        if (ready > start) start = ready;
    }
    double end = start;
    for (int k = 0; k < n; k++) end += meter_duration(w->s, cell[k], share);
    for (int k = 0; k < n; k++) {
        int at = cell[k].stage * m + cell[k].micro_batch;
        if (cell[k].type == TR_ACTION_F) w->forward[at] = end;
        if (cell[k].type == TR_ACTION_I || cell[k].type == TR_ACTION_B) w->input[at] = end;
        if (cell[k].type == TR_ACTION_W || cell[k].type == TR_ACTION_B) w->weight[at] = end;
    }
    if (!w->next[r]) w->first[r] = start;
    w->now[r] = end;
    w->next[r] += n;
    return true;
}

double meter_peak(const tr_schedule *s, int r, const tr_stage_cost *share) {
    double held = 0, peak = 0, v = (double)s->stages / s->ranks;
    for (int k = 0; k < s->count[r]; k++) {
        tr_action_type type = s->action[r][k].type;
        if (type == TR_ACTION_F) held += share->m_b;
        if (held > peak) peak = held;
        if (type == TR_ACTION_I) held -= share->m_b - share->m_w;
        if (type == TR_ACTION_W) held -= share->m_w;
        if (type == TR_ACTION_B) held -= share->m_b;
    }
    return peak / v;
}

meter meter_measure(const tr_schedule *s, const tr_stage_cost *share, double latency) {
    meter result = {0};
    size_t cells = (size_t)s->stages * (size_t)s->micro_batches, ranks = (size_t)s->ranks;
    double *ends = malloc(3 * cells * sizeof *ends), *times = calloc(2 * ranks, sizeof *times);
    int *next = calloc(ranks, sizeof *next);
    assert_true(ends && times && next);
    for (size_t k = 0; k < 3 * cells; k++) ends[k] = -1;
    meter_walk w = {.s = s,
                    .forward = ends,
                    .input = ends + cells,
                    .weight = ends + 2 * cells,
                    .next = next,
                    .now = times,
                    .first = times + ranks};
    bool progress = true;
    while (progress) {
        progress = false;
        for (int r = 0; r < s->ranks; r++)
            while (w.next[r] < s->count[r] && meter_step(&w, r, share, latency)) progress = true;
    }
    for (int r = 0; r < s->ranks; r++) {
        assert_int_equal(w.next[r], s->count[r]);
        double peak = meter_peak(s, r, share), span = w.now[r] - w.first[r];
        if (w.now[r] > result.makespan) result.makespan = w.now[r];
        if (span > result.span) result.span = span;
        if (peak > result.peak) result.peak = peak;
    }
    free(ends);
    free(times);
    free(next);
    return result;
}
