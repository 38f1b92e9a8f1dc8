/* What travels between the ranks of a plan, and to their hosts, the optimizer's step, and how long
 * they take. */
#pragma once

#include "config/config.h"
#include "partition/run_plan.h"
#include "partition/traffic.h"

/* Prints a line that says which speed of the links between ranks is assumed, if one is. */
void cli_plan_links(const tr_config *config, int ranks);

/* Prints a line each for messages, sums of gradients, gathers of parameters, sums over tensor ranks
 * and copies of activations, where a plan has them: of the pipeline rank that waits longest, or
 * sends longest; and one for the optimizer's step on the device. rate: a rank's FLOP/s. */
tr_status cli_plan_traffic(const tr_config *config, const tr_run_plan *plan, double rate,
                           tr_step_traffic *out);

/* Writes "41 s", "12 min", "3.5 h" or "20 days" to text[size] and returns it. */
const char *cli_duration(double seconds, char *text, size_t size);
