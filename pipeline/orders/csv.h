/* Schedules as CSV files, in the grammar of PyTorch's pipeline runtime, both of its forms:
 *
 *   compute_only   F, I, W, B and OVERLAP_F_B; empty cells are bubbles, and are not kept
 *   compute_comms  the same with SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD and REDUCE_GRAD
 * in the order in which a rank meets them; no empty cells
 *
 *   file := row (EOL row)*      row k is rank k; EOL is LF or CRLF
 *   row  := cell (',' cell)*    white space around a cell is not part of it
 *   cell := '' | action | '(' action ';' action ')OVERLAP_F_B'
 *   action := STAGE (F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B) MICRO_BATCH
 *           | STAGE (UNSHARD|RESHARD|REDUCE_GRAD)
 *
 * A cell must match entirely. B is I and W together. In older files B was the input gradient and BW
 * both; they are refused because of BW, since a B would be read as another action. A file is
 * compute_comms when it has an action that compute_only does not have. */
#pragma once

#include "pipeline/orders/schedule.h"

/* Reads a file of at most 1 GiB as an order of the chain of stages, and checks that it can run.
 * Fails like tr_input_load (with TR_ERR_DATA when the file is larger), and with TR_ERR_CONFIG
 * "file:line:column: sentence" on a cell that the grammar does not have, a stage on two ranks, and
 * any fault that tr_schedule_check finds. The caller releases *out with tr_schedule_destroy. */
tr_status tr_schedule_load(const char *path, tr_schedule **out);
/* Does the same with text (any bytes, at most 1 GiB); `source` names it in messages. */
tr_status tr_schedule_read(const char *text, size_t length, const char *source, tr_schedule **out);

/* Writes the schedule's text to *text (malloc'd; the caller frees it): a row for each rank, with LF
 * line ends, and only F, I, W and B unless `transfers`. */
tr_status tr_schedule_print(const tr_schedule *schedule, bool transfers, char **text);
