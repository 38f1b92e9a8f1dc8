/* Arguments that the commands about schedules share: name or file, sizes, costs and memory. */
#pragma once

#include "pipeline/orders/estimate.h"
#include "pipeline/orders/generate.h"

typedef struct cli_schedule_args {
    const char *command;         /* for messages */
    tr_schedule_request request; /* name NULL until it is set */
} cli_schedule_args;

/* Sets costs 1, 1, 1, 0 and memory 1, 0 without a cap. */
void cli_schedule_args_init(const char *command, cli_schedule_args *args);

/* Takes -p -m -v -N --costs --memory with their values at argv[*at]. Sets *taken when it was one of
 * them, and moves *at to its last word. Fails with TR_ERR_USAGE on a bad value. */
tr_status cli_schedule_args_take(cli_schedule_args *args, int argc, char **argv, int *at,
                                 bool *taken);

/* Returns true for a path that ends in .csv or has a '/', and for a file that is not named like a
 * schedule. */
bool cli_schedule_is_file(const char *name);
/* Makes the order `name` for args' sizes, or reads it from a file, which must have the sizes that
 * were given. Checks a file while reading it. */
tr_status cli_schedule_open(const cli_schedule_args *args, const char *name, tr_schedule **out);

/* Estimates an order's times and memory; `times`: also the times of every action. */
tr_status cli_schedule_estimate(const cli_schedule_args *args, const tr_schedule *schedule,
                                bool times, tr_estimate **out);
