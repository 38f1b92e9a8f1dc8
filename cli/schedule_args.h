/* What the commands about schedules share: a schedule's name or file, sizes, costs and memory. */
#pragma once

#include "pipeline/orders/estimate.h"
#include "pipeline/orders/generate.h"

typedef struct cli_schedule_args {
    const char *command;         /* for messages */
    tr_schedule_request request; /* name NULL until it is set */
} cli_schedule_args;

/* costs 1, 1, 1, 0 and memory 1, 0, no cap. */
void cli_schedule_args_init(const char *command, cli_schedule_args *args);

/* Takes -p -m -v -N --costs --memory with their values at argv[*at]: *taken says whether it was one
 * of them, and *at moves to its last word. TR_ERR_USAGE for a value that is none. */
tr_status cli_schedule_args_take(cli_schedule_args *args, int argc, char **argv, int *at,
                                 bool *taken);

/* A path that ends in .csv or has a '/', or a file that has no schedule's name. */
bool cli_schedule_is_file(const char *name);
/* The order of `name`: a generator's for args' sizes, or a file's, which must have the sizes that
 * were given. A file is checked as it is read. */
tr_status cli_schedule_open(const cli_schedule_args *args, const char *name, tr_schedule **out);

/* Its times and memory; `times`: with those of every action. */
tr_status cli_schedule_estimate(const cli_schedule_args *args, const tr_schedule *schedule,
                                bool times, tr_estimate **out);
