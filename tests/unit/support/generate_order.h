/* Makes an order by name and sizes, at equal costs. */
#pragma once

#include "pipeline/orders/make.h"

static inline tr_status generate_order(const char *name, int ranks, int stages, int micro_batches,
                                       tr_schedule **out) {
    tr_schedule_request request = {
        .name = name, .ranks = ranks, .micro_batches = micro_batches, .chunks = stages / ranks};
    return tr_schedule_make(&request, out);
}
