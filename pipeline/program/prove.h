/* Proof that ranks which do their events in order all reach their end: rendezvous over one first
 * in, first out channel for each directed pair of ranks, and no buffer anywhere. What ends here
 * ends with any number of buffers, and at any speed: which rank waits for which does not depend on
 * time.
 *
 * One pipeline line is enough. Lines beside it (data and tensor ranks) run the same lists and meet
 * in collectives of equal place: map every event of every line to its place in this line's lists,
 * and each wait between lines becomes a wait of this line, so a cycle among them would be one here.
 */
#pragma once

#include "pipeline/program/lower.h"

typedef enum tr_event_kind {
    TR_EVENT_STEP, /* waits for nothing */
    TR_EVENT_SEND, /* gives message `number` to the channel to `peer`, and goes on */
    TR_EVENT_RECV, /* takes message `number` of the channel from `peer`: waits until it is sent */
    TR_EVENT_SENT, /* waits until `peer` has taken message `number` of the channel to it */
    TR_EVENT_MEET  /* collective `number`: waits until every rank that has it is there */
} tr_event_kind;

typedef struct tr_event {
    tr_event_kind kind;
    int peer;
    int number;
} tr_event;

/* The lists, made as they are asked for. */
typedef struct tr_event_lists {
    const char *name; /* in messages */
    int ranks;
    int meetings; /* numbers of MEET are 0 .. meetings - 1; a rank has each at most once */
    int (*count)(const void *context, int rank);
    tr_event (*event)(const void *context, int rank, int index);
    void (*print)(const void *context, int rank, int index, char *text, size_t size);
    const void *context;
} tr_event_lists;

/* TR_OK when all ranks reach their end. TR_ERR_CONFIG, and the cycle in the message, when they do
 * not; also when a channel's messages are taken in another order than they are sent, or not all. */
tr_status tr_prove_ends(const tr_event_lists *lists);

/* The same for lowered programs: REDUCE of a stage is a collective of its own, FINISH (tied sums,
 * norm, parameters: in one fixed order) one of all ranks. */
tr_status tr_program_prove(const tr_program_set *set);
