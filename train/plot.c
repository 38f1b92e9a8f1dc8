#include "train/plot.h"

#include "base/memory.h"
#include "base/xml.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 270, LEFT = 62, RIGHT = 18, TOP = 40, BOTTOM = 46, COLOURS = 4 };

static const char *const colours[COLOURS] = {"#1f6fb4", "#c8442f", "#2f8f5b", "#7a4fa3"};

static const char *const style =
    "<style>.plot text{font:12px sans-serif;fill:#333;stroke:none}"
    ".plot .title{font-size:14px;font-weight:bold;fill:#111}"
    ".plot .grid{stroke:#e4e4e4;stroke-width:1}.plot .axis{stroke:#888;stroke-width:1}"
    ".plot path{fill:none;stroke-width:1.5;stroke-linejoin:round}"
    ".plot circle{stroke:#fff;stroke-width:.5}</style>\n";

typedef struct axis {
    double low, high; /* of the data, with a margin */
    double from, to;  /* pixels */
    double step;      /* between ticks */
} axis;

/* Clamps a value, so that an axis' differences and ratios can be computed. */
static double tame(double v) {
    if (fabs(v) < 1e-300) return 0;
    return fmin(fmax(v, -1e300), 1e300);
}

static double place(const axis *a, double v) {
    return a->from + (tame(v) - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* Returns 1, 2 or 5 times a power of ten, for about `ticks` ticks. */
static double round_step(double range, int ticks) {
    double raw = range / ticks, power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10);
}

/* Finds the axes' ranges. Returns false when no value is finite. */
static bool find_axes(const tr_plot *plot, axis *x, axis *y) {
    x->low = y->low = INFINITY;
    x->high = y->high = -INFINITY;
    for (int s = 0; s < plot->count; s++)
        for (size_t k = 0; k < plot->series[s].count; k++) {
            double vx = plot->series[s].x[k], vy = plot->series[s].y[k];
            if (!isfinite(vx) || !isfinite(vy)) continue;
            x->low = fmin(x->low, tame(vx));
            x->high = fmax(x->high, tame(vx));
            y->low = fmin(y->low, tame(vy));
            y->high = fmax(y->high, tame(vy));
        }
    if (x->low > x->high) return false;
    if (plot->from_zero) {
        y->low = fmin(y->low, 0);
        y->high = fmax(y->high, 0);
    }
    /* A flat curve gets a range around its value. */
    axis *both[] = {x, y};
    for (int k = 0; k < 2; k++) {
        axis *a = both[k];
        double most = fmax(fabs(a->low), fabs(a->high));
        if (a->high - a->low > 1e-9 * most) continue;
        double room = k == 0 || most <= 0 ? 1 : 0.05 * most;
        a->low -= fmax(room, 1e-6 * most);
        a->high += fmax(room, 1e-6 * most);
    }
    double room = 0.05 * (y->high - y->low);
    if (!plot->from_zero || y->low < 0) y->low -= room;
    y->high += room;
    x->step = round_step(x->high - x->low, 6);
    y->step = round_step(y->high - y->low, 5);
    if (plot->whole_x) x->step = fmax(x->step, 1);
    return true;
}

/* Prints a tick's number. All ticks of an axis have one exponent or unit, and enough digits to
 * differ. */
static void print_tick(const axis *a, double v, char *text, size_t size) {
    static const struct {
        double from, unit;
        const char *name;
    } units[] = {{1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}, {1e-2, 1, ""}};
    double most = fmax(fabs(a->low), fabs(a->high));
    int power = (int)floor(log10(most)), step = (int)floor(log10(a->step) + 1e-9);
    if (v == 0) {
        (void)snprintf(text, size, "0");
        return;
    }
    for (size_t k = 0; k < sizeof units / sizeof *units && most < 1e12; k++) {
        if (most < units[k].from) continue;
        int digits = (int)lround(log10(units[k].unit)) - step;
        (void)snprintf(text, size, "%.*f%s", digits > 0 ? digits : 0, v / units[k].unit,
                       units[k].name);
        return;
    }
    (void)snprintf(text, size, "%.*fe%d", power > step ? power - step : 0, v / pow(10, power),
                   power);
}

static void draw_axes(const tr_plot *plot, const axis *x, const axis *y, FILE *out) {
    char text[64];
    for (double k = ceil(y->low / y->step); k * y->step <= y->high; k++) {
        double at = place(y, k * y->step);
        print_tick(y, k * y->step, text, sizeof text);
        (void)fprintf(out,
                      "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                      LEFT, at, WIDTH - RIGHT, at, LEFT - 8, at + 4, text);
    }
    for (double k = ceil(x->low / x->step); k * x->step <= x->high; k++) {
        double at = place(x, k * x->step);
        print_tick(x, k * x->step, text, sizeof text);
        (void)fprintf(out,
                      "<line class=\"axis\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                      at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, at, HEIGHT - BOTTOM + 18, text);
    }
    (void)fprintf(out,
                  "<line class=\"axis\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>"
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">",
                  LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, (LEFT + WIDTH - RIGHT) / 2,
                  HEIGHT - 8);
    tr_xml_text(plot->x_label, out);
    (void)fputs("</text>\n", out);
}

/* Draws the legend, right-aligned, next to the title. */
static void draw_legend(const tr_plot *plot, FILE *out) {
    double x = WIDTH - RIGHT;
    for (int s = plot->count - 1; s >= 0 && plot->count > 1; s--) {
        x -= 7.0 * (double)strlen(plot->series[s].label) + 6;
        (void)fprintf(out,
                      "<line x1=\"%.1f\" y1=\"17\" x2=\"%.1f\" y2=\"17\" stroke=\"%s\" "
                      "stroke-width=\"3\"/><text x=\"%.1f\" y=\"21\">",
                      x - 20, x - 4, colours[s % COLOURS], x);
        tr_xml_text(plot->series[s].label, out);
        (void)fputs("</text>\n", out);
        x -= 30;
    }
}

static bool is_point(const tr_series *series, size_t k) {
    return isfinite(series->x[k]) && isfinite(series->y[k]);
}

/* Picks the values to draw, in order, in index[TR_PLOT_MOST]; a value that is not finite is a
 * gap. */
static size_t pick(const tr_series *series, size_t *index) {
    size_t parts = TR_PLOT_MOST / 2, n = 0;
    if (series->count <= TR_PLOT_MOST) {
        for (size_t k = 0; k < series->count; k++) index[k] = k;
        return series->count;
    }
    for (size_t part = 0; part < parts; part++) {
        size_t begin = series->count * part / parts, end = series->count * (part + 1) / parts;
        size_t least = begin, most = begin;
        for (size_t k = begin; k < end; k++) {
            if (!is_point(series, k)) continue;
            if (!is_point(series, least) || series->y[k] < series->y[least]) least = k;
            if (!is_point(series, most) || series->y[k] > series->y[most]) most = k;
        }
        index[n++] = least < most ? least : most;
        if (least != most) index[n++] = least < most ? most : least;
    }
    return n;
}

static void draw_series(const tr_series *series, const char *colour, const axis *x, const axis *y,
                        const size_t *index, size_t count, FILE *out) {
    for (size_t k = 0; k < count;) {
        size_t first = k;
        while (k < count && is_point(series, index[k])) k++;
        if (k - first > 1) {
            (void)fprintf(out, "<path stroke=\"%s\" d=\"", colour);
            for (size_t j = first; j < k; j++)
                (void)fprintf(out, "%c%.1f %.1f", j == first ? 'M' : 'L',
                              place(x, series->x[index[j]]), place(y, series->y[index[j]]));
            (void)fputs("\"/>\n", out);
        }
        /* A single value would be a line of length 0, so it gets a dot. */
        for (size_t j = first; j < k && (series->points || k - first == 1); j++)
            (void)fprintf(out,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\">"
                          "<title>%.6g: %.6g</title></circle>\n",
                          place(x, series->x[index[j]]), place(y, series->y[index[j]]), colour,
                          series->x[index[j]], series->y[index[j]]);
        if (k < count) k++;
    }
}

tr_status tr_plot_svg(const tr_plot *plot, FILE *out) {
    axis x = {.from = LEFT, .to = WIDTH - RIGHT}, y = {.from = HEIGHT - BOTTOM, .to = TOP};
    size_t *index = NULL;
    TR_TRY(tr_calloc(TR_PLOT_MOST, sizeof *index, &index));
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" width=\"%d\" "
                  "height=\"%d\" viewBox=\"0 0 %d %d\">\n%s<text class=\"title\" x=\"8\" y=\"21\">",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, style);
    tr_xml_text(plot->title, out);
    (void)fputs("</text>\n", out);
    if (find_axes(plot, &x, &y)) {
        draw_axes(plot, &x, &y, out);
        draw_legend(plot, out);
        for (int s = 0; s < plot->count; s++) {
            size_t count = pick(&plot->series[s], index);
            draw_series(&plot->series[s], colours[s % COLOURS], &x, &y, index, count, out);
        }
    } else
        (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">no values</text>\n",
                      WIDTH / 2, HEIGHT / 2);
    (void)fputs("</svg>\n", out);
    free(index);
    return TR_OK;
}
