/* The learning rate: linear warm-up, then a cosine. */
#pragma once

#include <stdint.h>

typedef struct tr_lr {
    double highest, lowest;
    int64_t warmup, steps;
} tr_lr;

/* Returns the learning rate of step `step` (from 1): highest * step / warmup up to step = warmup,
 * then half a cosine (Loshchilov & Hutter 2017, eq. 5, without restarts) that reaches `lowest` at
 * step = steps and stays there. A pure function: every rank computes the same bits. */
double tr_lr_at(const tr_lr *lr, int64_t step);
