/* The commands ckpt import and ckpt export. */
#pragma once

#include "cli/cli.h"

/* Runs argv[1], which is import or export. */
tr_status cli_ckpt_transfer(cli_context *cli, int argc, char **argv);
