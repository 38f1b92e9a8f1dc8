/* The terminal that the output of a job ends on. */
#pragma once

#include <stdio.h>

/* What `trireme run` tells its ranks: the columns of the terminal that their output ends on, or 0.
 * mpirun gives every rank a pseudo-terminal, whatever mpirun itself writes to. When the size
 * changes, the new one is on the board. */
#define TR_TERMINAL_VARIABLE "TRIREME_TERMINAL"

/* Columns of the terminal that `file` is; 0 when it is none, or TERM is missing or "dumb". */
int tr_terminal_columns(FILE *file);
