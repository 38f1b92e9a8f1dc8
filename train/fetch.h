/* How the engine asks for samples. */
#pragma once

#include "base/status.h"
#include "layers/flow.h"

#include <stdbool.h>
#include <string.h>

/* A step input of one sample that is wanted: the input's shape but its first dimension, at `to`. */
typedef struct tr_fetch {
    const tr_flow *input;
    void *to;
} tr_fetch;

/* Reads what is wanted of global sample `sample`. May fail on a rank by itself. */
typedef tr_status (*tr_fetch_fn)(void *context, bool validation, int64_t sample,
                                 const tr_fetch *wanted, int count);

/* Where the input of that name is wanted; NULL: nowhere. */
static inline void *tr_fetch_place(const tr_fetch *wanted, int count, const char *name) {
    for (int k = 0; k < count; k++)
        if (strcmp(wanted[k].input->name, name) == 0) return wanted[k].to;
    return NULL;
}
