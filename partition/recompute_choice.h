/* The value auto of train.recompute: the cheapest mode of each stage that fits device.memory. */
#pragma once

#include "config/config.h"
#include "device/device.h"

/* Replaces train.recompute auto in *config by the modes of its blocks; leaves other values alone.
 * All blocks begin with none. While a rank does not fit, the blocks of its stages that recompute
 * least take the next mode; a plan that does not fit with full keeps it. Then as many of each
 * rank's last raised stages as fit get the mode before, because these keep their activations for
 * the shortest time. Halving finds how many, for all ranks at once; this repeats while it lowers a
 * mode. The cut and so the bytes follow the modes: the choice fits, but lower modes may fit, too.
 * These plans have the fastest cut of their modes (tr_run_plan_make_fastest); none with a cut for
 * the memory is taken instead, if that fits and is no slower. Depends only on the config and the
 * device's kind and threads, so that every rank chooses alike. Operators are prepared on the device
 * (tr_run_plan_make). Fails like tr_run_plan_make. */
tr_status tr_request_recompute(tr_config *config, tr_device *device);
