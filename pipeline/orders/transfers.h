/* Orders with their transfers, as PyTorch lists them. */
#pragma once

#include "pipeline/orders/schedule.h"

/* The order of a schedule without transfers, with a SEND behind every action whose result another
 * rank needs and a RECV for it in that rank's list, when its last SEND has been listed: in rounds,
 * each rank in turn appends its next action once what it needs is listed, an I directly in front of
 * its W as a B. Stages on one rank exchange nothing. table: the edges; NULL for the chain. Fails as
 * tr_schedule_check. Release with tr_schedule_destroy. */
tr_status tr_schedule_list_transfers(const tr_schedule *schedule, const tr_stage_table *table,
                                     tr_schedule **out);
