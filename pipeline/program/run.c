#include "pipeline/program/run.h"

#include "base/memory.h"
#include "comm/colour.h"
#include "comm/landing.h"
#include "pipeline/program/run_copies.h"

#include <stdlib.h>

/* --- links ------------------------------------------------------------------------------------ */

struct tr_links {
    int ranks;
    tr_channel **to, **from; /* [ranks], NULL without messages */
    tr_channel **opened;     /* [opened_count]: both kinds, in the order of opening */
    int opened_count;
};

/* Returns the bytes of the largest message from rank a to rank b; 0: none. */
static size_t largest_message(const tr_stage_table *t, const int *rank_of, int a, int b) {
    size_t largest = 0;
    for (int e = 0; e < t->edges; e++) {
        const tr_edge *edge = &t->edge[e];
        int from = rank_of[edge->from], to = rank_of[edge->to];
        bool crosses = (from == a && to == b) || (from == b && to == a);
        if (crosses && edge->bytes > largest) largest = edge->bytes;
    }
    return largest > 0 && t->message > largest ? t->message : largest;
}

typedef struct line_desc {
    tr_world *world;
    tr_device *device;
    const tr_stage_table *table;
    const int *rank_of, *line;
    int rank;
} line_desc;

/* Opens both channels with a peer. Both ends must open in the same order, because opening waits for
 * the other end: first the channel to the higher rank. */
static tr_status open_pair(tr_links *links, const line_desc *d, int peer) {
    size_t bytes = largest_message(d->table, d->rank_of, d->rank, peer);
    for (int turn = 0; turn < 2; turn++) {
        bool sending = (turn == 0) == (d->rank < peer);
        tr_channel **channel = sending ? &links->to[peer] : &links->from[peer];
        TR_TRY(tr_channel_open(d->world, d->device, d->line[peer], sending, bytes, channel));
        links->opened[links->opened_count++] = *channel;
    }
    return TR_OK;
}

/* Opens the channels colour by colour, pairs of one colour at the same time, because the ends of a
 * channel may wait for each other. */
static tr_status open_rounds(tr_links *links, const line_desc *d, int (*pair)[2], int *colour) {
    int edges = 0;
    for (int e = 0; e < d->table->edges; e++) {
        const tr_edge *edge = &d->table->edge[e];
        int from = d->rank_of[edge->from], to = d->rank_of[edge->to];
        if (from == to || edge->bytes == 0) continue;
        pair[edges][0] = from;
        pair[edges++][1] = to;
    }
    int colours = tr_colour_edges((const int(*)[2])pair, edges, colour);
    for (int c = 0; c < colours; c++)
        for (int e = 0; e < edges; e++) {
            if (colour[e] != c || (pair[e][0] != d->rank && pair[e][1] != d->rank)) continue;
            int peer = pair[e][0] == d->rank ? pair[e][1] : pair[e][0];
            /* A pair may have several edges. */
            if (!links->to[peer]) TR_TRY(open_pair(links, d, peer));
        }
    return TR_OK;
}

tr_status tr_links_open(tr_world *world, tr_device *device, const tr_stage_table *table,
                        const int *rank_of, const int *line, int ranks, int rank, tr_links **out) {
    tr_status status = TR_OK;
    tr_links *links = NULL;
    int(*pair)[2] = NULL, *colour = NULL;
    size_t edges = (size_t)table->edges + 1;
    const line_desc desc = {.world = world,
                            .device = device,
                            .table = table,
                            .rank_of = rank_of,
                            .line = line,
                            .rank = rank};
    TR_TRY_OUT(tr_calloc(1, sizeof *links, &links));
    links->ranks = ranks;
    TR_TRY_OUT(tr_calloc((size_t)ranks, sizeof(tr_channel *), &links->to));
    TR_TRY_OUT(tr_calloc((size_t)ranks, sizeof(tr_channel *), &links->from));
    TR_TRY_OUT(tr_calloc(2 * (size_t)ranks, sizeof(tr_channel *), &links->opened));
    TR_TRY_OUT(tr_calloc(edges, sizeof *pair, &pair));
    TR_TRY_OUT(tr_calloc(edges, sizeof *colour, &colour));
    TR_TRY_OUT(open_rounds(links, &desc, pair, colour));
out:
    free(pair);
    free(colour);
    if (status != TR_OK) tr_world_give_up(world, status);
    if (status != TR_OK) tr_links_close(links);
    else *out = links;
    return status;
}

/* Returns the rank at the other end of an edge of `rank`; -1: the edge is none of its, or both of
 * its ends are. */
static int other_end(const tr_edge *edge, const int *rank_of, int rank) {
    const int from = rank_of[edge->from], to = rank_of[edge->to];
    if (from == to || (from != rank && to != rank)) return -1;
    return from == rank ? to : from;
}

int tr_links_peer(const tr_stage_table *table, const int *rank_of, int rank, int edge) {
    const int peer = other_end(&table->edge[edge], rank_of, rank);
    for (int e = 0; e < edge && peer >= 0; e++)
        if (other_end(&table->edge[e], rank_of, rank) == peer) return -1;
    return peer;
}

size_t tr_links_bytes(const tr_stage_table *table, const int *rank_of, int rank) {
    size_t total = 0;
    for (int e = 0; e < table->edges; e++) {
        const int peer = tr_links_peer(table, rank_of, rank, e);
        if (peer >= 0) total += tr_landing_bytes(largest_message(table, rank_of, rank, peer));
    }
    return total;
}

void tr_links_close(tr_links *links) {
    if (!links) return;
    while (links->opened_count > 0) tr_channel_close(links->opened[--links->opened_count]);
    free(links->opened);
    free(links->to);
    free(links->from);
    free(links);
}

tr_channel *tr_links_to(const tr_links *links, int rank) {
    return links->to[rank];
}

tr_channel *tr_links_from(const tr_links *links, int rank) {
    return links->from[rank];
}

/* --- runner ----------------------------------------------------------------------------------- */

/* An instruction with resolved pointers. */
typedef struct run_op {
    const tr_instr *instr;
    tr_stage *stage;     /* F I W B */
    tr_stage_io io;      /* F I W B */
    tr_channel *channel; /* RECV, SEND, WAIT_SENT */
    void *at;            /* RECV, SEND, GATHER_START, GATHER_WAIT */
    int64_t *ticket;     /* SEND: its own; WAIT_SENT: its SEND's */
    /* An action: the first GATHER_WAIT that it makes, or else REDUCE_START that it starts; one of
     * these: the next one of the action. */
    struct run_op *within;
    bool ran; /* it has run within its action in this step */
    const tr_runner *runner;
    char name[32]; /* for profilers */
} run_op;

struct tr_runner {
    const tr_program *program;
    tr_run_hooks hooks;
    tr_device *device;
    tr_stream *stream;
    run_op *op;      /* [program->count] */
    int64_t *ticket; /* [program->count] */
    tr_links *links;
    size_t *sizes; /* [program->count]: of the messages from rank 0, then rank 1, ... */
    int *first;    /* [ranks + 1]: those from rank r are sizes[first[r]] .. sizes[first[r + 1]] */
    char **piece;  /* [program->pieces]: their addresses */
    tr_run_copies *copies; /* OFFLOADs and FETCHes; NULL: there are none */
    void **edge_data;      /* [memories][TR_PLACE_ROLES][edges] */
};

static tr_status resolve_action(tr_runner *runner, const tr_runner_options *options, run_op *op) {
    const tr_program *program = options->program;
    const tr_instr *instr = op->instr;
    const tr_action_memory *memory = &program->memory[instr->memory];
    char *arena = options->arena;
    op->stage = options->stages[instr->action.stage];
    if (!op->stage)
        return TR_FAIL(TR_ERR_INTERNAL, "stage %d is not on rank %d", instr->action.stage,
                       program->rank);
    size_t edges = (size_t)program->edges;
    void **data = &runner->edge_data[(size_t)instr->memory * TR_PLACE_ROLES * edges];
    for (int k = 0; k < memory->places; k++) {
        const tr_place *place = &program->place[memory->first_place + k];
        data[(size_t)place->role * edges + (size_t)place->edge] = arena + place->offset;
    }
    op->io = (tr_stage_io){.stream = runner->stream,
                           .micro_batch = instr->action.micro_batch,
                           .forward_only = program->forward_only,
                           .adds = instr->adds,
                           .in = data + TR_PLACE_IN * edges,
                           .out = data + TR_PLACE_OUT * edges,
                           .dout = data + TR_PLACE_DOUT * edges,
                           .din = data + TR_PLACE_DIN * edges};
    if (program->scratch_bytes) op->io.scratch = arena + program->scratch_offset;
    if (memory->backward != TR_NO_PLACE) op->io.backward = arena + memory->backward;
    if (memory->unkept != TR_NO_PLACE) op->io.unkept = arena + memory->unkept;
    op->io.piece = runner->piece + memory->first_piece;
    for (int k = memory->first_piece; k < memory->first_piece + memory->pieces; k++)
        if (program->piece[k] != TR_NO_PLACE) runner->piece[k] = arena + program->piece[k];
    return TR_OK;
}

static tr_status resolve_transfer(tr_runner *runner, const tr_runner_options *options, run_op *op) {
    const tr_instr *instr = op->instr;
    const tr_links *links = options->links;
    if (links)
        op->channel = instr->action.type == TR_ACTION_RECV ? links->from[instr->peer]
                                                           : links->to[instr->peer];
    if (!op->channel)
        return TR_FAIL(TR_ERR_INTERNAL, "rank %d has no channel with rank %d",
                       options->program->rank, instr->peer);
    op->at = (char *)options->arena + instr->offset;
    int send = instr->action.type == TR_ACTION_WAIT_SENT ? instr->send : (int)(op - runner->op);
    op->ticket = &runner->ticket[send];
    return TR_OK;
}

/* Lists the messages that other ranks send to this one in a run, in the order of taking. */
static tr_status list_messages(tr_runner *runner) {
    const tr_program *program = runner->program;
    TR_TRY(tr_calloc((size_t)program->ranks + 1, sizeof *runner->first, &runner->first));
    TR_TRY(tr_calloc((size_t)program->count, sizeof *runner->sizes, &runner->sizes));
    for (int k = 0; k < program->count; k++)
        if (program->instr[k].action.type == TR_ACTION_RECV)
            runner->first[program->instr[k].peer]++;
    for (int r = 0, end = 0; r <= program->ranks; r++) end = runner->first[r] += end;
    for (int k = program->count - 1; k >= 0; k--) /* backwards, from the ends to the beginnings */
        if (program->instr[k].action.type == TR_ACTION_RECV)
            runner->sizes[--runner->first[program->instr[k].peer]] = program->instr[k].bytes;
    return TR_OK;
}

/* Starts the sums of the buckets up to `bucket`, while the stage's last W or B (the context)
 * runs. */
static tr_status on_complete(void *context, int bucket) {
    const tr_run_hooks *hooks = &((run_op *)context)->runner->hooks;
    for (run_op *op = ((run_op *)context)->within; op; op = op->within) {
        const tr_action a = op->instr->action;
        if (a.type != TR_ACTION_REDUCE_START || a.micro_batch > bucket) continue;
        if (op->ran || !hooks->reduce_start) continue;
        op->ran = true;
        TR_TRY(hooks->reduce_start(hooks->context, a.stage, a.micro_batch));
    }
    return TR_OK;
}

enum { ALL_BUCKETS = -1 };

/* Waits for the gather of a bucket, while an action of the stage (the context) runs. */
static tr_status on_need(void *context, int bucket) {
    const tr_run_hooks *hooks = &((run_op *)context)->runner->hooks;
    for (run_op *op = ((run_op *)context)->within; op; op = op->within) {
        const tr_action a = op->instr->action;
        if (a.type != TR_ACTION_GATHER_WAIT || op->ran || !hooks->gather_wait) continue;
        if (bucket != ALL_BUCKETS && a.micro_batch != bucket) continue;
        op->ran = true;
        if (hooks->observe) hooks->observe(hooks->context, op->instr, true);
        TR_TRY(hooks->gather_wait(hooks->context, a.stage, a.micro_batch, op->at));
        if (hooks->observe) hooks->observe(hooks->context, op->instr, false);
    }
    return TR_OK;
}

/* Waits for the gathers that the stage has not asked for. */
static tr_status end_waits(run_op *action) {
    TR_TRY(on_need(action, ALL_BUCKETS));
    for (run_op *op = action->within; op; op = op->within)
        if (op->instr->action.type == TR_ACTION_GATHER_WAIT) op->ran = false;
    return TR_OK;
}

/* Returns the action within which a REDUCE_START or GATHER_WAIT runs: the W or B of its stage
 * before it, or the stage's next one. */
static run_op *action_of(run_op *op) {
    const int stage = op->instr->action.stage;
    const bool waits = op->instr->action.type == TR_ACTION_GATHER_WAIT;
    const int away = waits ? 1 : -1;
    for (run_op *to = op + away;; to += away) {
        const tr_action a = to->instr->action;
        if (a.stage != stage || !tr_action_computes(a)) continue;
        if (waits || a.type == TR_ACTION_W || a.type == TR_ACTION_B) return to;
    }
}

/* Links the REDUCE_STARTs that a W or B starts while it runs to it, and the GATHER_WAITs that an
 * action makes. */
static void link_within(tr_runner *runner) {
    for (int k = runner->program->count - 1; k >= 0; k--) {
        run_op *op = &runner->op[k];
        const bool starts = op->instr->action.type == TR_ACTION_REDUCE_START && op->instr->early;
        const bool waits = op->instr->action.type == TR_ACTION_GATHER_WAIT;
        if (!starts && !waits) continue;
        run_op *to = action_of(op);
        op->within = to->within;
        to->within = op;
        if (waits) to->io.need = on_need;
        else to->io.complete = on_complete;
        to->io.need_context = to->io.complete_context = to;
    }
}

tr_status tr_runner_create(const tr_runner_options *options, tr_runner **out) {
    tr_status status = TR_OK;
    const tr_program *program = options->program;
    tr_runner *runner = NULL;
    TR_TRY(tr_calloc(1, sizeof *runner, &runner));
    runner->program = program;
    runner->links = options->links;
    runner->hooks = options->hooks;
    runner->device = options->device;
    runner->stream = tr_device_compute(options->device);
    size_t count = (size_t)program->count;
    TR_TRY_OUT(tr_calloc(count, sizeof *runner->op, &runner->op));
    TR_TRY_OUT(tr_calloc(count, sizeof *runner->ticket, &runner->ticket));
    TR_TRY_OUT(tr_calloc((size_t)program->memories * TR_PLACE_ROLES * (size_t)program->edges,
                         sizeof(void *), &runner->edge_data));
    TR_TRY_OUT(tr_calloc((size_t)program->pieces, sizeof *runner->piece, &runner->piece));
    TR_TRY_OUT(list_messages(runner));
    for (int k = 0; k < program->count; k++) {
        run_op *op = &runner->op[k];
        op->instr = &program->instr[k];
        op->runner = runner;
        tr_action_print(op->instr->action, op->name, sizeof op->name);
        if (tr_action_computes(op->instr->action)) TR_TRY_OUT(resolve_action(runner, options, op));
        if (tr_action_transfers(op->instr->action))
            TR_TRY_OUT(resolve_transfer(runner, options, op));
        if (tr_action_gathers(op->instr->action))
            op->at = op->instr->offset == TR_NO_PLACE ? NULL
                                                      : (char *)options->arena + op->instr->offset;
    }
    link_within(runner);
    TR_TRY_OUT(tr_run_copies_create(options, &runner->copies));
    *out = runner;
    return TR_OK;
out:
    tr_runner_destroy(runner);
    return status;
}

void tr_runner_destroy(tr_runner *runner) {
    if (!runner) return;
    tr_run_copies_destroy(runner->copies);
    free(runner->sizes);
    free(runner->first);
    free(runner->edge_data);
    free(runner->piece);
    free(runner->ticket);
    free(runner->op);
    free(runner);
}

/* Computes an F, I, W or B. */
static tr_status compute(const tr_run_hooks *hooks, run_op *op) {
    const tr_stage_ops *ops = op->stage->ops;
    const tr_action *a = &op->instr->action;
    tr_status (*const function[TR_COMPUTE_TYPES])(tr_stage * stage, const tr_stage_io *io) = {
        [TR_ACTION_F] = ops->forward,
        [TR_ACTION_I] = ops->grad_input,
        [TR_ACTION_W] = ops->grad_weight,
        [TR_ACTION_B] = ops->backward};
    TR_TRY(function[a->type](op->stage, &op->io));
    TR_TRY(end_waits(op));
    if (a->type == TR_ACTION_I || op->io.adds || !hooks->first_gradients) return TR_OK;
    return hooks->first_gradients(hooks->context, a->stage, a->type == TR_ACTION_F);
}

static tr_status run(const tr_runner *runner, run_op *op) {
    const tr_run_hooks *hooks = &runner->hooks;
    const tr_action *a = &op->instr->action;
    const bool ran = op->ran;
    if (tr_action_computes(*a)) return compute(hooks, op);
    op->ran = false;
    switch (a->type) {
    case TR_ACTION_RECV:
        return tr_channel_take(op->channel, runner->stream, op->at, op->instr->bytes);
    case TR_ACTION_SEND:
        return tr_channel_send(op->channel, runner->stream, op->at, op->instr->bytes, op->ticket);
    case TR_ACTION_WAIT_SENT:
        /* Later work may overwrite the sent buffer. */
        return tr_channel_wait_sent(op->channel, runner->stream, *op->ticket);
    case TR_ACTION_REDUCE_START:
        if (ran || !hooks->reduce_start) return TR_OK;
        return hooks->reduce_start(hooks->context, a->stage, a->micro_batch);
    case TR_ACTION_REDUCE_WAIT:
        if (!hooks->reduce_wait) return TR_OK;
        return hooks->reduce_wait(hooks->context, a->stage, a->micro_batch);
    case TR_ACTION_GATHER_START:
        if (!hooks->gather_start) return TR_OK;
        return hooks->gather_start(hooks->context, a->stage, a->micro_batch, op->at);
    case TR_ACTION_OFFLOAD:
    case TR_ACTION_FETCH: return tr_run_copies_start(runner->copies, (int)(op - runner->op));
    case TR_ACTION_OFFLOAD_WAIT:
    case TR_ACTION_FETCH_WAIT: return tr_run_copies_wait(runner->copies, (int)(op - runner->op));
    case TR_ACTION_FINISH: return hooks->finish ? hooks->finish(hooks->context) : TR_OK;
    default: break;
    }
    return TR_FAIL(TR_ERR_INTERNAL, "a program has an instruction %s", op->name);
}

/* Announces all message sizes, so that receives can be posted before the takes. */
static tr_status expect_messages(const tr_runner *runner) {
    for (int r = 0; r < runner->program->ranks; r++) {
        int n = runner->first[r + 1] - runner->first[r];
        if (n > 0)
            TR_TRY(tr_channel_expect(runner->links->from[r], runner->sizes + runner->first[r], n));
    }
    return TR_OK;
}

tr_status tr_runner_step(tr_runner *runner) {
    const tr_run_hooks *hooks = &runner->hooks;
    TR_TRY(expect_messages(runner));
    for (int k = 0; k < runner->program->count; k++) {
        run_op *op = &runner->op[k];
        if (op->instr->action.type == TR_ACTION_GATHER_WAIT) continue; /* an action waits */
        if (hooks->observe) hooks->observe(hooks->context, op->instr, true);
        tr_device_mark(runner->device, op->name);
        tr_status status = run(runner, op);
        tr_device_mark(runner->device, NULL);
        TR_TRY(status);
        if (hooks->observe) hooks->observe(hooks->context, op->instr, false);
    }
    return TR_OK;
}
