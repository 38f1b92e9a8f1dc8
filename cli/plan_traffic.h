/* What travels between the ranks of a plan, and to their hosts, and how long it takes. */
#pragma once

#include "config/config.h"
#include "partition/run_plan.h"

/* Prints a line each for messages, sums of gradients, gathers of parameters, sums over tensor ranks
 * and copies of activations, where a plan has them: of the pipeline rank that waits longest, or
 * sends longest. rate: a rank's FLOP/s. Sets *step to the seconds of a step with all of them, and
 * with the optimizer's steps on the host. */
tr_status cli_plan_traffic(const tr_config *config, const tr_run_plan *plan, double rate,
                           double *step);

/* Writes "41 s", "12 min", "3.5 h" or "20 days" to text[size] and returns it. */
const char *cli_duration(double seconds, char *text, size_t size);
