/* Whether an MPI launcher started this process, by the variables of Open MPI, PMIx and PMI. */
#pragma once

#include <stdbool.h>

/* Returns the rank that the launcher gave this process, or -1 when no variable names one. MPI need
 * not have started. */
int tr_launched_rank(void);
bool tr_is_launched(void);
