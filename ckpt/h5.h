/* HDF5 as ckpt/ uses it: as a container format; ckpt/ itself writes the data to disk.
 *
 * HDF5 1.10 does not fsync, can report success after a failed write of data, and can crash at exit
 * after a failed flush. So ckpt/ reserves room before HDF5 writes, lets it write only the layout of
 * a shard, reads the index back and compares it, and calls fsync itself. An index is parsed from
 * memory, from the same bytes that were verified. */
#pragma once

#include "base/status.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* Turns off HDF5's printing, exit handler and plugins for this thread. Cheap; every function calls
 * it before it uses HDF5. */
void tr_h5_begin(void);
/* Fails with `code` and "HDF5 cannot <what> <name>: <HDF5's own reason>". Call it before closing
 * handles. */
tr_status tr_h5_fail(tr_status code, const char *what, const char *name);
/* Creates a file, or takes an empty one. It has no time stamps and checksummed metadata; payload of
 * 64 KiB or more is aligned to pages. A failure of the file system is that of tr_io_fail, with
 * `needed`. */
tr_status tr_h5_create(const char *path, int64_t needed, hid_t *file);
/* Closes the file and all objects in it. Returns `status` if it is a failure; else fails like
 * tr_h5_create when the file cannot be closed. */
tr_status tr_h5_finish(const char *path, int64_t needed, hid_t file, tr_status status);
/* Returns a dataset creation list without time stamps; negative on failure. */
hid_t tr_h5_dataset_list(void);
/* Returns the type on disk of a tr_ckpt_type; negative on failure. The caller closes it. */
hid_t tr_h5_type(int64_t type);
/* Set attributes of an object; return false on failure. */
bool tr_h5_set_text(hid_t object, const char *name, const char *text);
bool tr_h5_set_i64(hid_t object, const char *name, int count, const int64_t *values);
