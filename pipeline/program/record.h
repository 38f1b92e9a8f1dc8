/* What one rank did when: the runner's observer, writing into memory taken beforehand. */
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

/* One end of an instruction, on its way through a stream. */
typedef struct tr_record_note {
    struct tr_record *record;
    const tr_instr *instr;
    bool begin;
} tr_record_note;

typedef struct tr_record {
    int32_t step; /* -1: nothing is recorded now */
    size_t count, capacity;
    tr_record_entry *entry;
    size_t enqueued;
    tr_record_note *note; /* [2 * capacity] */
} tr_record;

/* Room for `capacity` instructions; those beyond are not recorded. */
tr_status tr_record_open(size_t capacity, tr_record **out);
void tr_record_close(tr_record *record);

/* What is observed from now on belongs to `step`; -1: is not recorded. */
void tr_record_step(tr_record *record, int32_t step);

/* tr_run_hooks.observe with the record as context. On a host device an instruction is done when it
 * ends here. */
void tr_record_observe(void *record, const tr_instr *instr, bool begin);
/* The same in the order of a stream, for devices whose work is not done when a call returns. The
 * step of tr_record_step stays until the stream has been waited for. */
void tr_record_enqueue(tr_record *record, tr_stream *stream, const tr_instr *instr, bool begin);
