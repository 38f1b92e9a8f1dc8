/* parallel.schedule auto: the order that is made for a config's model. */
#pragma once

#include "config/config.h"
#include "pipeline/orders/generate.h"

/* Completes the request (ranks, micro_batches and chunks are given) and makes the order, from the
 * config alone: so it is the same on all ranks and in a plan. Costs are the FLOPs of the stages; a
 * rank has at most as many stages as there are layers for; and it holds as many micro-batches as
 * device.memory leaves room for after all else, or, without that key, as many as under 1f1b. When
 * no order is found that fits, one for the least memory: the plan says what is missing. */
tr_status tr_order_make(const tr_config *config, tr_schedule_request *request, tr_schedule **out);
