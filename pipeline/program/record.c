#include "pipeline/program/record.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

size_t tr_record_entries(const tr_program *program) {
    size_t entries = (size_t)program->count;
    for (int k = 0; k < program->count; k++)
        entries += program->instr[k].action.type == TR_ACTION_GATHER_WAIT;
    return entries;
}

tr_status tr_record_open(size_t capacity, tr_record **out) {
    tr_record *r = NULL;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    *r = (tr_record){.step = -1, .capacity = capacity};
    tr_status status = tr_calloc(capacity, sizeof *r->entry, &r->entry);
    if (status == TR_OK) status = tr_calloc(2 * capacity, sizeof *r->note, &r->note);
    if (status != TR_OK) {
        tr_record_close(r);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = r;
    return TR_OK;
}

void tr_record_close(tr_record *r) {
    if (!r) return;
    free(r->entry);
    free(r->note);
    free(r);
}

void tr_record_step(tr_record *r, int32_t step) {
    r->step = step;
}

void tr_record_forget(tr_record *r, int32_t first) {
    while (r->count > 0 && r->entry[r->count - 1].step >= first) r->count--;
    r->enqueued = 0; /* the stream has called all notes */
}

/* Ends the entry that is being written. */
static void end_entry(tr_record *r) {
    if (r->count < r->capacity) r->entry[r->count++].end_ns = tr_now_ns();
}

/* Begins another part of the action before the last entry, which was a wait. */
static void go_on(tr_record *r) {
    if (r->count == r->capacity) return;
    tr_record_entry *entry = &r->entry[r->count];
    *entry = r->entry[r->count - 2];
    entry->goes_on = 1;
    entry->start_ns = tr_now_ns();
}

void tr_record_observe(void *record, const tr_instr *instr, bool begin) {
    tr_record *r = record;
    if (r->step < 0) return;
    if (!begin) {
        end_entry(r);
        if (--r->depth > 0) go_on(r);
        return;
    }
    if (r->depth++ > 0) end_entry(r); /* a part of an action */
    if (r->count == r->capacity) return;
    tr_record_entry *entry = &r->entry[r->count];
    const tr_action *a = &instr->action;
    bool transfer = tr_action_transfers(*a);
    *entry = (tr_record_entry){.step = r->step,
                               .kind = (int32_t)a->type,
                               .stage = a->stage,
                               .micro_batch = a->micro_batch,
                               .peer = transfer ? instr->peer : -1,
                               .message = transfer ? instr->message : -1,
                               .gradient = a->gradient,
                               .start_ns = tr_now_ns()};
}

static void take_note(void *argument) {
    const tr_record_note *note = argument;
    tr_record_observe(note->record, note->instr, note->begin);
}

void tr_record_enqueue(tr_record *r, tr_stream *stream, const tr_instr *instr, bool begin) {
    if (r->step < 0 || r->enqueued == 2 * r->capacity) return;
    tr_record_note *note = &r->note[r->enqueued++];
    *note = (tr_record_note){.record = r, .instr = instr, .begin = begin};
    (void)tr_stream_call(stream, take_note, note); /* the runner also sees a stream's failure */
}
