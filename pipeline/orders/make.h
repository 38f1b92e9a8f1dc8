/* Schedules by name or from a file. */
#pragma once

#include "pipeline/orders/generate.h"

/* Returns true for the path of a CSV file, which ends in ".csv". */
bool tr_schedule_is_path(const char *name);

/* Makes the order. Any ranks >= 1, micro_batches >= 1 and, where the schedule has a choice, chunks
 * >= 1 are accepted; W ascends in every stage. Fails with TR_ERR_CONFIG on an unknown name, and on
 * a number of chunks that the schedule does not have. */
tr_status tr_schedule_make(const tr_schedule_request *request, tr_schedule **out);

/* Opens the order request->name: a name that tr_schedule_make knows, or the path of a file, which
 * also places the stages. If request->ranks, micro_batches and chunks are not 0, the file must have
 * as many rows, micro-batches and stages a rank; otherwise fails with TR_ERR_CONFIG. Also fails
 * like tr_schedule_load and tr_schedule_make. */
tr_status tr_schedule_open(const tr_schedule_request *request, tr_schedule **out);
