/* What Open MPI and its mpirun print, apart from the job's own output.
 *
 * Complaints are lines of a process about another one that has died. Notices are the blocks between
 * rows of dashes in which mpirun of version 5 says how ranks or hosts ended. Both are removed,
 * since the job's own message says what happened. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns true when data[bytes] ends in what may be the beginning of a notice. */
bool tr_mpi_notice_is_open(char *data, size_t bytes);
/* Removes complaints and notices from data[bytes], which begins with a line; returns the remaining
 * bytes. Writes each notice as one line to the file; -1: none. *after_notice belongs to the stream,
 * false at first: the last bytes were those of a notice, and a NUL may follow. */
size_t tr_mpi_output_clean(char *data, size_t bytes, int file, bool *after_notice);
/* Removes the lines that contain `text` from data[bytes]; returns the remaining bytes. */
size_t tr_drop_lines(char *data, size_t bytes, const char *text);
