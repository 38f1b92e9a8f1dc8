/* How a rank's step divides into work and the kinds of idling. */
#pragma once

/* A rank's compute stream from 0 to the step's makespan:
 *
 *   makespan - busy = fill + drain + waiting + imbalance   (to rounding)
 *
 * fill: until its first action starts. drain: from the end of its last action. The gaps between its
 * actions are imbalance as far as the most loaded rank explains them (at most that rank's busy less
 * its own: equal stages have none), and waiting, for inputs that the order or a transfer brings
 * late, in the rest. A rank without actions fills the whole step. */
typedef struct tr_rank_time {
    double first, last; /* start of its first action, end of its last */
    double busy;        /* sum of its actions */
    double span;        /* last - first */
    double fill, drain, waiting, imbalance;
} tr_rank_time;

/* Completes time[ranks], of which first, last and busy are set (0, 0, 0: no action). */
void tr_bubble_split(tr_rank_time *time, int ranks, double makespan);
