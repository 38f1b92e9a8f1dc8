#include "base/json.h"
#include "base/memory.h"
#include "pipeline/draw/draw.h"

#include <math.h>
#include <stdlib.h>

typedef struct tracer {
    FILE *out;
    bool first;
    int timelines;
    double unit;    /* seconds of a unit that is not seconds */
    double *sent;   /* of one timeline: when each message left, by channel and number */
    size_t *base;   /* [ranks * ranks + 1]: where a channel's messages start in sent */
    long long flow; /* number of the timeline's first message among all timelines' */
} tracer;

void tr_bar_print(const tr_bar *bar, char *text, size_t size) {
    char action[32];
    tr_action_print(bar->action, action, sizeof action);
    if (bar->track < TR_TRACK_SEND) (void)snprintf(text, size, "%s", action);
    else
        (void)snprintf(text, size, "%s %s %d", action, bar->track == TR_TRACK_SEND ? "to" : "from",
                       bar->peer);
}

static void write_string(FILE *out, const char *text) {
    tr_json_write_string(out, text, strlen(text));
}

static void next(tracer *x) {
    (void)fputs(x->first ? "\n" : ",\n", x->out);
    x->first = false;
}

/* Returns the seconds as which a unit without seconds is drawn: 1e-3, or a power of 1000 with which
 * the longest of these timelines takes 1e-6 to 1e6. */
static double unit_of(const tr_timeline *const *timelines, int count) {
    double longest = 0, unit = 1e-3;
    for (int k = 0; k < count; k++)
        if (!(timelines[k]->seconds > 0)) longest = fmax(longest, timelines[k]->makespan);
    while (longest * unit > 1e6) unit /= 1000;
    while (longest > 0 && longest * unit < 1e-6) unit *= 1000;
    return unit;
}

/* Returns whole nanoseconds, so that equal ends and starts stay equal in the text. */
static long long ticks(const tracer *x, const tr_timeline *t, double time) {
    return llround(time * (t->seconds > 0 ? t->seconds : x->unit) * 1e9);
}

static void write_time(FILE *out, const char *key, long long nanoseconds) {
    (void)fprintf(out, ",\"%s\":%lld.%03lld", key, nanoseconds / 1000, nanoseconds % 1000);
}

static int process_of(const tracer *x, int rank, int index) {
    return rank * x->timelines + index;
}

static void write_name(tracer *x, int pid, int tid, const char *what, const char *name) {
    next(x);
    (void)fprintf(x->out,
                  "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what,
                  pid, tid);
    write_string(x->out, name);
    (void)fputs("}}", x->out);
}

/* Writes names of the processes, and of the tracks that have bars. */
static tr_status write_names(tracer *x, const tr_timeline *t, int index) {
    size_t tracks = (size_t)tr_bar_tracks(t->ranks);
    bool *named = NULL;
    char text[160];
    TR_TRY(tr_calloc((size_t)t->ranks * tracks, sizeof *named, &named));
    for (int r = 0; r < t->ranks; r++) {
        int pid = process_of(x, r, index);
        (void)snprintf(text, sizeof text, "rank %d: %s", r, t->title);
        write_name(x, pid, 0, "process_name", text);
        next(x);
        (void)fprintf(x->out,
                      "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
                      "\"args\":{\"sort_index\":%d}}",
                      pid, pid);
    }
    for (size_t k = 0; k < t->count; k++) {
        const tr_bar *bar = &t->bar[k];
        int tid = tr_bar_track(bar), pid = process_of(x, bar->rank, index);
        bool *done = &named[(size_t)bar->rank * tracks + (size_t)tid];
        if (*done) continue;
        *done = true;
        if (bar->track == TR_TRACK_COMPUTE) (void)snprintf(text, sizeof text, "compute");
        else if (bar->track == TR_TRACK_REDUCE) (void)snprintf(text, sizeof text, "reductions");
        else if (bar->track < TR_TRACK_SEND)
            (void)snprintf(text, sizeof text, "copies %s",
                           bar->track == TR_TRACK_OUT ? "to the host" : "from the host");
        else
            (void)snprintf(text, sizeof text, "%s rank %d",
                           bar->track == TR_TRACK_SEND ? "to" : "from", bar->peer);
        write_name(x, pid, tid, "thread_name", text);
    }
    free(named);
    return TR_OK;
}

static size_t channel_of(const tr_timeline *t, const tr_bar *bar) {
    bool send = bar->track == TR_TRACK_SEND;
    size_t from = (size_t)(send ? bar->rank : bar->peer);
    size_t to = (size_t)(send ? bar->peer : bar->rank);
    return from * (size_t)t->ranks + to;
}

/* Lists when messages left; NaN if only the receiver has the message. */
static tr_status list_messages(tracer *x, const tr_timeline *t) {
    size_t channels = (size_t)t->ranks * (size_t)t->ranks;
    TR_TRY(tr_calloc(channels + 1, sizeof *x->base, &x->base));
    for (size_t k = 0; k < t->count; k++) {
        const tr_bar *bar = &t->bar[k];
        if (bar->track < TR_TRACK_SEND) continue;
        size_t *most = &x->base[channel_of(t, bar) + 1];
        if ((size_t)bar->message + 1 > *most) *most = (size_t)bar->message + 1;
    }
    for (size_t c = 0; c < channels; c++) x->base[c + 1] += x->base[c];
    TR_TRY(tr_calloc(x->base[channels], sizeof *x->sent, &x->sent));
    for (size_t k = 0; k < x->base[channels]; k++) x->sent[k] = NAN;
    for (size_t k = 0; k < t->count; k++) {
        const tr_bar *bar = &t->bar[k];
        if (bar->track == TR_TRACK_SEND)
            x->sent[x->base[channel_of(t, bar)] + (size_t)bar->message] = bar->start;
    }
    return TR_OK;
}

/* Writes both ends of an arrow when it writes the RECV: s on the SEND; f on the RECV, at the first
 * moment after the message left. A SEND without a RECV gets no arrow. */
static void write_flow(tracer *x, const tr_timeline *t, const tr_bar *receive, int index) {
    size_t message = x->base[channel_of(t, receive)] + (size_t)receive->message;
    double left = x->sent[message];
    if (isnan(left)) return;
    tr_bar send = {.rank = receive->peer, .track = TR_TRACK_SEND, .peer = receive->rank};
    double at = fmin(fmax(left, receive->start), receive->end);
    const char *name = receive->action.gradient ? "gradient" : "activation";
    for (int end = 0; end < 2; end++) {
        const tr_bar *bar = end ? receive : &send;
        next(x);
        (void)fprintf(x->out,
                      "{\"name\":\"%s\",\"cat\":\"transfer\",\"ph\":\"%s\"%s,\"id\":%lld,"
                      "\"pid\":%d,\"tid\":%d",
                      name, end ? "f" : "s", end ? ",\"bp\":\"e\"" : "",
                      x->flow + (long long)message, process_of(x, bar->rank, index),
                      tr_bar_track(bar));
        write_time(x->out, "ts", ticks(x, t, end ? at : left));
        (void)fputc('}', x->out);
    }
    x->sent[message] = NAN;
}

static void write_bar(tracer *x, const tr_timeline *t, const tr_bar *bar, int index) {
    char text[96];
    tr_bar_print(bar, text, sizeof text);
    long long start = ticks(x, t, bar->start), end = ticks(x, t, bar->end);
    static const char *const category[] = {"compute", "reduce", "offload",
                                           "fetch",   "send",   "receive"};
    next(x);
    (void)fprintf(x->out, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d",
                  text, category[bar->track], process_of(x, bar->rank, index), tr_bar_track(bar));
    write_time(x->out, "ts", start);
    write_time(x->out, "dur", end - start);
    (void)fprintf(x->out, ",\"args\":{\"stage\":%d,\"micro_batch\":%d}}", bar->action.stage,
                  bar->action.micro_batch);
}

static tr_status write_timeline(tracer *x, const tr_timeline *t, int index) {
    TR_TRY(write_names(x, t, index));
    TR_TRY(list_messages(x, t));
    size_t messages = x->base[(size_t)t->ranks * (size_t)t->ranks];
    for (size_t k = 0; k < t->count; k++) {
        write_bar(x, t, &t->bar[k], index);
        if (t->bar[k].track == TR_TRACK_RECV) write_flow(x, t, &t->bar[k], index);
    }
    x->flow += (long long)messages;
    free(x->base);
    free(x->sent);
    x->base = NULL;
    x->sent = NULL;
    return TR_OK;
}

tr_status tr_draw_trace(const tr_timeline *const *timelines, int count, FILE *out) {
    tr_status status = TR_OK;
    tracer x = {.out = out,
                .first = true,
                .timelines = count,
                .unit = unit_of(timelines, count),
                .flow = 1};
    TR_TRY(tr_draw_check(timelines, count));
    (void)fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", out);
    for (int k = 0; k < count; k++) TR_TRY_OUT(write_timeline(&x, timelines[k], k));
    (void)fputs("\n]}\n", out);
out:
    free(x.base);
    free(x.sent);
    return status;
}
