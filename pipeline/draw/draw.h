/* Drawings of timelines: text for a terminal, SVG, and the trace format of Chrome and Perfetto.
 * They write to `out`, which stays open; TR_ERR_IO when it cannot be written. */
#pragma once

#include "pipeline/draw/timeline.h"

#include <stdio.h>

/* The most events a drawing takes: what browsers still open. */
enum { TR_DRAW_MOST = 500000 };

typedef struct tr_draw_text_options {
    int width;   /* columns of a row, labels included */
    bool colour; /* ANSI colours */
} tr_draw_text_options;

/* One row a rank: an action is its letter and micro-batch, then '-' to its end, where a column has
 * room for that; else each column shows the letter of the action in its middle. '.' is idle. At the
 * right the rank's bubble in percent of the makespan. */
tr_status tr_draw_text(const tr_timeline *timeline, const tr_draw_text_options *options, FILE *out);

/* TR_ERR_CONFIG when the timelines have more than TR_DRAW_MOST events together: to be asked before
 * a file is opened for them. */
tr_status tr_draw_check(const tr_timeline *const *timelines, int count);

typedef struct tr_draw_svg_options {
    /* Of the whole drawing, in pixels; only as many steps are drawn as it has room for (at least
     * one). 0: all steps, as wide as the shortest action needs for its number. */
    int width;
} tr_draw_svg_options;

/* Computes how many steps of the timelines such a drawing shows, from the first one, and how many
 * events. */
void tr_draw_svg_size(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, int *steps, size_t *events);

/* A self-contained SVG: one panel a timeline, below one another and at one scale, so that planned
 * and measured times can be compared; one row a rank, its bubble at the right; an axis, and a line
 * where a step begins; actions are named when the pointer rests on them. All timelines have one
 * unit. TR_ERR_CONFIG when it would show more than TR_DRAW_MOST events. */
tr_status tr_draw_svg(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, FILE *out);

/* Trace JSON: a process for each rank of each timeline, a thread for each of its tracks, a complete
 * event (X) for each bar, and an arrow (s, f) from each SEND to its RECV. A unit without seconds
 * is drawn as a millisecond. Fails as tr_draw_check. */
tr_status tr_draw_trace(const tr_timeline *const *timelines, int count, FILE *out);

/* "0F3", "0SEND_F3 to 1", "1RECV_F3 from 0", "0REDUCE_GRAD"...; at most `size` bytes. */
void tr_bar_print(const tr_bar *bar, char *text, size_t size);
