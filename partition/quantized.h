/* The step of an optimizer that keeps its states or the sums of gradients in fewer bits than FP32
 * (optim.moments, optim.gradients), or of BF16 parameters without masters (optim.master none):
 * these numbers of a part of a parameter are widened to FP32, stepped, and all except gradients
 * rounded again, part by part. The plan measures here, and train/updates.c allocates the same. */
#pragma once

#include "layers/rounding.h"
#include "partition/optim_row.h"

/* Returns how many elements are stepped at a time, when the largest parameter of this rank has that
 * many: on the host as many as its caches hold. */
int64_t tr_quantized_part(bool on_host, int64_t largest);
/* A step widens numbers of the kinds of TR_PARAM_ROUNDING_STATE and above: states 0, 1 ... of the
 * optimizer, the parameter itself, and its gradient. */
enum { TR_QUANTIZED_KINDS = TR_PARAM_ROUNDING_GRADIENT + 1 };
_Static_assert((int)TR_OPTIM_STATES <= (int)TR_PARAM_ROUNDING_VALUE, "states have the first kinds");

/* Returns the bytes in which they are widened, each kind's aligned; 0 when nothing is quantized. */
size_t tr_quantized_bytes(bool on_host, tr_optim_memory optimizer, int64_t largest);

/* Describes how `count` numbers are widened. code: of TR_U8. */
tr_op_desc tr_quantized_widen(tr_dtype from, tr_code8 code, int64_t count);
