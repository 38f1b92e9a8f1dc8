/* Looks for operands with an element that is not finite, to find the operator that makes the first
 * one. Slow: waits for the stream, and copies device memory to the host. */
#pragma once

#include "device/op.h"

enum { TR_FINITE_STAGING = 1 << 20 }; /* bytes */

/* Sets *name to the name of the first operand that the operator reads (written: that it has
 * written) and that has an element that is NaN or infinite; NULL: there is none. Operands of
 * integers are finite. staging: TR_FINITE_STAGING bytes of tr_device_staging_alloc; NULL where the
 * device computes on host memory. */
tr_status tr_op_find_not_finite(const tr_op *op, tr_stream *stream, const tr_op_args *args,
                                bool written, void *staging, const char **name);
