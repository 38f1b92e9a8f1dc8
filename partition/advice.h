/* Advice for a plan that does not fit. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "partition/run_plan.h"

/* Writes the smallest changes to text[size] that make the config's plan fit the ranks' memory and
 * take no more of a host's than it may, or than the plan takes; or that there is no such change:
 * one for each key ("it fits with train.micro_batch=1, or parallel.pp=4 on 8 ranks"); fewer data
 * ranks, which hold parts of the model instead; several keys together if none of these suffices on
 * the same ranks; more of pp and tp together where that takes no more ranks than one of them; and,
 * if nothing suffices on the same ranks, several keys with fewer more ranks than those take. */
tr_status tr_advice_make(const tr_config *config, const tr_run_plan *plan, tr_device *device,
                         char *text, size_t size);
