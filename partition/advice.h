/* What to change when a plan does not fit. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* For a plan that does not fit: the smallest changes that would make it, one a key ("it fits with
 * train.micro_batch=1, or parallel.pp=4 on 8 ranks"), or of two or three keys when none alone does,
 * or that there is none. At most `size` bytes. */
tr_status tr_advice_make(const tr_config *config, tr_device *device, char *text, size_t size);
