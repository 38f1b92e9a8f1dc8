/* Lists the transfers of an order, like PyTorch. */
#pragma once

#include "pipeline/orders/schedule.h"

/* Adds transfers to the order of a schedule: a SEND after every action with an output for another
 * rank, and a RECV in that rank's list once the last of its SENDs is listed. In rounds, each rank
 * appends its next action once its inputs are listed; an I directly before its W becomes a B.
 * Stages on one rank exchange no messages. table: the edges; NULL for the chain. Fails like
 * tr_schedule_check. The caller releases *out with tr_schedule_destroy. */
tr_status tr_schedule_list_transfers(const tr_schedule *schedule, const tr_stage_table *table,
                                     tr_schedule **out);
