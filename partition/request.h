/* What a config asks of the engine, in the engine's terms. */
#pragma once

#include "config/config.h"
#include "layers/model.h"
#include "pipeline/orders/check.h"

/* parallel.schedule is auto: the order is made for the model. */
bool tr_request_is_auto(const tr_config *config);
/* The checked order of a step on one data rank; that of auto is tr_order_make's. Errors as
 * tr_schedule_open and tr_schedule_check have them. Release with tr_schedule_destroy. */
tr_status tr_request_schedule(const tr_config *config, tr_schedule **out,
                              tr_schedule_report *report);
/* What train.precision and train.deterministic cost on a GPU, in text[size]; "" where they are BF16
 * and false, and where no GPU computes. */
void tr_request_costs(const tr_config *config, char *text, size_t size);
/* Bytes that a rank may plan: device.memory, or an equal part of what is free on the device, which
 * `sharers` ranks share. */
tr_status tr_request_memory(const tr_config *config, tr_device *device, int sharers, size_t *out);
