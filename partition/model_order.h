/* parallel.schedule auto: makes the order for a config's model. */
#pragma once

#include "config/config.h"
#include "pipeline/orders/generate.h"

/* Completes the request, in which ranks, micro_batches and chunks are set, and makes the order.
 * Depends only on the config, so the order is the same on all ranks and in a plan. Costs are the
 * FLOPs of the stages. The number of stages a rank is limited by the number of layers. A rank holds
 * as many micro-batches as device.memory leaves room for, or, without that key, as many as under
 * 1f1b. When no order fits, makes one with the least memory, and the plan reports the excess. */
tr_status tr_order_make(const tr_config *config, tr_schedule_request *request, tr_schedule **out);
