/* Files that are written whole. */
#pragma once

#include "base/status.h"

#include <stdio.h>

/* Creates or empties a file whose name the program has chosen. Does not block on a FIFO of that
 * name. Fails with TR_ERR_IO, path and cause. */
tr_status tr_output_open(const char *path, FILE **out);
/* Closes the file. Returns `status` if that is a failure, else TR_ERR_IO with path and cause when a
 * part of the text could not be written. */
tr_status tr_output_close(const char *path, FILE *out, tr_status status);
