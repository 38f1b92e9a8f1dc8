/* A store, of train/store.c, which makes it and computes its values, and train/store_place.c, which
 * places its parameters. */
#pragma once

#include "partition/param_memory.h"
#include "train/store.h"

/* Lists the store's slots, spans and runs, which have room for sum->params, and places them in its
 * memory, of which `sum` has the sizes. Sets params' value and grad. */
tr_status tr_store_place_params(tr_store *store, const tr_store_desc *desc,
                                const tr_param_memory *sum);
