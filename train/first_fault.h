/* Finds the first operator of a step that writes a value that is not finite (--debug-nan). */
#pragma once

#include "comm/comm.h"
#include "layers/part.h"

enum { TR_FAULT_TEXT = 384 };

typedef struct tr_first_fault {
    bool found;
    bool passed_on;    /* the operator has read such a value */
    bool reads_finite; /* of the operator in progress */
    int rank, micro_batch;
    tr_phase phase;
    char read[16], written[16]; /* names of the operands */
    char layer[TR_NAME_SIZE], op[32];
    tr_device *device;
    void *staging;        /* for tr_op_find_not_finite */
    tr_layer_probe probe; /* for the engine; calls with this object */
} tr_first_fault;

/* Makes an object that an engine on this device may call; it must not move. The caller closes it
 * before the device, also after a failure; an object of zeros may be closed. */
tr_status tr_first_fault_open(int rank, tr_device *device, tr_first_fault *out);
void tr_first_fault_close(tr_first_fault *fault);
/* Begins a step: nothing is found. */
void tr_first_fault_begin(tr_first_fault *fault);
/* Writes what the ranks have found in the step to text[TR_FAULT_TEXT] on every rank: of operators
 * that have read only finite values, else of all, the earliest in the order of micro-batches. ""
 * when no operator of a layer has written such a value. Collective. */
tr_status tr_first_fault_text(tr_world *world, const tr_first_fault *mine, char *text);
