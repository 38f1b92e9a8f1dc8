/* What the parameters of a rank take. The plan counts by these functions and train/store.c places
 * by them, so that a planned byte is an allocated byte. */
#pragma once

#include "layers/placement.h"

/* Elements that all parameters of one rank take, the room between them included. */
typedef struct tr_param_memory {
    size_t values; /* of values, masters and each moment */
    size_t grads;  /* every use of a tied parameter has its own */
    int params;    /* that live there, every use counted */
} tr_param_memory;

/* Measures the parameters of pipeline rank pp_rank; allocates nothing. */
tr_param_memory tr_memory_of_params(const tr_model *model, const tr_placement *placement,
                                    int pp_rank);
/* Bytes of one value together with its FP32 master; in FP32 the value is the master. */
size_t tr_memory_value_size(tr_dtype dtype);
/* Bytes by class: values and masters, gradients, both moments. */
void tr_memory_params_bytes(const tr_param_memory *memory, tr_dtype dtype, size_t *values,
                            size_t *grads, size_t *states);

/* Offset in elements, rounded up so that 16-bit values begin on TR_ALIGN too. */
size_t tr_memory_params_align(size_t elements);
/* Element where a parameter begins in memory that is taken up to element `end`. */
size_t tr_memory_params_begin(const tr_param *param, size_t end);
