#include "pipeline/program/run_copies.h"

#include "base/memory.h"

#include <stdlib.h>

/* Of an instruction. */
typedef struct copy_events {
    tr_event *ready, *done; /* OFFLOAD, FETCH: its place may be used; its copies have ended */
    int start;              /* of a wait: the instruction that it waits for */
} copy_events;

struct tr_run_copies {
    const tr_program *program;
    tr_stream *compute, *out, *back;
    char *arena, *host;
    copy_events *of; /* [program->count] */
};

/* Finds the instruction for which the wait at k waits; each wait is the next type after it. */
static int start_of(const tr_program *program, int k) {
    const tr_action a = program->instr[k].action;
    int at = k - 1;
    while (at >= 0 && (program->instr[at].action.type != (tr_action_type)(a.type - 1) ||
                       program->instr[at].action.stage != a.stage ||
                       program->instr[at].action.micro_batch != a.micro_batch))
        at--;
    return at; /* the proof has found it */
}

static tr_status open_events(tr_run_copies *c, tr_device *device) {
    const tr_program *program = c->program;
    TR_TRY(tr_calloc((size_t)program->count, sizeof *c->of, &c->of));
    for (int k = 0; k < program->count; k++) {
        const tr_action_type type = program->instr[k].action.type;
        if (type == TR_ACTION_OFFLOAD || type == TR_ACTION_FETCH) {
            TR_TRY(tr_event_create(device, &c->of[k].ready));
            TR_TRY(tr_event_create(device, &c->of[k].done));
        }
        if (type == TR_ACTION_OFFLOAD_WAIT || type == TR_ACTION_FETCH_WAIT)
            c->of[k].start = start_of(program, k);
    }
    return TR_OK;
}

tr_status tr_run_copies_create(const tr_runner_options *options, tr_run_copies **out) {
    tr_status status = TR_OK;
    tr_run_copies *c;
    *out = NULL;
    if (options->program->copies == 0) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    c->program = options->program;
    c->compute = tr_device_compute(options->device);
    c->arena = options->arena;
    c->host = options->host;
    TR_TRY_OUT(tr_stream_create(options->device, &c->out));
    TR_TRY_OUT(tr_stream_create(options->device, &c->back));
    TR_TRY_OUT(open_events(c, options->device));
out:
    if (status != TR_OK) tr_run_copies_destroy(c);
    else *out = c;
    return status;
}

void tr_run_copies_destroy(tr_run_copies *c) {
    if (!c) return;
    tr_stream_destroy(c->out);
    tr_stream_destroy(c->back);
    for (int k = 0; c->of && k < c->program->count; k++) {
        tr_event_destroy(c->of[k].ready);
        tr_event_destroy(c->of[k].done);
    }
    free(c->of);
    free(c);
}

tr_status tr_run_copies_start(tr_run_copies *c, int k) {
    const tr_instr *instr = &c->program->instr[k];
    const bool out = instr->action.type == TR_ACTION_OFFLOAD;
    tr_stream *stream = out ? c->out : c->back;
    /* F has written what goes out; earlier work may still use the place into which it comes
     * back. */
    TR_TRY(tr_event_record(c->of[k].ready, c->compute));
    TR_TRY(tr_stream_wait(stream, c->of[k].ready));
    for (int i = instr->first_copy; i < instr->first_copy + instr->copies; i++) {
        const tr_program_copy *copy = &c->program->copy[i];
        char *place = c->arena + copy->offset, *host = c->host + copy->host;
        TR_TRY(tr_stream_copy(stream, out ? host : place, out ? place : host, copy->bytes));
    }
    return tr_event_record(c->of[k].done, stream);
}

tr_status tr_run_copies_wait(tr_run_copies *c, int k) {
    /* Later work overwrites the place that was copied out, or reads what has come back. */
    return tr_stream_wait(c->compute, c->of[c->of[k].start].done);
}
