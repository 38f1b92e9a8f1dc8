/* Proof that an order can run: complete, owned, in order of its data, and free of deadlock. */
#pragma once

#include "pipeline/orders/schedule.h"

typedef struct tr_schedule_report {
    /* Every stage's W (or B) ascend in micro-batch order, and so do the last stage's F, which may
     * contain its I and W (layers/layer.h). */
    bool sums_ascending;
    char note[256]; /* one line when they do not: sums have another order; else empty */
    int rank, at; /* after TR_ERR_CONFIG, the action it is about: at -1: the rank; rank -1: none */
} tr_schedule_report;

/* Fails with TR_ERR_CONFIG when the rank's action at a place has an id out of range, stands on a
 * rank that does not own its stage, or is none of the schedule's kind. */
tr_status tr_schedule_check_action(const tr_schedule *schedule, int rank, int at);

/* Checks that every stage has each F, and each B or I and W, exactly once per micro-batch (only F
 * when forward_only); that ids are in range and actions stand on their stage's rank; and, by
 * executing the order with unlimited time, that every rank reaches its end, each action after those
 * that it needs (tr_action_need). A listed order must also have every transfer between ranks once,
 * where the data is there, and REDUCE behind the stage's last W. A send never blocks its sender and
 * every channel is first in, first out, so a blocked order is a cycle, and the message names it.
 * Waits for sent buffers are proved by tr_lower.
 *
 * table: the edges; NULL for the chain 0 -> 1 -> ... TR_ERR_CONFIG with the reason. report may be
 * NULL. */
tr_status tr_schedule_check(const tr_schedule *schedule, const tr_stage_table *table,
                            tr_schedule_report *report);
