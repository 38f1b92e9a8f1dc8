#include "pipeline/draw/draw.h"

#include "base/xml.h"

#include <math.h>

/* In pixels. */
static const double LEFT = 64, RIGHT = 120, TITLE = 26, ROW = 24, GAP = 4, AXIS = 30;
static const double UNDER = 5;    /* height of a reduction, or of copies */
static const double NUMBERS = 16; /* of steps, above the rows */
static const double LEAST_PLOT = 600, MOST_PLOT = 6000, LEAST_TICK = 70;
static const double LEAST_ACTION = 8; /* width of a mean action when there is more than one step */

static const char *const style =
    "<style>text{font:12px sans-serif;fill:#222}.n{font-size:10px;text-anchor:middle;"
    "pointer-events:none}.t{font-size:14px;font-weight:bold}.i{fill:#f2f2f2}"
    ".F{fill:#7fb3e6}.I{fill:#f6c36a}.W{fill:#8ccf8c}.B{fill:#ef9a8f}.O{fill:#bbb}"
    "rect{stroke:#fff;stroke-width:.5}.c1{fill-opacity:.72}.c2{fill-opacity:.5}"
    ".c3{fill-opacity:.35}.a{font-size:11px;fill:#555;text-anchor:middle}"
    ".g{stroke:#999;stroke-width:1}.s{stroke:#333;stroke-width:1;stroke-dasharray:3 2}</style>\n";

/* The part of all timelines that is drawn: their first steps, from time 0 to `end`. */
typedef struct view {
    int steps;
    double end, scale, plot; /* pixels of a unit; of `end` */
} view;

/* --- what fits -------------------------------------------------------------------------------- */

static bool is_drawn(const tr_bar *bar, int steps) {
    return bar->track < TR_TRACK_SEND && bar->step < steps;
}

/* Returns the end of the first `steps` of a timeline, including their reductions and optimizer. */
static double end_of(const tr_timeline *t, int steps) {
    double end = steps >= t->steps ? t->makespan : 0;
    for (size_t k = 0; k < t->count; k++)
        if (is_drawn(&t->bar[k], steps)) end = fmax(end, t->bar[k].end);
    return end;
}

/* Returns the plot's width without a limit, at which the shortest action can show its number. */
static double plot_width(const tr_timeline *const *timelines, int count, double longest) {
    double shortest = longest;
    for (int n = 0; n < count; n++)
        for (size_t k = 0; k < timelines[n]->count; k++) {
            const tr_bar *bar = &timelines[n]->bar[k];
            double length = bar->end - bar->start;
            if (tr_action_computes(bar->action) && length > longest * 1e-9 && length < shortest)
                shortest = length;
        }
    double wanted = shortest > 0 ? 20 * longest / shortest : LEAST_PLOT;
    return fmin(fmax(wanted, LEAST_PLOT), MOST_PLOT);
}

void tr_draw_svg_size(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, int *steps, size_t *events) {
    double actions = 0; /* the most actions of a rank in a step of any timeline */
    *steps = 1;
    for (int n = 0; n < count; n++) {
        const tr_timeline *t = timelines[n];
        double all = 0;
        for (size_t k = 0; k < t->count; k++) all += tr_action_computes(t->bar[k].action);
        actions = fmax(actions, all / t->ranks / t->steps);
        if (t->steps > *steps) *steps = t->steps;
    }
    double fitting = (options->width - LEFT - RIGHT) / (LEAST_ACTION * actions);
    if (options->width > 0 && actions > 0 && fitting < *steps) *steps = (int)fmax(1, fitting);
    *events = 0;
    for (int n = 0; n < count; n++)
        for (size_t k = 0; k < timelines[n]->count; k++)
            *events += is_drawn(&timelines[n]->bar[k], *steps);
}

static tr_status look(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, view *v) {
    size_t events;
    *v = (view){0};
    tr_draw_svg_size(timelines, count, options, &v->steps, &events);
    TR_TRY(tr_draw_check_events(events));
    for (int n = 0; n < count; n++) v->end = fmax(v->end, end_of(timelines[n], v->steps));
    v->plot = options->width ? fmax(options->width - LEFT - RIGHT, 1)
                             : plot_width(timelines, count, v->end);
    v->scale = v->end > 0 ? v->plot / v->end : 1;
    return TR_OK;
}

/* --- a panel ---------------------------------------------------------------------------------- */

static double rows_height(const tr_timeline *t) {
    return (double)t->ranks * ROW - GAP;
}

/* Returns the height of the title, and of the steps' numbers if they have any. */
static double head_height(const tr_timeline *t) {
    return TITLE + (t->first_step ? NUMBERS : 0);
}

static double panel_height(const tr_timeline *t) {
    return head_height(t) + rows_height(t) + AXIS;
}

static void draw_bar(const tr_timeline *t, const tr_bar *bar, double scale, double y, FILE *out) {
    double x = LEFT + bar->start * scale, width = (bar->end - bar->start) * scale;
    int chunk = bar->action.stage >= 0 ? bar->action.stage / t->ranks % 4 : 0;
    bool under = bar->track != TR_TRACK_COMPUTE; /* while the rank computes */
    double base = y + ROW - GAP -
                  UNDER * (bar->track == TR_TRACK_OUT    ? 2
                           : bar->track == TR_TRACK_BACK ? 3
                                                         : 1);
    char name[96],
        letter = tr_action_computes(bar->action) ? *tr_action_name(bar->action.type, false) : 'O';
    tr_bar_print(bar, name, sizeof name);
    (void)fprintf(out,
                  "<rect class=\"%c c%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\">"
                  "<title>%s: %.6g to %.6g</title></rect>\n",
                  letter, chunk, x, under ? base : y, width, under ? UNDER : ROW - GAP, name,
                  bar->start, bar->end);
    if (!tr_action_computes(bar->action)) return;
    int length = snprintf(name, sizeof name, "%d", bar->action.micro_batch);
    if (width >= 6.0 * length + 2)
        (void)fprintf(out, "<text class=\"n\" x=\"%.2f\" y=\"%.1f\">%s</text>\n", x + width / 2,
                      y + 14, name);
}

/* Writes "planned: makespan 0.19 s, bubble 16.0%"; of several steps the mean makespan, and "a
 * step". */
static void draw_title(const tr_timeline *t, double y, FILE *out) {
    double busy = 0, whole = t->span * t->ranks;
    for (int r = 0; r < t->ranks; r++) busy += t->time[r].busy;
    (void)fprintf(out, "<text class=\"t\" x=\"%.0f\" y=\"%.1f\">", LEFT, y + 14);
    tr_xml_text(t->title, out);
    (void)fprintf(out, ": makespan %.*g%s%s, bubble %.1f%%</text>\n", t->seconds > 0 ? 3 : 6,
                  t->span / t->steps, t->seconds > 0 ? " s" : "", t->steps > 1 ? " a step" : "",
                  whole > 0 ? 100 * fmax(1 - busy / whole, 0) : 0);
}

/* Draws names and bubbles of the ranks, on grey rows. */
static void draw_rows(const tr_timeline *t, const view *v, double y, FILE *out) {
    double part = t->span > 0 ? 100 / t->span : 0, width = end_of(t, v->steps) * v->scale;
    for (int r = 0; r < t->ranks; r++) {
        double row = y + (double)r * ROW;
        const tr_rank_time *time = &t->time[r];
        (void)fprintf(out, "<text x=\"8\" y=\"%.1f\">rank %d</text>\n", row + 14, r);
        (void)fprintf(out,
                      "<rect class=\"i\" x=\"%.0f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"/>\n",
                      LEFT, row, width, ROW - GAP);
        (void)fprintf(out,
                      "<text x=\"%.1f\" y=\"%.1f\">bubble %.1f%%<title>fill %.1f%%, drain %.1f%%, "
                      "waiting %.1f%%, imbalance %.1f%%</title></text>\n",
                      LEFT + v->plot + 10, row + 14, fmax(t->span - time->busy, 0) * part,
                      time->fill * part, time->drain * part, time->waiting * part,
                      time->imbalance * part);
    }
}

static void draw_line(const char *class, double x, double from, double to, FILE *out) {
    (void)fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                  class, x, from, x, to);
}

/* Draws lines where the steps begin, from above the rows to the axis, with the steps' numbers. */
static void draw_steps(const tr_timeline *t, const view *v, double y, FILE *out) {
    double free_at = 0;
    if (!t->first_step) return;
    for (int s = 0; s < v->steps && s < t->steps; s++) {
        double x = LEFT + t->step[s].begin * v->scale;
        draw_line("s", x, y - NUMBERS + 2, y + rows_height(t) + 4, out);
        if (x < free_at) continue;
        char name[48];
        int length = snprintf(name, sizeof name, "step %lld", (long long)t->first_step + s);
        (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 4, y - 4, name);
        free_at = x + 12 + 7.0 * length;
    }
}

/* Draws ticks at round times; seconds are in a unit without leading zeros. */
static void draw_axis(const tr_timeline *t, const view *v, double y, FILE *out) {
    if (!(v->end > 0)) return;
    double least = LEAST_TICK / v->scale, step = pow(10, floor(log10(least)));
    while (step < least) step *= step * 2 >= least ? 2 : step * 5 >= least ? 5 : 10;
    bool named = t->seconds > 0;
    double unit = !named || v->end >= 1 ? 1 : v->end >= 1e-3 ? 1e-3 : 1e-6;
    const char *name = !named ? "" : unit == 1 ? " s" : unit == 1e-3 ? " ms" : " us";
    (void)fprintf(out, "<line class=\"g\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                  LEFT, y, LEFT + v->plot, y);
    for (int k = 0; k * step <= v->end * (1 + 1e-9); k++) {
        double x = LEFT + k * step * v->scale;
        draw_line("g", x, y, y + 4, out);
        (void)fprintf(out, "<text class=\"a\" x=\"%.1f\" y=\"%.1f\">%.6g%s</text>\n", x, y + 15,
                      k * step / unit, name);
    }
}

static void draw_panel(const tr_timeline *t, const view *v, double y, FILE *out) {
    double rows = y + head_height(t);
    draw_title(t, y, out);
    draw_rows(t, v, rows, out);
    for (size_t k = 0; k < t->count; k++) {
        const tr_bar *bar = &t->bar[k];
        if (is_drawn(bar, v->steps)) draw_bar(t, bar, v->scale, rows + bar->rank * ROW, out);
    }
    draw_steps(t, v, rows, out);
    draw_axis(t, v, rows + rows_height(t) + 4, out);
}

/* Returns true when something is drawn that is not an action of the order. */
static bool has_others(const tr_timeline *const *timelines, int count, const view *v) {
    for (int n = 0; n < count; n++)
        for (size_t k = 0; k < timelines[n]->count; k++) {
            const tr_bar *bar = &timelines[n]->bar[k];
            if (is_drawn(bar, v->steps) && !tr_action_computes(bar->action)) return true;
        }
    return false;
}

static void draw_legend(double y, bool others, FILE *out) {
    static const char *const names[TR_COMPUTE_TYPES] = {[TR_ACTION_F] = "F forward",
                                                        [TR_ACTION_I] = "I input gradient",
                                                        [TR_ACTION_W] = "W weight gradient",
                                                        [TR_ACTION_B] = "B both gradients"};
    for (int k = 0; k < TR_COMPUTE_TYPES + others; k++) {
        const char *name = k < TR_COMPUTE_TYPES ? names[k] : "Other: reductions, copies, optimizer";
        double x = LEFT + 150 * k;
        (void)fprintf(out,
                      "<rect class=\"%c\" x=\"%.0f\" y=\"%.1f\" width=\"12\" height=\"12\"/>"
                      "<text x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                      name[0], x, y, x + 18, y + 10, name);
    }
}

tr_status tr_draw_svg(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, FILE *out) {
    view v;
    TR_TRY(look(timelines, count, options, &v));
    double y = 4, height = 30, width = LEFT + v.plot + RIGHT;
    for (int n = 0; n < count; n++) height += panel_height(timelines[n]);
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" width=\"%.0f\" "
                  "height=\"%.0f\" "
                  "viewBox=\"0 0 %.0f %.0f\">\n",
                  width, height, width, height);
    (void)fputs(style, out);
    (void)fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", out);
    for (int n = 0; n < count; n++) {
        draw_panel(timelines[n], &v, y, out);
        y += panel_height(timelines[n]);
    }
    draw_legend(y + 6, has_others(timelines, count, &v), out);
    (void)fputs("</svg>\n", out);
    return TR_OK;
}
