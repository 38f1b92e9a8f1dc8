/* Better orders from given ones. */
#pragma once

#include "pipeline/generate.h"

/* Moves actions that are ready into the idle time in front of others, as long as no rank holds more
 * than `cap` (0: any amount; in the unit of request->memory) and the makespan at the request's
 * costs gets no longer. Each kind stays in ascending order in its stage. */
tr_status tr_generate_pull(tr_schedule *s, const tr_schedule_request *request, double cap);

/* Swaps neighbours on a rank while that shortens the makespan, or lets actions start earlier at the
 * same makespan, under the cap. Ends after estimates of `budget` actions in all: 10^7 take some
 * tenths of a second. */
tr_status tr_generate_swap(tr_schedule *s, const tr_schedule_request *request, double cap,
                           double budget);
