#include "pipeline/draw.h"

#include <math.h>

static const double LEFT = 64, RIGHT = 200, TOP = 34, ROW = 24, GAP = 4;
static const double LEAST_PLOT = 600, MOST_PLOT = 6000;

static const char *const style =
    "<style>text{font:12px sans-serif;fill:#222}.n{font-size:10px;text-anchor:middle;"
    "pointer-events:none}.t{font-size:14px;font-weight:bold}.i{fill:#f2f2f2}"
    ".F{fill:#7fb3e6}.I{fill:#f6c36a}.W{fill:#8ccf8c}.B{fill:#ef9a8f}.O{fill:#bbb}"
    "rect{stroke:#fff;stroke-width:.5}.c1{fill-opacity:.72}.c2{fill-opacity:.5}"
    ".c3{fill-opacity:.35}</style>\n";

static void write_text(FILE *out, const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) switch (*c) {
        case '&': (void)fputs("&amp;", out); break;
        case '<': (void)fputs("&lt;", out); break;
        case '>': (void)fputs("&gt;", out); break;
        /* Control characters and what may not be UTF-8 are not allowed in XML. */
        default: (void)fputc(*c < 0x20 || *c >= 0x7f ? '?' : *c, out); break;
        }
}

static bool is_action(const tr_event *event) {
    return (unsigned)event->kind < (unsigned)TR_ACTION_TYPES;
}

/* The plot's width: the shortest action can show its number, within bounds. */
static double plot_width(const tr_timeline *const *timelines, int count, double longest) {
    double shortest = longest;
    for (int n = 0; n < count; n++)
        for (size_t k = 0; k < timelines[n]->count; k++) {
            const tr_event *event = &timelines[n]->event[k];
            double length = event->end - event->start;
            if (is_action(event) && length > longest * 1e-9 && length < shortest) shortest = length;
        }
    double wanted = shortest > 0 ? 20 * longest / shortest : LEAST_PLOT;
    return fmin(fmax(wanted, LEAST_PLOT), MOST_PLOT);
}

static void draw_event(const tr_timeline *t, const tr_event *event, double scale, double y,
                       FILE *out) {
    double x = LEFT + event->start * scale, width = (event->end - event->start) * scale;
    int chunk = t->ranks > 0 && event->stage >= 0 ? event->stage / t->ranks % 4 : 0;
    char name[96], letter = is_action(event) ? tr_action_letter((tr_action_type)event->kind) : 'O';
    tr_event_print(event, name, sizeof name);
    (void)fprintf(out,
                  "<rect class=\"%c c%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\">"
                  "<title>%s: %.6g to %.6g</title></rect>\n",
                  letter, chunk, x, y, width, ROW - GAP, name, event->start, event->end);
    if (!is_action(event)) return;
    int length = snprintf(name, sizeof name, "%d", event->micro_batch);
    if (width >= 6.0 * length + 2)
        (void)fprintf(out, "<text class=\"n\" x=\"%.2f\" y=\"%.1f\">%s</text>\n", x + width / 2,
                      y + 14, name);
}

static void draw_panel(const tr_timeline *t, double scale, double y, FILE *out) {
    double busy = 0;
    for (int r = 0; r < t->ranks; r++) busy += t->time[r].busy;
    double whole = t->makespan * t->ranks;
    (void)fprintf(out, "<text class=\"t\" x=\"%.0f\" y=\"%.1f\">", LEFT, y + 18);
    write_text(out, t->title);
    (void)fprintf(out, ": makespan %.6g%s, bubble %.1f%%</text>\n", t->makespan,
                  t->seconds > 0 ? " s" : "", whole > 0 ? 100 * fmax(1 - busy / whole, 0) : 0);
    for (int r = 0; r < t->ranks; r++) {
        double row = y + TOP + r * ROW, width = t->makespan * scale;
        const tr_rank_time *time = &t->time[r];
        (void)fprintf(out, "<text x=\"8\" y=\"%.1f\">rank %d</text>\n", row + 14, r);
        (void)fprintf(out,
                      "<rect class=\"i\" x=\"%.0f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"/>\n",
                      LEFT, row, width, ROW - GAP);
        double part = t->makespan > 0 ? 100 / t->makespan : 0;
        (void)fprintf(out,
                      "<text x=\"%.1f\" y=\"%.1f\">bubble %.1f%%<title>fill %.1f%%, drain %.1f%%, "
                      "waiting %.1f%%, imbalance %.1f%%</title></text>\n",
                      LEFT + width + 10, row + 14, fmax(t->makespan - time->busy, 0) * part,
                      time->fill * part, time->drain * part, time->waiting * part,
                      time->imbalance * part);
    }
    for (size_t k = 0; k < t->count; k++) {
        const tr_event *event = &t->event[k];
        if (event->track == TR_TRACK_COMPUTE)
            draw_event(t, event, scale, y + TOP + event->rank * ROW, out);
    }
}

static void draw_legend(double y, FILE *out) {
    static const char *const names[TR_ACTION_TYPES] = {[TR_ACTION_F] = "F forward",
                                                       [TR_ACTION_I] = "I input gradient",
                                                       [TR_ACTION_W] = "W weight gradient",
                                                       [TR_ACTION_B] = "B both gradients"};
    for (int k = 0; k < TR_ACTION_TYPES; k++) {
        double x = LEFT + 150 * k;
        (void)fprintf(out,
                      "<rect class=\"%c\" x=\"%.0f\" y=\"%.1f\" width=\"12\" height=\"12\"/>"
                      "<text x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                      names[k][0], x, y, x + 18, y + 10, names[k]);
    }
}

tr_status tr_draw_svg(const tr_timeline *const *timelines, int count, FILE *out) {
    double longest = 0, height = 40;
    TR_TRY(tr_draw_check(timelines, count));
    for (int n = 0; n < count; n++) {
        const tr_timeline *t = timelines[n];
        longest = fmax(longest, t->makespan);
        height += TOP + t->ranks * ROW + 16;
    }
    double plot = plot_width(timelines, count, longest), width = LEFT + plot + RIGHT;
    double scale = longest > 0 ? plot / longest : 1, y = 4;
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                  "viewBox=\"0 0 %.0f %.0f\">\n",
                  width, height, width, height);
    (void)fputs(style, out);
    (void)fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", out);
    for (int n = 0; n < count; n++) {
        draw_panel(timelines[n], scale, y, out);
        y += TOP + timelines[n]->ranks * ROW + 16;
    }
    draw_legend(y, out);
    (void)fputs("</svg>\n", out);
    if (fflush(out) != 0 || ferror(out))
        return TR_FAIL(TR_ERR_IO, "the drawing cannot be written: is the disk full?");
    return TR_OK;
}
