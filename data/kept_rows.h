/* Rows of data.format instruct (source.h), kept in a file, so that the ranks of a run need not
 * encode the conversations again. All little-endian:
 *
 *   8 bytes "TRROWS 1", u64 tokens, filled, answers, documents, cut, skipped, ends
 *   i64 end[ends], u32 tokens[tokens] with TR_TOKEN_GIVEN */
#pragma once

#include "data/source.h"

/* Writes the rows, which are in memory, to a file next to `path`, and renames it. Fails with
 * TR_ERR_IO; nothing is left then. */
tr_status tr_kept_rows_write(const tr_source *rows, const char *path);
/* Opens such a file like tr_source_open; tokens stay in the file. Fails with TR_ERR_DATA when it is
 * damaged. */
tr_status tr_kept_rows_open(const char *path, tr_source *out);
