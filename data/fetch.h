/* How the engine asks for samples. */
#pragma once

#include "base/status.h"
#include "layers/flow.h"

#include <stdbool.h>
#include <string.h>

/* A wanted step input of one sample; its data go to `to` with the input's shape without the first
 * dimension. */
typedef struct tr_fetch {
    const tr_flow *input;
    void *to;
} tr_fetch;

/* Reads the wanted inputs of global sample `sample`. May fail on one rank only. */
typedef tr_status (*tr_fetch_fn)(void *context, bool validation, int64_t sample,
                                 const tr_fetch *wanted, int count);

/* Returns the destination of the input of that name, or NULL when it is not wanted. */
static inline void *tr_fetch_place(const tr_fetch *wanted, int count, const char *name) {
    for (int k = 0; k < count; k++)
        if (strcmp(wanted[k].input->name, name) == 0) return wanted[k].to;
    return NULL;
}
