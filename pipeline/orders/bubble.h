/* The division of a rank's step into work and kinds of idle time. */
#pragma once

/* A rank's compute stream from 0 to the step's makespan:
 *
 *   makespan - busy = fill + drain + waiting + imbalance   (to rounding)
 *
 * fill: until its first action starts. drain: from the end of its last action. Gaps between its
 * actions count as imbalance up to the busiest rank's work minus its own (equal stages have none),
 * and beyond that as waiting, for inputs that the order or a transfer delivers late. A rank without
 * actions fills the whole step. */
typedef struct tr_rank_time {
    double first, last; /* start of its first action, end of its last */
    double busy;        /* sum of its actions */
    double span;        /* last - first */
    double fill, drain, waiting, imbalance;
} tr_rank_time;

/* Completes time[ranks], in which the caller has set first, last and busy (0, 0, 0: no action). */
void tr_bubble_split(tr_rank_time *time, int ranks, double makespan);
