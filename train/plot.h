/* Small line charts as SVG. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The most points that are drawn of a series; of more, the least and the greatest value of each of
 * TR_PLOT_MOST / 2 equal parts are. */
enum { TR_PLOT_MOST = 2000 };

typedef struct tr_series {
    const char *label;
    const double *x, *y; /* [count], x ascending; a y that is not finite is a gap of the line */
    size_t count;
    bool points; /* each value has a dot */
} tr_series;

typedef struct tr_plot {
    const char *title;
    const char *x_label;
    const tr_series *series; /* at most 4 have a colour of their own */
    int count;
    bool whole_x;   /* no ticks between whole numbers */
    bool from_zero; /* the y axis holds 0 */
} tr_plot;

/* Writes one <svg> element of class "plot", well-formed XML on its own and inside another document,
 * whose style touches nothing outside: axes with round ticks, title, legend of two series or more.
 * Without a finite value it says so. TR_ERR_FIT without memory; errors of `out` are left in it. */
tr_status tr_plot_svg(const tr_plot *plot, FILE *out);

/* The text with what XML keeps for itself escaped; what is not printable ASCII becomes '?'. */
void tr_plot_text(const char *text, FILE *out);
