/* How long a rank waits for other ranks in its training steps. Measured where the host does the
 * waiting: on devices that compute there. */
#pragma once

#include "pipeline/program/lower.h"

/* In seconds. */
typedef struct tr_waits {
    double steps;     /* all of the steps; 0: not measured */
    double messages;  /* of other stages */
    double gradients; /* sums of gradients and gathers of values, until they are complete */
    double tensor;    /* sums over tensor ranks within actions */
} tr_waits;

typedef struct tr_waits_meter {
    tr_waits sum;
    bool on; /* a training step is running */
    double begin, tensor;
} tr_waits_meter;

/* Call it before (begins) and after every instruction, when the device has done it; there may be
 * waits between the two calls of an action. tensor_s: the seconds of waits for sums over tensor
 * ranks so far (tr_group_waited). */
void tr_waits_observe(tr_waits_meter *meter, const tr_instr *instr, bool begins, double tensor_s);
