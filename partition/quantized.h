/* The step of an optimizer that keeps its states in fewer bits than FP32 (optim.moments), or of
 * BF16 parameters without masters (optim.master none): these numbers of a part of a parameter are
 * widened to FP32, stepped, and rounded again, part by part. The plan measures here, and
 * train/moments.c allocates the same. */
#pragma once

#include "device/op.h"
#include "layers/param.h"
#include "partition/optim_row.h"

/* Returns how many elements are stepped at a time, when the largest parameter of this rank has that
 * many: on the host as many as its caches hold. */
int64_t tr_quantized_part(const tr_device *device, int64_t largest);
/* What a step widens: states 0, 1 ... of the optimizer, and the parameter itself. */
enum { TR_QUANTIZED_VALUE = TR_OPTIM_STATES, TR_QUANTIZED_KINDS };

/* Returns the bytes in which they are widened, each kind's aligned; 0 when nothing is quantized. */
size_t tr_quantized_bytes(const tr_device *device, tr_optim_memory optimizer, int64_t largest);

/* Describes the rounding of `count` elements of a kind of the parameter's numbers to `to`. Its bits
 * are drawn for the elements of the global tensors, so no layout changes them. Fails with
 * TR_ERR_INTERNAL when a box of the parameter is no matrix. */
tr_status tr_quantized_round(const tr_param *param, tr_dtype to, int kind, int64_t count,
                             tr_op_desc *out);
/* Describes how `count` elements of them are widened. State 1 is of squares. */
tr_op_desc tr_quantized_widen(tr_dtype from, int kind, int64_t count);
