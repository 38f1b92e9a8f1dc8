/* The step of an optimizer that keeps its states in 8 bits (optim.moments int8): the states of a
 * part of a parameter are widened to FP32, stepped and rounded again, part by part. (BF16 numbers
 * are widened and rounded by the step itself, see UPDATE.) The plan measures here, and
 * train/updates.c allocates the same. */
#pragma once

#include "partition/optim_row.h"

/* Returns how many elements are stepped at a time, when the largest parameter of this rank has that
 * many: on the host as many as its caches hold. */
int64_t tr_quantized_part(bool on_host, int64_t largest);
/* Returns the bytes in which they are widened, each state's aligned; 0 when none has 8 bits. */
size_t tr_quantized_bytes(bool on_host, tr_optim_memory optimizer, int64_t largest);

/* Describes how `count` numbers are widened. code: of TR_U8. */
tr_op_desc tr_quantized_widen(tr_dtype from, tr_code8 code, int64_t count);
