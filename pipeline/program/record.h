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
    int32_t gradient, unused;   /* 0 or 1 */
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
    size_t enqueued;
    tr_record_note *note; /* [2 * capacity] */
} tr_record;

/* Makes room for `capacity` instructions; does not record further ones. */
tr_status tr_record_open(size_t capacity, tr_record **out);
void tr_record_close(tr_record *record);

/* Makes later instructions belong to `step`; -1: they are not recorded. */
void tr_record_step(tr_record *record, int32_t step);

/* A tr_run_hooks.observe with the record as context. On a host device an instruction is done when
 * this is called. */
void tr_record_observe(void *record, const tr_instr *instr, bool begin);
/* Does the same in stream order, for devices that work after a call has returned. Do not change the
 * step (tr_record_step) before the stream has been synchronised. */
void tr_record_enqueue(tr_record *record, tr_stream *stream, const tr_instr *instr, bool begin);
