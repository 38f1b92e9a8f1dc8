#include "train/line.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- numbers ---------------------------------------------------------------------------------- */

static const char *format_rate(double per_s, char *buffer, size_t size) {
    static const char *const unit[] = {"", "k", "M", "G"};
    int u = 0;
    for (; per_s >= 999.95 && u < 3; u++) per_s /= 1000;
    (void)snprintf(buffer, size, "%.*f%s", u ? 1 : 0, per_s, unit[u]);
    return buffer;
}

static const char *format_eta(double seconds, char *buffer, size_t size) {
    if (!(seconds >= 0 && seconds < 3.6e8)) {
        (void)snprintf(buffer, size, "?");
    } else {
        int64_t s = (int64_t)ceil(seconds);
        (void)snprintf(buffer, size, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600,
                       s / 60 % 60, s % 60);
    }
    return buffer;
}

/* Writes estimated seconds: "12 s", "5 min", "2.5 h". */
static const char *format_about(double seconds, char *buffer, size_t size) {
    if (seconds < 99.5) (void)snprintf(buffer, size, "%.0f s", seconds);
    else if (seconds < 99.5 * 60) (void)snprintf(buffer, size, "%.0f min", seconds / 60);
    else (void)snprintf(buffer, size, "%.1f h", seconds / 3600);
    return buffer;
}

/* Returns a unit in which `bytes` has at most four digits before the point. */
static double unit_of(double bytes, const char **name) {
    bool large = bytes >= 10 * 1073741824.0;
    *name = large ? "GiB" : "MiB";
    return large ? 1073741824.0 : 1048576.0;
}

/* --- work in progress ------------------------------------------------------------------------- */

bool tr_activity_counts_bytes(tr_activity_phase phase) {
    return phase == TR_ACTIVITY_LOAD || phase == TR_ACTIVITY_SAVE;
}

static void add_name(const tr_activity *a, bool brief, char *text, size_t size) {
    static const char *const name[TR_ACTIVITY_PHASES] = {
        [TR_ACTIVITY_OPEN] = "opening the device and the data",
        [TR_ACTIVITY_SCHEDULE] = "searching the order of the micro-batches",
        [TR_ACTIVITY_PREPARE] = "preparing operators and memory",
        [TR_ACTIVITY_LOAD] = "loading the checkpoint",
        [TR_ACTIVITY_DRAW] = "drawing parameters",
        [TR_ACTIVITY_STEP] = "step",
        [TR_ACTIVITY_VALIDATE] = "validating",
        [TR_ACTIVITY_SAMPLE] = "sampling",
        [TR_ACTIVITY_SAVE] = "saving"};
    if (a->phase == TR_ACTIVITY_STEP && a->first) tr_text_add(text, size, "warming up: ");
    tr_text_add(text, size, "%s", name[a->phase] ? name[a->phase] : "");
    bool numbered = a->phase == TR_ACTIVITY_STEP || (a->phase == TR_ACTIVITY_SAVE && !brief);
    if (a->phase == TR_ACTIVITY_SAVE && !brief) tr_text_add(text, size, " step");
    if (numbered) tr_text_add(text, size, " %" PRId64, a->step);
}

/* Adds the progress: bytes and their rate, a micro-batch, or percent. */
static void add_amount(const tr_activity *a, bool brief, char *text, size_t size) {
    const char *of = brief ? "/" : " of ", *unit;
    if (a->phase == TR_ACTIVITY_STEP) {
        if (a->micro_batch < 0 || a->micro_batches <= 0) return;
        tr_text_add(text, size, ", micro-batch %" PRId64 "%s%" PRId64, a->micro_batch + 1, of,
                    a->micro_batches);
    } else if (tr_activity_counts_bytes(a->phase) && a->total > 0) {
        double scale = unit_of((double)a->total, &unit);
        int digits = a->total < 10 << 20 || scale > 1048576.0;
        tr_text_add(text, size, "%s %.*f%s%.*f %s", brief ? "" : ":", digits,
                    (double)a->done / scale, of, digits, (double)a->total / scale, unit);
        if (a->done <= 0 || a->seconds <= 0) return;
        double rate = (double)a->done / a->seconds;
        scale = unit_of(rate, &unit);
        tr_text_add(text, size, ", %.*f %s/s", rate < 10 * scale, rate / scale, unit);
    } else if (a->total > 0) {
        tr_text_add(text, size, "%s %.0f %%", brief ? "" : ":",
                    100 * (double)a->done / (double)a->total);
    }
}

/* Adds the time left at the rate so far; while that is not known, the time since the begin. */
static void add_time(const tr_activity *a, bool brief, char *text, size_t size) {
    char time[32];
    double share = a->total > 0 ? (double)a->done / (double)a->total : 0;
    if (a->phase == TR_ACTIVITY_SAVE && share >= 1) {
        tr_text_add(text, size, ", waiting for the disk");
    } else if (share >= 0.01 && share < 1 && a->seconds >= 0.5) {
        (void)format_about(a->seconds / share * (1 - share), time, sizeof time);
        tr_text_add(text, size, brief ? ", %s left" : ", about %s left", time);
    } else if (a->seconds >= 0.5) {
        tr_text_add(text, size, ", for %s", format_about(a->seconds, time, sizeof time));
    }
}

/* Writes the shortest form, for a narrow terminal: "step 3: 31 %", "saving: 31 %". */
static void describe_shortest(const tr_activity *a, char *text, size_t size) {
    add_name(a, true, text, size);
    if (a->total > 0)
        tr_text_add(text, size, ": %.0f %%", 100 * (double)a->done / (double)a->total);
}

static void describe(const tr_activity *a, bool brief, char *text, size_t size) {
    add_name(a, brief, text, size);
    add_amount(a, brief, text, size);
    add_time(a, brief, text, size);
}

const char *tr_line_activity(const tr_activity *activity, int columns, char *buffer) {
    buffer[0] = '\0';
    tr_text_add(buffer, TR_LINE_SIZE, "now      ");
    describe(activity, false, buffer, TR_LINE_SIZE);
    if (columns > 0 && strlen(buffer) > (size_t)columns) buffer[columns] = '\0';
    return buffer;
}

/* --- the line --------------------------------------------------------------------------------- */

/* In the order of the line. */
typedef enum field {
    STEP,
    LOSS,
    VAL,
    NORM,
    NOISE,
    LR,
    RATE,
    FLOPS,
    MEM,
    ETA,
    NOW,
    NOW_SHORT,
    FIELDS
} field;
static const field by_importance[FIELDS] = {LOSS, STEP,  ETA, NOW,  NOW_SHORT, RATE,
                                            VAL,  NOISE, MEM, NORM, FLOPS,     LR};

static void fill(const tr_progress_state *s, const tr_activity *activity,
                 char text[FIELDS][TR_LINE_SIZE / 3]) {
    const size_t size = TR_LINE_SIZE / 3;
    char number[32];
    bool large = s->memory_planned >= (size_t)1 << 30;
    double unit = large ? 1073741824.0 : 1048576.0;
    for (int f = 0; f < FIELDS; f++) text[f][0] = '\0';
    tr_text_add(text[STEP], size, "step %" PRId64 "/%" PRId64, s->step, s->steps);
    tr_text_add(text[LOSS], size, "loss %.4f", s->loss);
    if (!isnan(s->val_loss)) tr_text_add(text[VAL], size, "val %.4f", s->val_loss);
    tr_text_add(text[NORM], size, "gnorm %.3f", s->grad_norm);
    if (!isnan(s->noise_scale))
        tr_text_add(text[NOISE], size, "noise %s tok",
                    format_rate(s->noise_scale, number, sizeof number));
    tr_text_add(text[LR], size, "lr %.2e", s->lr);
    tr_text_add(text[RATE], size, "%s tok/s", format_rate(s->tokens_per_s, number, sizeof number));
    if (s->flops_per_s > 0) (void)tr_text_flop(s->flops_per_s, "FLOP/s", text[FLOPS], size);
    tr_text_add(text[MEM], size, "mem %.*f/%.*f %s", large ? 1 : 0, (double)s->memory / unit,
                large ? 1 : 0, (double)s->memory_planned / unit, large ? "GiB" : "MiB");
    tr_text_add(text[ETA], size, "eta %s", format_eta(s->eta_s, number, sizeof number));
    if (!activity) return;
    tr_text_add(text[NOW], size, "| ");
    describe(activity, true, text[NOW], size);
    tr_text_add(text[NOW_SHORT], size, "| ");
    describe_shortest(activity, text[NOW_SHORT], size);
}

const char *tr_line_step(const tr_progress_state *state, const tr_activity *activity, int columns,
                         bool colour, char *buffer) {
    char text[FIELDS][TR_LINE_SIZE / 3];
    bool taken[FIELDS] = {false};
    size_t room = columns > 0 ? (size_t)columns + 1 : TR_LINE_SIZE, used = 0;
    fill(state, activity, text);
    for (int k = 0; k < FIELDS; k++) {
        field f = by_importance[k];
        size_t length = strlen(text[f]) + 1; /* with the blank after it */
        bool stays = f == LOSS || f == STEP;
        taken[f] =
            text[f][0] && (used + length <= room || stays) && !(f == NOW_SHORT && taken[NOW]);
        if (taken[f]) used += length;
    }
    bool whole = used <= room;
    buffer[0] = '\0';
    for (int f = 0; f < FIELDS; f++) {
        if (!taken[f]) continue;
        if (buffer[0]) tr_text_add(buffer, TR_LINE_SIZE, " ");
        /* A cut line has no colour, because its codes have no width. */
        if (f == LOSS && colour && whole)
            tr_text_add(buffer, TR_LINE_SIZE, "loss \x1b[1m%s\x1b[0m", text[f] + strlen("loss "));
        else tr_text_add(buffer, TR_LINE_SIZE, "%s", text[f]);
    }
    if (!whole) buffer[columns] = '\0';
    return buffer;
}
