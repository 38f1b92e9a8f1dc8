/* Proves that an order can run: it is complete, each action is on its stage's rank and after its
 * inputs, and there is no deadlock. */
#pragma once

#include "pipeline/orders/schedule.h"

typedef struct tr_schedule_report {
    /* Every stage's W (or B) are in ascending micro-batch order, and so are the last stage's F,
     * which may contain its I and W (layers/layer.h). */
    bool sums_ascending;
    char note[256]; /* a line about sums in another order if they are not; else empty */
    /* After TR_ERR_CONFIG, the action at fault; at -1: the whole rank; rank -1: none. */
    int rank, at;
} tr_schedule_report;

/* Fails with TR_ERR_CONFIG when the rank's action at a place has an id out of range, is on a rank
 * that does not own its stage, or is not allowed in the schedule's kind. */
tr_status tr_schedule_check_action(const tr_schedule *schedule, int rank, int at);

/* Checks that every stage has each F, and each B or I and W, exactly once per micro-batch (only F
 * when forward_only); that ids are in range and actions stand on their stage's rank; and, by
 * executing the order with unlimited time, that every rank reaches its end, each action after those
 * that it needs (tr_action_need). A listed order must also have every transfer between ranks once,
 * after its data are computed, and REDUCE after the stage's last W. A send does not block its
 * sender and every channel is first in, first out, so a blocked order has a cycle, which the
 * message names. tr_lower proves waits for sent buffers.
 *
 * table: the edges; NULL for the chain 0 -> 1 -> ... Fails with TR_ERR_CONFIG and the reason.
 * report may be NULL. */
tr_status tr_schedule_check(const tr_schedule *schedule, const tr_stage_table *table,
                            tr_schedule_report *report);
