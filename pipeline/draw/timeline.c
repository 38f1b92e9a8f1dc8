#include "pipeline/draw/timeline.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

tr_status tr_timeline_create(const char *title, int ranks, int stages, int micro_batches,
                             double seconds, tr_timeline **out) {
    tr_timeline *t = NULL;
    TR_TRY(tr_calloc(1, sizeof *t, &t));
    (void)snprintf(t->title, sizeof t->title, "%s", title);
    t->ranks = ranks;
    t->stages = stages;
    t->micro_batches = micro_batches;
    t->seconds = seconds;
    tr_status status = tr_calloc((size_t)ranks, sizeof *t->time, &t->time);
    if (status != TR_OK) {
        tr_timeline_destroy(t);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = t;
    return TR_OK;
}

void tr_timeline_destroy(tr_timeline *t) {
    if (!t) return;
    free(t->event);
    free(t->step);
    free(t->time);
    free(t);
}

tr_status tr_timeline_add(tr_timeline *t, tr_event event) {
    TR_TRY(tr_grow(&t->event, &t->capacity, t->count + 1, sizeof *t->event));
    t->event[t->count++] = event;
    return TR_OK;
}

static bool is_action(const tr_event *event) {
    return (unsigned)event->kind < (unsigned)TR_ACTION_TYPES;
}

/* Index of the event's track among all tracks of all ranks. */
static size_t track_of(const tr_timeline *t, const tr_event *event) {
    size_t ranks = (size_t)t->ranks, first = (size_t)event->rank * (2 * ranks + 1);
    if (event->track == TR_TRACK_COMPUTE) return first;
    return first + 1 + 2 * (size_t)event->peer + (event->track == TR_TRACK_RECV ? 1 : 0);
}

/* Shortens events so that those of one track do not overlap. */
static tr_status separate(tr_timeline *t) {
    double *end = NULL;
    size_t ranks = (size_t)t->ranks;
    TR_TRY(tr_calloc(ranks * (2 * ranks + 1), sizeof *end, &end));
    for (size_t k = 0; k < t->count; k++) {
        tr_event *event = &t->event[k];
        double *last = &end[track_of(t, event)];
        if (event->start < *last) event->start = *last;
        if (event->end < event->start) event->end = event->start;
        *last = event->end;
    }
    free(end);
    return TR_OK;
}

/* Where the steps begin and end. */
static tr_status find_steps(tr_timeline *t, double least) {
    for (size_t k = 0; k < t->count; k++)
        if (t->event[k].step >= t->steps) t->steps = t->event[k].step + 1;
    if (!t->steps) t->steps = 1;
    TR_TRY(tr_calloc((size_t)t->steps, sizeof *t->step, &t->step));
    for (int s = 0; s < t->steps; s++) t->step[s] = (tr_timeline_step){INFINITY, 0};
    for (size_t k = 0; k < t->count; k++) {
        const tr_event *event = &t->event[k];
        tr_timeline_step *step = &t->step[event->step];
        if (!is_action(event)) continue;
        step->begin = fmin(step->begin, event->start);
        step->end = fmax(step->end, event->end);
    }
    t->step[t->steps - 1].end = fmax(t->step[t->steps - 1].end, least);
    for (int s = 0; s < t->steps; s++) {
        if (!isfinite(t->step[s].begin)) t->step[s].begin = s + 1 < t->steps ? t->step[s].end : 0;
        t->makespan = fmax(t->makespan, t->step[s].end);
        t->span += t->step[s].end - t->step[s].begin;
    }
    return TR_OK;
}

/* Adds the parts of one step, `of` [ranks] with first, last and busy, to the sums. */
static void add_step(tr_timeline *t, tr_rank_time *of, double length) {
    tr_bubble_split(of, t->ranks, length);
    for (int r = 0; r < t->ranks; r++) {
        tr_rank_time *sum = &t->time[r];
        sum->busy += of[r].busy;
        sum->span += of[r].span;
        sum->fill += of[r].fill;
        sum->drain += of[r].drain;
        sum->waiting += of[r].waiting;
        sum->imbalance += of[r].imbalance;
    }
}

tr_status tr_timeline_finish(tr_timeline *t, double least) {
    tr_rank_time *of = NULL; /* [steps][ranks], from the step's begin */
    size_t ranks = (size_t)t->ranks;
    TR_TRY(separate(t));
    TR_TRY(find_steps(t, least));
    TR_TRY(tr_calloc((size_t)t->steps * ranks, sizeof *of, &of));
    for (size_t k = 0; k < t->count; k++) {
        const tr_event *event = &t->event[k];
        tr_rank_time *time = &of[(size_t)event->step * ranks + (size_t)event->rank];
        double begin = t->step[event->step].begin, start = event->start - begin;
        if (!is_action(event)) continue;
        if (time->busy <= 0 || start < time->first) time->first = start;
        time->last = fmax(time->last, event->end - begin);
        time->busy += event->end - event->start;
    }
    for (int s = 0; s < t->steps; s++)
        add_step(t, of + (size_t)s * ranks, t->step[s].end - t->step[s].begin);
    free(of);
    return TR_OK;
}

/* --- from an order ---------------------------------------------------------------------------- */

/* A transfer of the chain that an action sends or needs. */
typedef struct hop {
    int from, to; /* stages */
    bool gradient;
} hop;

/* What the action sends (or needs, `inward`) over the chain; false: nothing from another rank. */
static bool find_hop(const tr_schedule *s, tr_action a, bool inward, hop *h) {
    if (a.type == TR_ACTION_W) return false;
    h->gradient = a.type != TR_ACTION_F;
    int step = h->gradient ? -1 : 1;
    h->from = inward ? a.stage - step : a.stage;
    h->to = h->from + step;
    return h->from >= 0 && h->to >= 0 && h->from < s->stages && h->to < s->stages &&
           s->rank_of[h->from] != s->rank_of[h->to];
}

typedef struct order_events {
    const tr_schedule *s;
    const tr_estimate *e;
    tr_timeline *t;
    int *number; /* [2 * stages * micro_batches]: of the message that the F, then I, sends */
    int *sent;   /* [ranks * ranks] */
} order_events;

static int *number_of(const order_events *x, hop h, int micro_batch) {
    size_t row = (size_t)h.from + (h.gradient ? (size_t)x->s->stages : 0);
    return &x->number[row * (size_t)x->s->micro_batches + (size_t)micro_batch];
}

/* When what the action sends leaves. */
static double leaves(const order_events *x, hop h, int micro_batch) {
    size_t cell = (size_t)h.from * (size_t)x->s->micro_batches + (size_t)micro_batch;
    return h.gradient ? x->e->done_i[cell] : x->e->done_f[cell];
}

static tr_status add_sends(order_events *x, int rank) {
    hop h;
    for (int k = 0; k < x->s->count[rank]; k++) {
        tr_action a = x->s->action[rank][k];
        if (!find_hop(x->s, a, false, &h)) continue;
        int peer = x->s->rank_of[h.to];
        int *number = number_of(x, h, a.micro_batch);
        *number = x->sent[(size_t)rank * (size_t)x->s->ranks + (size_t)peer]++;
        double start = leaves(x, h, a.micro_batch);
        TR_TRY(tr_timeline_add(x->t, (tr_event){.rank = rank,
                                                .track = TR_TRACK_SEND,
                                                .kind = TR_INSTR_SEND,
                                                .stage = a.stage,
                                                .micro_batch = a.micro_batch,
                                                .peer = peer,
                                                .message = *number,
                                                .gradient = h.gradient,
                                                .start = start,
                                                .end = start + x->e->latency}));
    }
    return TR_OK;
}

static tr_status add_actions(order_events *x, int rank) {
    hop h;
    double free_at = 0;
    for (int k = 0; k < x->s->count[rank]; k++) {
        tr_action a = x->s->action[rank][k];
        double start = x->e->start[rank][k], end = start + tr_estimate_duration(x->e, a);
        if (find_hop(x->s, a, true, &h)) {
            double arrival = leaves(x, h, a.micro_batch) + x->e->latency;
            TR_TRY(tr_timeline_add(x->t, (tr_event){.rank = rank,
                                                    .track = TR_TRACK_RECV,
                                                    .kind = TR_INSTR_RECV,
                                                    .stage = a.stage,
                                                    .micro_batch = a.micro_batch,
                                                    .peer = x->s->rank_of[h.from],
                                                    .message = *number_of(x, h, a.micro_batch),
                                                    .gradient = h.gradient,
                                                    .start = free_at,
                                                    .end = arrival > free_at ? arrival : free_at}));
        }
        TR_TRY(tr_timeline_add(x->t, (tr_event){.rank = rank,
                                                .kind = (tr_instr_kind)a.type,
                                                .stage = a.stage,
                                                .micro_batch = a.micro_batch,
                                                .peer = -1,
                                                .message = -1,
                                                .start = start,
                                                .end = end}));
        /* The second of a pair has its inputs when the first starts. */
        if (!a.overlap) free_at = end;
    }
    return TR_OK;
}

tr_status tr_timeline_of_estimate(const char *title, const tr_schedule *s, const tr_estimate *e,
                                  tr_timeline **out) {
    tr_status status = TR_OK;
    order_events x = {.s = s, .e = e};
    size_t cells = (size_t)s->stages * (size_t)s->micro_batches, ranks = (size_t)s->ranks;
    if (!e->start)
        return TR_FAIL(TR_ERR_INTERNAL, "a timeline needs an estimate with the times of actions");
    TR_TRY_OUT(tr_timeline_create(title, s->ranks, s->stages, s->micro_batches, 0, &x.t));
    TR_TRY_OUT(tr_calloc(2 * cells, sizeof *x.number, &x.number));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *x.sent, &x.sent));
    for (int r = 0; r < s->ranks; r++) TR_TRY_OUT(add_sends(&x, r));
    for (int r = 0; r < s->ranks; r++) TR_TRY_OUT(add_actions(&x, r));
    TR_TRY_OUT(tr_timeline_finish(x.t, e->makespan));
    *out = x.t;
    x.t = NULL;
out:
    free(x.sent);
    free(x.number);
    tr_timeline_destroy(x.t);
    return status;
}

/* --- from programs ---------------------------------------------------------------------------- */

static tr_status add_program(tr_timeline *t, const tr_program *program, const tr_simulation *sim) {
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        bool send = instr->kind == TR_INSTR_SEND, receive = instr->kind == TR_INSTR_RECV;
        /* Reductions, waits and the end take no simulated time of their own. */
        if (instr->memory < 0 && !send && !receive) continue;
        int rank = program->rank;
        tr_event event = {.rank = rank,
                          .track = send      ? TR_TRACK_SEND
                                   : receive ? TR_TRACK_RECV
                                             : TR_TRACK_COMPUTE,
                          .kind = instr->kind,
                          .stage = instr->stage,
                          .micro_batch = instr->micro_batch,
                          .peer = instr->memory < 0 ? instr->peer : -1,
                          .message = instr->memory < 0 ? instr->message : -1,
                          .gradient = instr->gradient,
                          .start = sim->start[rank][k],
                          .end = send ? sim->complete[rank][k] : sim->end[rank][k]};
        TR_TRY(tr_timeline_add(t, event));
    }
    return TR_OK;
}

tr_status tr_timeline_of_simulation(const char *title, const tr_program_set *set,
                                    const tr_simulation *sim, double seconds, tr_timeline **out) {
    tr_status status = TR_OK;
    tr_timeline *t = NULL;
    const tr_program *first = &set->program[0];
    TR_TRY(tr_timeline_create(title, set->ranks, first->stages, first->micro_batches, seconds, &t));
    for (int r = 0; r < set->ranks; r++) TR_TRY_OUT(add_program(t, &set->program[r], sim));
    TR_TRY_OUT(tr_timeline_finish(t, sim->makespan));
    *out = t;
    t = NULL;
out:
    tr_timeline_destroy(t);
    return status;
}
