/* Schedules by name or from a file. */
#pragma once

#include "pipeline/orders/generate.h"

/* True for the path of a CSV file: it ends in ".csv". */
bool tr_schedule_is_path(const char *name);

/* The order that request->name stands for: a name that tr_schedule_make knows, or a path, whose
 * file says where stages live. Where request->ranks, micro_batches and chunks are not 0, the file
 * must have as many rows, micro-batches and stages a rank: TR_ERR_CONFIG naming what differs. Other
 * errors as tr_csv_load, tr_csv_schedule and tr_schedule_make have them. */
tr_status tr_schedule_open(const tr_schedule_request *request, tr_schedule **out);
