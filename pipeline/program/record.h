/* Records one rank's instructions with times: the runner's observer, which writes to preallocated
 * memory. */
#pragma once

#include "device/device.h"
#include "pipeline/program/lower.h"

#include <stdint.h>

typedef struct tr_record_entry {
    int32_t step;               /* as given to tr_record_step */
    int32_t kind;               /* tr_action_type */
    int32_t stage, micro_batch; /* as in tr_action */
    int32_t peer, message;      /* RECV, SEND, WAIT_SENT; else -1 */
    int32_t gradient;           /* 0 or 1 */
    int32_t goes_on;            /* 1: a later part of an action that has waited */
    int64_t start_ns, end_ns;   /* CLOCK_MONOTONIC of this host */
} tr_record_entry;

/* The begin or end of an instruction, enqueued on a stream. */
typedef struct tr_record_note {
    struct tr_record *record;
    const tr_instr *instr;
    bool begin;
} tr_record_note;

typedef struct tr_record {
    int32_t step; /* -1: recording is off */
    size_t count, capacity;
    tr_record_entry *entry;
    int depth; /* instructions that have begun and not ended */
    size_t enqueued;
    tr_record_note *note; /* [2 * capacity] */
} tr_record;

/* Returns the entries of a run of the program: an action that waits for gathers is recorded in
 * parts. */
size_t tr_record_entries(const tr_program *program);
/* Makes room for `capacity` entries; does not record further ones. */
tr_status tr_record_open(size_t capacity, tr_record **out);
void tr_record_close(tr_record *record);

/* Makes later instructions belong to `step`; -1: they are not recorded. */
void tr_record_step(tr_record *record, int32_t step);

/* Removes the entries of `first` and later steps, which are taken again. The stream must have been
 * synchronised. */
void tr_record_forget(tr_record *record, int32_t first);

/* A tr_run_hooks.observe with the record as context. On a host device an instruction is done when
 * this is called. */
void tr_record_observe(void *record, const tr_instr *instr, bool begin);
/* Does the same in stream order, for devices that work after a call has returned. Do not change the
 * step (tr_record_step) before the stream has been synchronised. */
void tr_record_enqueue(tr_record *record, tr_stream *stream, const tr_instr *instr, bool begin);
