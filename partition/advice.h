/* Advice for a plan that does not fit. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* Writes the smallest changes that make a plan fit to text[size]: one for each key ("it fits with
 * train.micro_batch=1, or parallel.pp=4 on 8 ranks"), or of two or three keys together if no single
 * key suffices, or that there is no such change. */
tr_status tr_advice_make(const tr_config *config, tr_device *device, char *text, size_t size);
