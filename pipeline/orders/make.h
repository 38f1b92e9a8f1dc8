/* Schedules by name or from a file. */
#pragma once

#include "pipeline/orders/generate.h"

/* True for the path of a CSV file: it ends in ".csv". */
bool tr_schedule_is_path(const char *name);

/* Makes the order. Any ranks >= 1, micro_batches >= 1 and, where the schedule has a choice, chunks
 * >= 1 are accepted; W ascends in every stage. TR_ERR_CONFIG with the known names for an unknown
 * one, and for a number of chunks that the schedule does not have. */
tr_status tr_schedule_make(const tr_schedule_request *request, tr_schedule **out);

/* The same for a name and sizes alone; stages must be a multiple of ranks. */
tr_status tr_schedule_generate(const char *name, int ranks, int stages, int micro_batches,
                               tr_schedule **out);

/* The order that request->name stands for: a name that tr_schedule_make knows, or a path, whose
 * file says where stages live. Where request->ranks, micro_batches and chunks are not 0, the file
 * must have as many rows, micro-batches and stages a rank: TR_ERR_CONFIG naming what differs. Other
 * errors as tr_schedule_load and tr_schedule_make have them. */
tr_status tr_schedule_open(const tr_schedule_request *request, tr_schedule **out);
