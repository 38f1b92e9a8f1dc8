/* HDF5 as ckpt/ uses it: a container format, not the way to the disk.
 *
 * HDF5 1.10 does not fsync, can report success after a failed write of data, and can crash at exit
 * after a failed flush. So room is reserved before it writes; of a shard it writes the layout
 * alone; the index it wrote is read back and compared; and we fsync. An index is parsed from
 * memory: the bytes whose checksum was verified are the bytes that are parsed. */
#pragma once

#include "base/status.h"

#include <hdf5.h>
#include <stdbool.h>

/* Before any use in a function: no printing, no exit handler, no plugins. Per thread, cheap. */
void tr_h5_begin(void);
/* TR_FAIL(code, "HDF5 cannot <what> <name>: <HDF5's own reason>"). Call before closing handles. */
tr_status tr_h5_fail(tr_status code, const char *what, const char *name);
/* A new file (or an empty one made new): no time stamps, checksummed metadata, payload of 64 KiB
 * and more on pages. */
tr_status tr_h5_create(const char *path, hid_t *file);
/* Closes the file and all objects in it. */
tr_status tr_h5_finish(const char *name, hid_t file);
/* A dataset creation list without time stamps, or negative. */
hid_t tr_h5_dataset_list(void);
/* Attributes of an object; false on failure. */
bool tr_h5_set_text(hid_t object, const char *name, const char *text);
bool tr_h5_set_i64(hid_t object, const char *name, int count, const int64_t *values);
