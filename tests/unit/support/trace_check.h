/* Checks that a text is a trace that Chrome and Perfetto can show: JSON, no overlaps on a track,
 * arrows in pairs that lead forward in time from a slice of one process to a slice of another. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct trace_facts {
    int slices, arrows, processes;
} trace_facts;

typedef struct trace_slice {
    double pid, tid, ts, end;
} trace_slice;

/* Returns NULL when the trace is valid, otherwise the fault. */
const char *trace_fault(const char *text, trace_facts *facts);
