#include "pipeline/generate_pull.h"

#include "base/memory.h"
#include "pipeline/estimate.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW = 48, MOST_PASSES = 64, PULL_BUDGET = 5000000 };

typedef struct puller {
    tr_schedule *s;
    const tr_schedule_request *request;
    double cap;
    tr_estimate *times;
    double *held; /* [actions of the longest rank]: before each action of the rank in work */
} puller;

/* What the action's start takes and its end gives back. */
static double taken(const puller *p, tr_action a) {
    return a.type == TR_ACTION_F ? p->request->memory.mb * p->s->ranks / p->s->stages : 0;
}

static double given_back(const puller *p, tr_action a) {
    const tr_schedule_memory *memory = &p->request->memory;
    double share = (double)p->s->ranks / p->s->stages;
    if (a.type == TR_ACTION_I) return (memory->mb - memory->mw) * share;
    if (a.type == TR_ACTION_W) return memory->mw * share;
    return a.type == TR_ACTION_B ? memory->mb * share : 0;
}

static void find_held(const puller *p, int r) {
    double held = 0;
    for (int k = 0; k < p->s->count[r]; k++) {
        p->held[k] = held;
        held += taken(p, p->s->action[r][k]) - given_back(p, p->s->action[r][k]);
    }
}

static double transfer(const puller *p, int a, int b) {
    return p->s->rank_of[a] == p->s->rank_of[b] ? 0 : p->request->costs.c;
}

/* When the inputs from other actions are there. */
static double ready_at(const puller *p, tr_action a) {
    int m = p->s->micro_batches, other = a.type == TR_ACTION_F ? a.stage - 1 : a.stage + 1;
    size_t own = (size_t)a.stage * (size_t)m + (size_t)a.micro_batch;
    const double *done = a.type == TR_ACTION_F ? p->times->done_f : p->times->done_i;
    double ready = 0;
    if (a.type == TR_ACTION_W) return p->times->done_i[own];
    if (a.type != TR_ACTION_F) ready = p->times->done_f[own];
    if (other < 0 || other >= p->s->stages) return ready;
    double arrival =
        done[(size_t)other * (size_t)m + (size_t)a.micro_batch] + transfer(p, other, a.stage);
    return arrival > ready ? arrival : ready;
}

/* True when action k of the rank may stand at `at`: nothing between belongs before it, and what it
 * takes earlier fits. */
static bool may_move(const puller *p, int r, int k, int at) {
    const tr_action *action = p->s->action[r];
    tr_action a = action[k];
    double more = taken(p, a);
    for (int j = at; j < k; j++) {
        if (action[j].stage == a.stage &&
            (action[j].type == a.type || action[j].micro_batch == a.micro_batch))
            return false;
        double held = p->held[j] + more + taken(p, action[j]);
        if (more > 0 && p->cap > 0 && held > p->cap * (1 + 1e-9)) return false;
    }
    return true;
}

/* One pass over a rank; true when something was moved. */
static bool pull_rank(puller *p, int r) {
    tr_action *action = p->s->action[r];
    const double *start = p->times->start[r];
    bool moved = false;
    double end = 0;
    find_held(p, r);
    for (int at = 0; at < p->s->count[r] && !moved; at++) {
        double idle = start[at] - end;
        int last = at + WINDOW < p->s->count[r] ? at + WINDOW : p->s->count[r] - 1;
        for (int k = at + 1; k <= last && !moved && idle > 1e-9 * start[at]; k++) {
            tr_action a = action[k];
            double from = ready_at(p, a), length = tr_estimate_duration(p->times, a);
            if (from < end) from = end;
            if (from + length > start[at] * (1 + 1e-12) || !may_move(p, r, k, at)) continue;
            memmove(&action[at + 1], &action[at], (size_t)(k - at) * sizeof a);
            action[at] = a;
            moved = true;
        }
        end = start[at] + tr_estimate_duration(p->times, action[at]);
    }
    return moved;
}

static tr_status measure(puller *p) {
    tr_estimate_options options = {
        .costs = p->request->costs, .memory = p->request->memory, .times = true};
    tr_estimate_destroy(p->times);
    p->times = NULL;
    return tr_estimate_order(p->s, &options, &p->times);
}

tr_status tr_generate_pull(tr_schedule *s, const tr_schedule_request *request, double cap) {
    tr_status status = TR_OK;
    puller p = {.s = s, .request = request, .cap = cap};
    int longest = 0;
    for (int r = 0; r < s->ranks; r++)
        if (s->count[r] > longest) longest = s->count[r];
    TR_TRY_OUT(tr_calloc((size_t)longest, sizeof *p.held, &p.held));
    TR_TRY_OUT(measure(&p));
    bool moved = true;
    for (int pass = 0; pass < MOST_PASSES && moved; pass++) {
        moved = false;
        for (int r = 0; r < s->ranks; r++) {
            if (!pull_rank(&p, r)) continue;
            moved = true;
            /* A move delays nothing, so in large orders those of several ranks go together. */
            if (pass * (double)s->ranks * (double)longest * s->ranks > PULL_BUDGET) continue;
            TR_TRY_OUT(measure(&p));
        }
        if (moved) TR_TRY_OUT(measure(&p));
    }
out:
    tr_estimate_destroy(p.times);
    free(p.held);
    return status;
}

/* --- swaps ------------------------------------------------------------------------------------ */

typedef struct score {
    double makespan, sum; /* sum: of all starts */
    bool fits;
} score;

static tr_status find_score(puller *p, score *out) {
    *out = (score){.fits = true};
    TR_TRY(measure(p));
    out->makespan = p->times->makespan;
    for (int r = 0; r < p->s->ranks; r++) {
        if (p->cap > 0 && p->times->peak[r] > p->cap * (1 + 1e-9)) out->fits = false;
        for (int k = 0; k < p->s->count[r]; k++) out->sum += p->times->start[r][k];
    }
    return TR_OK;
}

static bool is_better(const score *a, const score *b) {
    double same = 1e-9 * b->makespan;
    if (!a->fits || a->makespan > b->makespan + same) return false;
    return a->makespan < b->makespan - same || a->sum < b->sum * (1 - 1e-9);
}

static void swap(tr_action *a, tr_action *b) {
    tr_action kept = *a;
    *a = *b;
    *b = kept;
}

/* One pass over all neighbours; *swapped: one swap at least was kept. */
static tr_status swap_once(puller *p, score *best, double *budget, bool *swapped) {
    double cost = 2.0 * p->s->stages * p->s->micro_batches;
    *swapped = false;
    for (int r = 0; r < p->s->ranks; r++)
        for (int k = 1; k < p->s->count[r] && *budget >= cost; k++) {
            tr_action *a = &p->s->action[r][k - 1], *b = &p->s->action[r][k];
            if (a->stage == b->stage && (a->type == b->type || a->micro_batch == b->micro_batch))
                continue;
            swap(a, b);
            score now;
            /* An order that does not run is no error here. */
            bool runs = find_score(p, &now) == TR_OK;
            *budget -= cost;
            if (runs && is_better(&now, best)) {
                *best = now;
                *swapped = true;
            } else {
                swap(a, b);
            }
        }
    return TR_OK;
}

tr_status tr_generate_swap(tr_schedule *s, const tr_schedule_request *request, double cap,
                           double budget) {
    puller p = {.s = s, .request = request, .cap = cap};
    score best;
    bool swapped = true;
    tr_status status = find_score(&p, &best);
    while (status == TR_OK && swapped) status = swap_once(&p, &best, &budget, &swapped);
    tr_estimate_destroy(p.times);
    return status;
}
