#include "support/trace_check.h"

static int trace_compare(const void *a, const void *b) {
    const trace_slice *x = a, *y = b;
    if (x->pid != y->pid) return x->pid < y->pid ? -1 : 1;
    if (x->tid != y->tid) return x->tid < y->tid ? -1 : 1;
    if (x->ts != y->ts) return x->ts < y->ts ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static double trace_number(const cJSON *event, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(event, key);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

static bool trace_in_slice(const trace_slice *x, int n, const trace_slice *flow) {
    for (int k = 0; k < n; k++)
        if (x[k].pid == flow->pid && x[k].tid == flow->tid && x[k].ts <= flow->ts + 1e-6 &&
            flow->ts <= x[k].end + 1e-6)
            return true;
    return false;
}

/* Collects the arrows' ends s[id] and f[id]; `end` marks those that exist. */
static const char *trace_arrows(const trace_slice *x, int n, const trace_slice *s,
                                const trace_slice *f, int ids, int *arrows) {
    for (int id = 0; id <= ids; id++) {
        if (s[id].end != f[id].end) return "an arrow lacks an end";
        if (s[id].end == 0) continue;
        ++*arrows;
        if (f[id].ts < s[id].ts) return "an arrow leads back in time";
        if (f[id].pid == s[id].pid) return "an arrow stays in its process";
        if (!trace_in_slice(x, n, &s[id]) || !trace_in_slice(x, n, &f[id]))
            return "an arrow does not end at a slice";
    }
    return NULL;
}

static const char *trace_events(const cJSON *events, trace_slice *x, trace_slice *s, trace_slice *f,
                                int total, trace_facts *facts) {
    const cJSON *event;
    cJSON_ArrayForEach(event, events) {
        const char *ph = cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph"));
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(event, "name"));
        trace_slice at = {.pid = trace_number(event, "pid"), .tid = trace_number(event, "tid")};
        if (!ph || !name || at.pid < 0 || at.tid < 0) return "an event lacks name, ph, pid or tid";
        facts->processes += !strcmp(name, "process_name");
        if (!strcmp(ph, "M")) continue;
        at.ts = trace_number(event, "ts");
        if (at.ts < 0) return "an event has no time";
        if (!strcmp(ph, "X")) {
            at.end = at.ts + trace_number(event, "dur");
            if (at.end < at.ts) return "a slice has no length";
            x[facts->slices++] = at;
            continue;
        }
        int id = (int)trace_number(event, "id");
        if (id < 0 || id > total) return "an arrow's number is out of range";
        trace_slice *end = !strcmp(ph, "s") ? &s[id] : &f[id];
        if ((end == &f[id] && strcmp(ph, "f") != 0) || end->end != 0)
            return "an event of an unknown kind, or an arrow's end that is there twice";
        at.end = 1;
        *end = at;
    }
    qsort(x, (size_t)facts->slices, sizeof *x, trace_compare);
    for (int k = 1; k < facts->slices; k++)
        if (x[k].pid == x[k - 1].pid && x[k].tid == x[k - 1].tid && x[k].ts < x[k - 1].end - 1e-6)
            return "slices overlap on a track";
    return trace_arrows(x, facts->slices, s, f, total, &facts->arrows);
}

const char *trace_fault(const char *text, trace_facts *facts) {
    *facts = (trace_facts){0};
    cJSON *root = cJSON_Parse(text);
    if (!root) return "not JSON";
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    int total = cJSON_GetArraySize(events);
    trace_slice *space = calloc(3 * ((size_t)total + 1), sizeof *space);
    const char *fault = "no memory";
    if (space)
        fault =
            trace_events(events, space, space + total + 1, space + 2 * (total + 1), total, facts);
    free(space);
    cJSON_Delete(root);
    return fault;
}
