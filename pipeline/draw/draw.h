/* Drawings of timelines: text for a terminal, SVG, and the trace format of Chrome and Perfetto.
 * They write to `out`, which stays open; the caller finds a failed write when it closes the
 * file. */
#pragma once

#include "pipeline/draw/timeline.h"

#include <stdio.h>

/* The most events of a drawing, a number that browsers can still open. */
enum { TR_DRAW_MOST = 500000 };

typedef struct tr_draw_text_options {
    int width;   /* columns of a row, labels included */
    bool colour; /* ANSI colours */
} tr_draw_text_options;

/* Draws one row for each rank. An action is its letter and micro-batch, then '-' to its end; if
 * there is no room for that, each column shows the letter of the action at its middle. '.' is idle,
 * '=' waits for a reduction, a gather or a copy. At the right is the rank's bubble in percent of
 * the makespan. */
tr_status tr_draw_text(const tr_timeline *timeline, const tr_draw_text_options *options, FILE *out);

/* Fails with TR_ERR_CONFIG when the timelines together have more than TR_DRAW_MOST events. Call it
 * before you open a file for them. */
tr_status tr_draw_check(const tr_timeline *const *timelines, int count);
/* Does the same for a drawing of this many events. */
tr_status tr_draw_check_events(size_t events);

typedef struct tr_draw_svg_options {
    /* Width of the whole drawing in pixels, which limits the number of steps drawn (at least one).
     * 0: all steps, and wide enough that the shortest action can show its number. */
    int width;
} tr_draw_svg_options;

/* Computes how many steps of the timelines such a drawing shows, from the first one, and how many
 * events. */
void tr_draw_svg_size(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, int *steps, size_t *events);

/* Draws a self-contained SVG: a panel for each timeline, at the same scale, so that planned and
 * measured times can be compared; a row for each rank with its bubble at the right; an axis, and a
 * line where a step begins. The pointer shows an action's name. All timelines must have the same
 * unit. Fails with TR_ERR_CONFIG when it would show more than TR_DRAW_MOST events. */
tr_status tr_draw_svg(const tr_timeline *const *timelines, int count,
                      const tr_draw_svg_options *options, FILE *out);

/* Writes trace JSON: a process for each rank of each timeline, a thread for each of its tracks, a
 * complete event (X) for each bar, and an arrow (s, f) from each SEND to its RECV. A unit without
 * seconds is drawn as a millisecond, or, where that would be too long or too short to be drawn, as
 * a power of 1000 of it. Fails like tr_draw_check. */
tr_status tr_draw_trace(const tr_timeline *const *timelines, int count, FILE *out);

/* Writes "0F3", "0SEND_F3 to 1", "1RECV_F3 from 0", "0REDUCE_GRAD"... to text[size]. */
void tr_bar_print(const tr_bar *bar, char *text, size_t size);
