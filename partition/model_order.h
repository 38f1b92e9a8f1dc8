/* Orders that are made for a config's model: parallel.schedule auto, and those under a memory
 * cap. */
#pragma once

#include "config/config.h"
#include "pipeline/orders/generate.h"

/* Returns true when parallel.schedule names an order that depends on the model. */
bool tr_order_is_made(const tr_config *config);

/* Completes the request, in which name, ranks, micro_batches and chunks are set, and makes the
 * order. Depends only on the config, so the order is the same on all ranks and in a plan. Costs are
 * the FLOPs of a rank's share, and its memory what the layers keep until I and until W. For auto
 * the number of stages a rank is limited by the number of layers, and a rank holds as many
 * micro-batches as device.memory leaves room for, or, without that key, as many as under 1f1b; when
 * no order fits, makes one with the least memory, and the plan reports the excess. */
tr_status tr_order_make(const tr_config *config, tr_schedule_request *request, tr_schedule **out);
