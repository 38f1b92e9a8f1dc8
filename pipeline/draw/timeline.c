#include "pipeline/draw/timeline.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

tr_status tr_timeline_create(const char *title, int ranks, int stages, int micro_batches,
                             double seconds, tr_timeline **out) {
    tr_timeline *t = NULL;
    TR_TRY(tr_calloc(1, sizeof *t, &t));
    (void)snprintf(t->title, sizeof t->title, "%s", title);
    tr_utf8_repair(t->title); /* a name that is cut within a character, or that is not UTF-8 */
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
    free(t->bar);
    free(t->step);
    free(t->time);
    free(t);
}

tr_status tr_timeline_add(tr_timeline *t, tr_bar bar) {
    TR_TRY(tr_grow(&t->bar, &t->capacity, t->count + 1, sizeof *t->bar));
    t->bar[t->count++] = bar;
    return TR_OK;
}

/* Returns the index of the bar's track among all tracks of all ranks. */
static size_t track_of(const tr_timeline *t, const tr_bar *bar) {
    return (size_t)bar->rank * (size_t)tr_bar_tracks(t->ranks) + (size_t)tr_bar_track(bar);
}

/* Shortens bars so that those of one track do not overlap. */
static tr_status separate(tr_timeline *t) {
    double *end = NULL;
    TR_TRY(tr_calloc((size_t)t->ranks * (size_t)tr_bar_tracks(t->ranks), sizeof *end, &end));
    for (size_t k = 0; k < t->count; k++) {
        tr_bar *bar = &t->bar[k];
        double *last = &end[track_of(t, bar)];
        if (bar->start < *last) bar->start = *last;
        if (bar->end < bar->start) bar->end = bar->start;
        *last = bar->end;
    }
    free(end);
    return TR_OK;
}

/* Finds where the steps begin and end. */
static tr_status find_steps(tr_timeline *t, double least) {
    for (size_t k = 0; k < t->count; k++)
        if (t->bar[k].step >= t->steps) t->steps = t->bar[k].step + 1;
    if (!t->steps) t->steps = 1;
    TR_TRY(tr_calloc((size_t)t->steps, sizeof *t->step, &t->step));
    for (int s = 0; s < t->steps; s++) t->step[s] = (tr_timeline_step){INFINITY, 0};
    for (size_t k = 0; k < t->count; k++) {
        const tr_bar *bar = &t->bar[k];
        tr_timeline_step *step = &t->step[bar->step];
        if (!tr_action_computes(bar->action) && !tr_bar_awaits_ranks(bar)) continue;
        step->begin = fmin(step->begin, bar->start);
        step->end = fmax(step->end, bar->end);
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
        const tr_bar *bar = &t->bar[k];
        tr_rank_time *time = &of[(size_t)bar->step * ranks + (size_t)bar->rank];
        double begin = t->step[bar->step].begin, start = bar->start - begin;
        const bool computes = tr_action_computes(bar->action);
        if (!computes && bar->action.type != TR_ACTION_GATHER_WAIT) continue;
        if (time->last <= 0 || start < time->first) time->first = start;
        time->last = fmax(time->last, bar->end - begin);
        if (computes) time->busy += bar->end - bar->start;
    }
    for (int s = 0; s < t->steps; s++)
        add_step(t, of + (size_t)s * ranks, t->step[s].end - t->step[s].begin);
    free(of);
    return TR_OK;
}

/* --- from an order ---------------------------------------------------------------------------- */

typedef struct order_bars {
    const tr_schedule *s;
    const tr_estimate *e;
    tr_graph graph;
    tr_timeline *t;
    int *number[2]; /* F and I: [edges * micro_batches], of the message on its channel */
    int *sent;      /* [ranks * ranks] */
} order_bars;

/* Returns the bar of the message from F or I of stage `from` to stage `to`, from when it leaves to
 * its arrival, and its place in number. */
static tr_bar message_of(const order_bars *x, tr_action a, int from, int to, bool send,
                         int **number) {
    size_t micro_batches = (size_t)x->s->micro_batches, k = (size_t)a.micro_batch;
    a.gradient = a.type != TR_ACTION_F;
    a.type = send ? TR_ACTION_SEND : TR_ACTION_RECV;
    a.overlap = false;
    const double *done = a.gradient ? x->e->done_i : x->e->done_f;
    double leaves = done[(size_t)from * micro_batches + k];
    size_t edge = (size_t)tr_graph_edge(&x->graph, a.gradient, from, to);
    *number = &x->number[a.gradient][edge * micro_batches + k];
    return (tr_bar){.rank = x->s->rank_of[send ? from : to],
                    .track = send ? TR_TRACK_SEND : TR_TRACK_RECV,
                    .action = a,
                    .peer = x->s->rank_of[send ? to : from],
                    .start = leaves,
                    .end = leaves + x->e->latency};
}

/* Returns the k-th stage on another rank that the action sends to, or receives from; -1: there are
 * no more. */
static int find_peer(const order_bars *x, tr_action a, bool send, int *k) {
    int other;
    if (a.type == TR_ACTION_W || !tr_action_computes(a)) return -1;
    bool after = send == (a.type == TR_ACTION_F);
    while ((other = tr_graph_get(&x->graph, after, a.stage, (*k)++)) >= 0)
        if (x->s->rank_of[other] != x->s->rank_of[a.stage]) return other;
    return -1;
}

static tr_status add_sends(order_bars *x, int rank) {
    for (int n = 0; n < x->s->count[rank]; n++) {
        tr_action a = x->s->action[rank][n];
        for (int k = 0, to, *number; (to = find_peer(x, a, true, &k)) >= 0;) {
            tr_bar bar = message_of(x, a, a.stage, to, true, &number);
            bar.message = *number =
                x->sent[(size_t)rank * (size_t)x->s->ranks + (size_t)bar.peer]++;
            TR_TRY(tr_timeline_add(x->t, bar));
        }
    }
    return TR_OK;
}

static tr_status add_actions(order_bars *x, int rank) {
    double free_at = 0;
    for (int n = 0; n < x->s->count[rank]; n++) {
        tr_action a = x->s->action[rank][n];
        if (!tr_action_computes(a)) continue;
        double start = x->e->start[rank][n], end = start + tr_estimate_duration(x->e, a);
        for (int k = 0, from, *number; (from = find_peer(x, a, false, &k)) >= 0;) {
            tr_bar bar = message_of(x, a, from, a.stage, false, &number);
            bar.message = *number;
            bar.start = free_at;
            bar.end = fmax(bar.end, free_at);
            TR_TRY(tr_timeline_add(x->t, bar));
        }
        TR_TRY(tr_timeline_add(
            x->t,
            (tr_bar){
                .rank = rank, .action = a, .peer = -1, .message = -1, .start = start, .end = end}));
        /* The second of a pair has its inputs when the first starts. */
        if (!a.overlap) free_at = end;
    }
    return TR_OK;
}

tr_status tr_timeline_of_estimate(const char *title, const tr_schedule *s,
                                  const tr_stage_table *table, const tr_estimate *e,
                                  tr_timeline **out) {
    tr_status status = TR_OK;
    order_bars x = {.s = s, .e = e};
    size_t ranks = (size_t)s->ranks;
    if (!e->start)
        return TR_FAIL(TR_ERR_INTERNAL, "a timeline needs an estimate with the times of actions");
    TR_TRY_OUT(tr_graph_open(table, s->stages, &x.graph));
    TR_TRY_OUT(tr_timeline_create(title, s->ranks, s->stages, s->micro_batches, 0, &x.t));
    size_t messages = (size_t)x.graph.edges * (size_t)s->micro_batches;
    for (int k = 0; k < 2; k++) TR_TRY_OUT(tr_calloc(messages, sizeof(int), &x.number[k]));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *x.sent, &x.sent));
    for (int r = 0; r < s->ranks; r++) TR_TRY_OUT(add_sends(&x, r));
    for (int r = 0; r < s->ranks; r++) TR_TRY_OUT(add_actions(&x, r));
    TR_TRY_OUT(tr_timeline_finish(x.t, e->makespan));
    *out = x.t;
    x.t = NULL;
out:
    free(x.sent);
    free(x.number[0]);
    free(x.number[1]);
    tr_timeline_destroy(x.t);
    tr_graph_close(&x.graph);
    return status;
}

/* --- from programs ---------------------------------------------------------------------------- */

/* Adds an action in parts, with the waits for gathers between them that take time. */
static tr_status add_action(tr_timeline *t, const tr_program *program, const tr_instr_time *time,
                            int at) {
    const tr_instr *instr = &program->instr[at];
    tr_bar bar = {.rank = program->rank,
                  .action = instr->action,
                  .peer = -1,
                  .message = -1,
                  .start = time[at].start,
                  .end = time[at].end};
    for (int k = tr_program_waits(program, at); k < at; k++) {
        const tr_instr *wait = &program->instr[k];
        if (wait->action.type != TR_ACTION_GATHER_WAIT || wait->action.stage != instr->action.stage)
            continue;
        if (!(time[k].end > time[k].start)) continue;
        tr_bar part = bar, waits = bar;
        part.end = waits.start = time[k].start;
        bar.start = waits.end = time[k].end;
        waits.action = wait->action;
        if (part.end > part.start) TR_TRY(tr_timeline_add(t, part));
        TR_TRY(tr_timeline_add(t, waits));
    }
    return tr_timeline_add(t, bar);
}

static tr_status add_program(tr_timeline *t, const tr_program *program, const tr_simulation *sim) {
    for (int k = 0; k < program->count; k++) {
        const tr_instr *instr = &program->instr[k];
        const tr_instr_time *time = &sim->instr[program->rank][k];
        bool transfer = tr_action_transfers(instr->action);
        bool send = instr->action.type == TR_ACTION_SEND;
        bool reduce = instr->action.type == TR_ACTION_REDUCE_START ||
                      instr->action.type == TR_ACTION_GATHER_START;
        bool out = instr->action.type == TR_ACTION_OFFLOAD;
        bool back = instr->action.type == TR_ACTION_FETCH, moves = reduce || out || back;
        /* Waits for sends and the end take no simulated time. */
        if (instr->action.type == TR_ACTION_WAIT_SENT || instr->action.type == TR_ACTION_FINISH ||
            instr->action.type == TR_ACTION_GATHER_WAIT)
            continue;
        if (tr_action_computes(instr->action)) {
            TR_TRY(add_action(t, program, sim->instr[program->rank], k));
            continue;
        }
        if ((tr_action_reduces(instr->action) || tr_action_gathers(instr->action) ||
             tr_action_offloads(instr->action)) &&
            !(time->complete > time->begin) && !(time->end > time->start))
            continue;
        tr_bar bar = {.rank = program->rank,
                      .track = send       ? TR_TRACK_SEND
                               : reduce   ? TR_TRACK_REDUCE
                               : out      ? TR_TRACK_OUT
                               : back     ? TR_TRACK_BACK
                               : transfer ? TR_TRACK_RECV
                                          : TR_TRACK_COMPUTE,
                      .action = instr->action,
                      .peer = transfer ? instr->peer : -1,
                      .message = transfer ? instr->message : -1,
                      .start = moves ? time->begin : time->start,
                      .end = send || moves ? time->complete : time->end};
        TR_TRY(tr_timeline_add(t, bar));
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
