/* The time limit of a run: when it must stop so that its last save ends in time. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

typedef struct tr_time_limit {
    double end_s; /* of the steady clock; INFINITY: no limit */
    /* Seconds of a step without and with a validation or samples, and of a save; 0: not known. */
    double step_s[2], save_s;
} tr_time_limit;

/* Work that belongs to the next step and to the one after it. */
typedef struct tr_time_need {
    bool examines[2]; /* by validation or samples: the next step, the one after it */
    int saves;        /* that may be waited for between the two */
} tr_time_need;

/* Reads "90", "5s", "30m" or "1h30m" as seconds. Fails with TR_ERR_USAGE for other text and for
 * 0. */
tr_status tr_time_limit_parse(const char *text, double *seconds);
/* Starts a limit at end_s. bytes: size of a checkpoint, for the first estimate of a save's time. */
void tr_time_limit_open(double end_s, double bytes, tr_time_limit *out);
/* Updates an estimate with a measured duration: at once with a longer one, slowly with a
 * shorter. */
void tr_time_limit_took(double *estimate, double seconds);
/* Returns true when the next step must be the last, because another one and the save might not end
 * before the limit. */
bool tr_time_limit_is_near(const tr_time_limit *limit, double now_s, const tr_time_need *need);
