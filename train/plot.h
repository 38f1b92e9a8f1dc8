/* Small line charts as SVG. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The most points that are drawn of a series. Of a longer series the least and the greatest value
 * of each of TR_PLOT_MOST / 2 equal parts are drawn. */
enum { TR_PLOT_MOST = 2000 };

typedef struct tr_series {
    const char *label;
    const double *x, *y; /* [count], x ascending; a y that is not finite is a gap of the line */
    size_t count;
    bool points; /* draws a dot for each value */
} tr_series;

typedef struct tr_plot {
    const char *title;
    const char *x_label;
    const tr_series *series; /* at most 4 have different colours */
    int count;
    bool whole_x;   /* no ticks between whole numbers */
    bool from_zero; /* the y axis includes 0 */
} tr_plot;

/* Writes one <svg> element of class "plot", which is well-formed XML by itself and inside another
 * document, and has a style that affects only itself: axes with round ticks, title, legend of two
 * or more series. Without a finite value it shows "no values". Fails with TR_ERR_FIT; a write error
 * stays in `out`. */
tr_status tr_plot_svg(const tr_plot *plot, FILE *out);
