#include "pipeline/program/simulate.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "comm/landing.h"
#include "pipeline/program/pairs.h"
#include "pipeline/walk.h"

#include <stdio.h>
#include <stdlib.h>

/* When a message was sent, arrived and was taken, and how long it moves. */
typedef struct sim_message {
    double sent, arrival, taken, moves;
} sim_message;

/* One directed pair of ranks. */
typedef struct sim_channel {
    int sent, arrived, taken; /* messages so far */
    int capacity;
    sim_message *message; /* [capacity] */
} sim_channel;

typedef struct simulator {
    const tr_program_set *set;
    const tr_stage_cost *cost;
    tr_simulated_links links;
    tr_pairs pairs;
    sim_channel *channel; /* [pairs] */
    double *now;          /* [ranks] */
    int *in_flight;       /* [ranks] */
    double *link_free;    /* [ranks]: when the rank's last reduction or gather ends */
    double *copy_free[2]; /* [ranks]: its last OFFLOAD, and FETCH */
    tr_instr_time *last;  /* [stages]: of the last W or B so far */
    tr_simulation *result;
} simulator;

static sim_channel *channel_of(const simulator *sim, int from, int to) {
    return &sim->channel[tr_pairs_find(&sim->pairs, from, to)];
}

/* Lines a < b exchange messages between world ranks a * line + j and b * line + j. Two of these are
 * on different hosts when a host begins after the first rank of line a and up to the last of b. */
tr_link tr_simulated_link(const tr_simulated_links *l, int from, int to) {
    const int64_t a = tr_min_i64(from, to), b = tr_max_i64(from, to);
    const bool far = l->host > 0 && ((b + 1) * l->line - 1) / l->host > a * l->line / l->host;
    return far ? l->far : l->near;
}

static double link_time(tr_link link, size_t bytes) {
    return link.latency + link.per_byte * (double)bytes;
}

/* Lets every message arrive that can. */
static void advance(sim_channel *c) {
    while (c->arrived < c->sent && tr_landing_is_free(c->arrived, c->taken)) {
        const int k = c->arrived++;
        const int64_t before = tr_landing_before(k);
        double begin = c->message[k].sent;
        if (k > 0) begin = tr_max_f64(begin, c->message[k - 1].arrival);
        if (before >= 0) begin = tr_max_f64(begin, c->message[before].taken);
        c->message[k].arrival = begin + c->message[k].moves;
    }
}

/* Times a reduction from when its bucket is complete and the link is free, and a gather from when
 * the link is free. */
static void start_collective(simulator *sim, int rank, const tr_instr *instr, tr_instr_time *time) {
    const bool gathers = instr->action.type == TR_ACTION_GATHER_START;
    const tr_instr_time *last = &sim->last[instr->action.stage];
    double ready = time->start;
    if (instr->early) ready = last->start + instr->ready * (last->end - last->start);
    time->begin = time->complete = tr_max_f64(ready, sim->link_free[rank]);
    time->complete += gathers ? link_time(sim->links.gather, instr->gathered)
                              : link_time(sim->links.sum, instr->bytes);
    sim->link_free[rank] = time->complete;
}

/* Times the copies of an OFFLOAD or a FETCH. */
static void start_copies(simulator *sim, int rank, const tr_instr *instr, tr_instr_time *time) {
    double *free_at = &sim->copy_free[instr->action.type == TR_ACTION_FETCH][rank];
    time->begin = tr_max_f64(time->start, *free_at);
    time->complete = *free_at = time->begin + link_time(sim->links.copy, instr->bytes);
}

/* Returns when the reduction, gather or copies for which the instruction waits are complete. Each
 * wait is the next type after what it waits for. */
static double end_of(const simulator *sim, int rank, int at) {
    const tr_instr *instr = &sim->set->program[rank].instr[at];
    const tr_action_type start = (tr_action_type)(instr->action.type - 1);
    for (int k = at - 1; k >= 0; k--) {
        const tr_action *a = &sim->set->program[rank].instr[k].action;
        if (a->type == start && a->stage == instr->action.stage &&
            a->micro_batch == instr->action.micro_batch)
            return sim->result->instr[rank][k].complete;
    }
    return 0;
}

/* Returns what an F, I, W or B takes without waits. */
static double time_of(const tr_stage_cost *cost, tr_action_type type) {
    const double time[TR_COMPUTE_TYPES] = {[TR_ACTION_F] = cost->f,
                                           [TR_ACTION_I] = cost->i,
                                           [TR_ACTION_W] = cost->w,
                                           [TR_ACTION_B] = cost->i + cost->w};
    return time[type];
}

/* Returns when an action ends that begins now, and makes the GATHER_WAITs before it. */
static double end_of_action(simulator *sim, int rank, int at, double now) {
    const tr_program *program = &sim->set->program[rank];
    const tr_action a = program->instr[at].action;
    const double takes = time_of(&sim->cost[a.stage], a.type);
    double done = 0;
    for (int k = tr_program_waits(program, at); k < at; k++) {
        const tr_instr *wait = &program->instr[k];
        tr_instr_time *time = &sim->result->instr[rank][k];
        if (wait->action.type != TR_ACTION_GATHER_WAIT || wait->action.stage != a.stage) continue;
        time->start = now += (wait->ready - done) * takes;
        time->end = now = tr_max_f64(now, end_of(sim, rank, k));
        sim->result->exposed[rank] += time->end - time->start;
        done = wait->ready;
    }
    return now + (1 - done) * takes;
}

/* Notes that the rank's next instruction ran from `start` to `end`, and begins what it starts: a
 * collective or copies. */
static void note_run(simulator *sim, int rank, int at, double start, double end) {
    const tr_program *program = &sim->set->program[rank];
    const tr_instr *instr = &program->instr[at];
    const tr_action_type type = instr->action.type;
    const bool last = type == TR_ACTION_W || type == TR_ACTION_B;
    if (last || (program->forward_only && type == TR_ACTION_F)) sim->in_flight[rank]--;
    const double takes = instr->memory >= 0 ? time_of(&sim->cost[instr->action.stage], type) : 0;
    sim->result->time[rank].busy += takes;
    tr_instr_time *time = &sim->result->instr[rank][at];
    *time = (tr_instr_time){.start = start, .end = end};
    /* Sums start as if the action had waited for all gathers first. */
    if (last) sim->last[instr->action.stage] = (tr_instr_time){.start = end - takes, .end = end};
    if (type == TR_ACTION_REDUCE_START || type == TR_ACTION_GATHER_START)
        start_collective(sim, rank, instr, time);
    if (type == TR_ACTION_OFFLOAD || type == TR_ACTION_FETCH) start_copies(sim, rank, instr, time);
    sim->now[rank] = end;
}

/* Executes the rank's next instruction if it can run. */
static tr_status step(void *context, int rank, int at, int *done) {
    simulator *sim = context;
    const tr_instr *instr = &sim->set->program[rank].instr[at];
    const tr_action_type type = instr->action.type;
    double now = sim->now[rank], end = now;
    const tr_stage_cost *cost = instr->memory >= 0 ? &sim->cost[instr->action.stage] : NULL;
    sim_channel *c;
    if (cost) end = end_of_action(sim, rank, at, now);
    switch (type) {
    case TR_ACTION_F:
        sim->in_flight[rank]++;
        if (sim->in_flight[rank] > sim->result->in_flight[rank])
            sim->result->in_flight[rank] = sim->in_flight[rank];
        break;
    case TR_ACTION_SEND:
        c = channel_of(sim, rank, instr->peer);
        c->message[c->sent].moves =
            link_time(tr_simulated_link(&sim->links, rank, instr->peer), instr->bytes);
        c->message[c->sent++].sent = now;
        break;
    case TR_ACTION_RECV:
    case TR_ACTION_WAIT_SENT:
        c = type == TR_ACTION_RECV ? channel_of(sim, instr->peer, rank)
                                   : channel_of(sim, rank, instr->peer);
        advance(c);
        if (c->arrived <= instr->message) return TR_OK;
        end = tr_max_f64(now, c->message[instr->message].arrival);
        if (type == TR_ACTION_RECV) c->message[c->taken++].taken = end;
        break;
    case TR_ACTION_REDUCE_WAIT:
        end = tr_max_f64(now, end_of(sim, rank, at));
        sim->result->exposed[rank] += end - now;
        break;
    case TR_ACTION_OFFLOAD_WAIT:
    case TR_ACTION_FETCH_WAIT:
        end = tr_max_f64(now, end_of(sim, rank, at));
        sim->result->copying[rank] += end - now;
        break;
    default: break;
    }
    note_run(sim, rank, at, now, end);
    *done = 1;
    return TR_OK;
}

static int blocked(const void *context, int rank, int at, char *item, char *need) {
    const simulator *sim = context;
    const tr_instr *instr = &sim->set->program[rank].instr[at];
    tr_action_print(instr->action, item, TR_WALK_TEXT);
    (void)snprintf(need, TR_WALK_TEXT, "rank %d", instr->peer);
    return instr->peer;
}

static tr_status open_channels(simulator *sim) {
    TR_TRY(tr_pairs_of_programs(sim->set, &sim->pairs));
    TR_TRY(tr_calloc((size_t)sim->pairs.count, sizeof *sim->channel, &sim->channel));
    for (int r = 0; r < sim->set->ranks; r++)
        for (int k = 0; k < sim->set->program[r].count; k++) {
            const tr_instr *instr = &sim->set->program[r].instr[k];
            if (instr->action.type == TR_ACTION_SEND) channel_of(sim, r, instr->peer)->capacity++;
        }
    for (int c = 0; c < sim->pairs.count; c++) {
        sim_channel *channel = &sim->channel[c];
        if (!channel->capacity) continue;
        TR_TRY(tr_calloc((size_t)channel->capacity, sizeof *channel->message, &channel->message));
    }
    return TR_OK;
}

static void fill_result(const simulator *sim) {
    tr_simulation *result = sim->result;
    for (int r = 0; r < result->ranks; r++) {
        const tr_program *program = &sim->set->program[r];
        result->makespan = tr_max_f64(result->makespan, sim->now[r]);
        bool started = false;
        for (int k = 0; k < program->count; k++) {
            const tr_instr *instr = &program->instr[k];
            tr_instr_time *time = &result->instr[r][k];
            if (instr->memory >= 0) {
                if (!started) result->time[r].first = time->start;
                result->time[r].last = time->end;
                started = true;
            }
            if (instr->action.type == TR_ACTION_SEND)
                time->complete = channel_of(sim, r, instr->peer)->message[instr->message].arrival;
        }
    }
    tr_bubble_split(result->time, result->ranks, result->makespan);
}

static tr_status create_result(const tr_program_set *set, tr_simulation **out) {
    tr_simulation *s = NULL;
    tr_status status = TR_OK;
    size_t ranks = (size_t)set->ranks;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->ranks = set->ranks;
    TR_TRY_OUT(tr_calloc(ranks, sizeof *s->time, &s->time));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *s->in_flight, &s->in_flight));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *s->exposed, &s->exposed));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *s->copying, &s->copying));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *s->instr, &s->instr));
    for (size_t r = 0; r < ranks; r++)
        TR_TRY_OUT(tr_calloc((size_t)set->program[r].count, sizeof **s->instr, &s->instr[r]));
    *out = s;
    return TR_OK;
out:
    tr_simulation_destroy(s);
    return status;
}

tr_status tr_simulate(const tr_program_set *set, const tr_stage_cost *cost,
                      const tr_simulated_links *links, tr_simulation **out) {
    tr_status status = TR_OK;
    simulator sim = {.set = set, .cost = cost};
    if (links) sim.links = *links;
    tr_walk walk = {.name = "the program", .context = &sim, .step = step, .blocked = blocked};
    size_t ranks = (size_t)set->ranks;
    TR_TRY(create_result(set, &sim.result));
    TR_TRY_OUT(tr_walk_open(&walk, set->ranks, NULL));
    for (int r = 0; r < set->ranks; r++) walk.count[r] = set->program[r].count;
    TR_TRY_OUT(tr_calloc(ranks, sizeof *sim.now, &sim.now));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *sim.in_flight, &sim.in_flight));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *sim.link_free, &sim.link_free));
    for (int k = 0; k < 2; k++)
        TR_TRY_OUT(tr_calloc(ranks, sizeof *sim.copy_free[k], &sim.copy_free[k]));
    TR_TRY_OUT(tr_calloc((size_t)set->program[0].stages, sizeof *sim.last, &sim.last));
    TR_TRY_OUT(open_channels(&sim));
    TR_TRY_OUT(tr_walk_run(&walk, NULL));
    /* Messages for which no rank waited get times, too. */
    for (int c = 0; c < sim.pairs.count; c++) advance(&sim.channel[c]);
    fill_result(&sim);
    *out = sim.result;
    sim.result = NULL;
out:
    for (int c = 0; sim.channel && c < sim.pairs.count; c++) free(sim.channel[c].message);
    free(sim.channel);
    tr_pairs_close(&sim.pairs);
    free(sim.last);
    free(sim.link_free);
    for (int k = 0; k < 2; k++) free(sim.copy_free[k]);
    free(sim.in_flight);
    free(sim.now);
    tr_walk_close(&walk);
    tr_simulation_destroy(sim.result);
    return status;
}

void tr_simulation_destroy(tr_simulation *s) {
    if (!s) return;
    for (int r = 0; s->instr && r < s->ranks; r++) free(s->instr[r]);
    free(s->instr);
    free(s->exposed);
    free(s->copying);
    free(s->in_flight);
    free(s->time);
    free(s);
}
