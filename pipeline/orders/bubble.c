#include "pipeline/orders/bubble.h"

void tr_bubble_split(tr_rank_time *time, int ranks, double makespan) {
    double most = 0;
    for (int r = 0; r < ranks; r++)
        if (time[r].busy > most) most = time[r].busy;
    for (int r = 0; r < ranks; r++) {
        tr_rank_time *t = &time[r];
        if (t->last <= 0) t->first = t->last = makespan;
        t->span = t->last - t->first;
        t->fill = t->first;
        t->drain = makespan - t->last;
        double gaps = t->span - t->busy;
        if (gaps < 0) gaps = 0; /* rounding: a sum of actions minus a difference of times */
        t->imbalance = gaps < most - t->busy ? gaps : most - t->busy;
        t->waiting = gaps - t->imbalance;
    }
}
