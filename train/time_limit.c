#include "train/time_limit.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A low estimate: a network file system to which several ranks write. */
static const double bytes_per_s = 100e6;
/* For the last records and the end of the processes. */
static const double leave_s = 1;

tr_status tr_time_limit_parse(const char *text, double *seconds) {
    static const char units[] = "hms";
    static const double unit_s[] = {3600, 60, 1};
    const char *at = text, *from = units; /* each unit occurs at most once, larger units first */
    double sum = 0;
    while (isdigit((unsigned char)*at)) {
        char *end;
        errno = 0;
        long long n = strtoll(at, &end, 10);
        const char *unit = *end ? strchr(from, *end) : NULL;
        bool plain = !*end && at == text;
        if (errno || (!unit && !plain)) break;
        sum += (double)n * (plain ? 1 : unit_s[unit - units]);
        if (unit) from = unit + 1;
        at = plain ? end : end + 1;
    }
    *seconds = sum;
    if (!*at && sum > 0) return TR_OK;
    return TR_FAIL(TR_ERR_USAGE,
                   "--time-limit takes a duration such as 90, 5s, 30m or 1h30m, not '%s'", text);
}

void tr_time_limit_open(double end_s, double bytes, tr_time_limit *out) {
    *out = (tr_time_limit){.end_s = end_s, .save_s = bytes / bytes_per_s};
}

void tr_time_limit_took(double *estimate, double seconds) {
    *estimate = seconds > *estimate ? seconds : *estimate + 0.1 * (seconds - *estimate);
}

bool tr_time_limit_is_near(const tr_time_limit *limit, double now_s, const tr_time_need *need) {
    double seconds = limit->save_s * (1 + need->saves);
    for (int i = 0; i < 2; i++)
        seconds += need->examines[i] ? fmax(limit->step_s[0], limit->step_s[1]) : limit->step_s[0];
    /* 25% more, because durations vary. */
    return now_s + 1.25 * seconds + leave_s > limit->end_s;
}
