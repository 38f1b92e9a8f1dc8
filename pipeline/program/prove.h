/* Proof that programs end: rendezvous over one first in, first out channel for each directed pair
 * of ranks, and no buffer anywhere. What ends here ends with any number of buffers, and at any
 * speed: which rank waits for which does not depend on time.
 *
 * One pipeline line is enough. The other lines (data and tensor ranks) run the same programs and
 * meet in collectives of equal place: map every instruction of every line to its place in this
 * line's programs, and each wait between lines becomes a wait of this line, so a cycle among them
 * would be one here. */
#pragma once

#include "pipeline/program/lower.h"

/* TR_OK when all ranks reach their end: a SEND gives its message to the channel and goes on, a RECV
 * waits until its message is sent, a WAIT_SENT until it is taken; REDUCE of a stage is a collective
 * of the ranks that have it, FINISH (tied sums, norm, parameters: in one fixed order) one of all
 * ranks. TR_ERR_CONFIG, and the cycle in the message, when they do not; also when a channel's
 * messages are taken in another order than they are sent, or not all. */
tr_status tr_program_prove(const tr_program_set *set);
