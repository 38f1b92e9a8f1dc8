/* The terminal that shows the output of a job. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Environment variable in which `trireme run` passes its ranks the columns of the terminal that
 * shows their output, or 0. The ranks cannot ask: mpirun gives every rank a pseudo-terminal,
 * whatever mpirun itself writes to. A later size is on the board. */
#define TR_TERMINAL_VARIABLE "TRIREME_TERMINAL"

/* Returns the columns of the terminal that `file` is; 0 when it is not a terminal, or TERM is
 * missing or "dumb". */
int tr_terminal_columns(FILE *file);
/* Returns the columns that TR_TERMINAL_VARIABLE tells a rank that a launcher started, 0 without a
 * terminal; -1 in other processes, which can ask the file. */
int tr_terminal_told_columns(void);
/* Returns true when a terminal shows what is written to `file`. */
bool tr_terminal_shows(FILE *file);
