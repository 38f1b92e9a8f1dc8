/* Estimates of layouts for the search: without a cut of the layers, messages and a packed arena, so
 * in a small part of a plan's time. */
#pragma once

#include "partition/search.h"

typedef struct tr_layout_estimate {
    /* Of a step with equal stages, with the sums over tensor ranks and the optimizer, without
     * messages and sums of gradients. */
    double seconds;
    double bubble, update; /* parts of the seconds; update: the optimizer's step */
    /* What a step takes at least with a cut of the layers with which every rank fits, by the same
     * costs and without a bubble; INFINITY: there is no such cut. */
    double within;
    double bytes; /* that the rank which takes most takes at least, with any cut of the layers */
} tr_layout_estimate;

/* Remembers what layouts share. */
typedef struct tr_layout_estimator tr_layout_estimator;

/* limit: bytes that a rank may take. The request outlives *out, which the caller releases with
 * tr_layout_estimator_destroy. */
tr_status tr_layout_estimator_create(const tr_search_request *request, size_t limit,
                                     tr_layout_estimator **out);
void tr_layout_estimator_destroy(tr_layout_estimator *estimator);

/* Estimates the layout of a choice; *config is the request's with it, and is allowed
 * (tr_config_check). Fails with TR_ERR_CONFIG when its order has no such number of stages. */
tr_status tr_layout_estimate_make(tr_layout_estimator *estimator, const tr_layout_choice *choice,
                                  const tr_config *config, tr_layout_estimate *out);
