/* Checks that all ranks were given the same run. Ranks with different ones would run different
 * collectives, or wait for each other forever. */
#pragma once

#include "comm/comm.h"
#include "partition/request.h"
#include "train/trainer.h"

/* Fails with TR_ERR_CONFIG when a rank has another config than rank 0 (except for the keys that
 * tr_config_check_same leaves out), or other options. Collective. */
tr_status tr_same_given(tr_world *world, const tr_config *config, const tr_train_options *options);
/* Fails with TR_ERR_CONFIG when a rank has other orders than rank 0, or recomputes other
 * activations: another file on another host, or another result of a search. Collective. */
tr_status tr_same_orders(tr_world *world, const tr_config *config, const tr_orders *orders);
