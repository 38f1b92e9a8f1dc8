/* The model on one pipeline rank that runs one micro-batch: its costs and bytes are sums over all
 * layers. */
#pragma once

#include "partition/request.h"

typedef struct tr_whole {
    tr_orders orders;
    tr_layout *layout; /* not prepared */
} tr_whole;

/* Lays the config's model out on one pipeline rank with one micro-batch, without offloaded
 * activations. Fails like tr_layout_create. The caller releases *out with tr_whole_close. */
tr_status tr_whole_open(const tr_config *config, tr_whole *out);
void tr_whole_close(tr_whole *whole);
