/* The memory of a rank's parameters. The plan counts with these functions and train/store_place.c
 * places with them, so that planned bytes equal allocated bytes. */
#pragma once

#include "layers/placement.h"
#include "partition/optim_row.h"

/* The elements of all parameters of one rank, including gaps between them. */
typedef struct tr_param_memory {
    size_t values;                 /* or of the portions, if they are divided */
    size_t masters;                /* of trained parameters, or their portions, if they have some */
    size_t state[TR_OPTIM_STATES]; /* of those with an optimizer that has it */
    size_t grads;  /* every use of a tied parameter has its own; without those in the arena */
    size_t addend; /* of the layer with most gradients, if their sums are in fewer bits than FP32 */
    int params;    /* parameters of the rank, every use counted */
    double updates;  /* elements that this rank updates */
    double directed; /* those of them that are stepped along directions (tr_optim_row.by_tensor) */
    tr_optim_memory optimizer;
} tr_param_memory;

/* Measures the parameters of pipeline rank pp_rank; allocates nothing. divided: the mesh with the
 * data ranks that divide masters and states, seen from one of them (tr_param_portion), or NULL.
 * zero: parallel.zero, what else they divide. */
tr_param_memory tr_memory_of_params(const tr_model *model, const tr_placement *placement,
                                    int pp_rank, const tr_mesh *divided, int zero,
                                    tr_optim_memory optimizer);
/* Measures what a layer's parameters add at least to a rank: another use of a tied one is on the
 * same rank, another data rank updates those that one updates as a whole, and no addend counts. The
 * sums over a rank's layers are never more than what tr_memory_of_params counts. */
tr_param_memory tr_memory_of_layer(const tr_layer *layer, const tr_mesh *divided, int zero,
                                   tr_optim_memory optimizer);
/* Returns the mesh if its data ranks divide masters and states (parallel.zero), or NULL. */
const tr_mesh *tr_memory_divided(const tr_mesh *mesh, int zero);
/* Returns the mesh if its data ranks sum in two stages, near ones first, or NULL. */
const tr_mesh *tr_memory_factored(const tr_mesh *mesh);
/* Returns true when a rank keeps only the sums of its portions of gradients, and whole gradients
 * are in the arena (parallel.zero 2). */
bool tr_memory_in_arena(const tr_mesh *mesh, int zero);
/* Returns true when a rank keeps only the values of its portions of parameters, too, and whole
 * values are in the arena while their stage runs (parallel.zero 3). */
bool tr_memory_gathers(const tr_mesh *mesh, int zero);
/* Returns true when the optimizer steps the values: there are no masters. */
bool tr_memory_steps_values(tr_optim_memory optimizer, tr_dtype dtype);
/* Return the elements of a layer's gradients, and of its values, including gaps, in the order in
 * which the store places them or in any other. */
size_t tr_memory_layer_grads(const tr_layer *layer);
size_t tr_memory_layer_values(const tr_layer *layer);
/* Computes bytes by class: values and masters, gradients, the optimizer's states; without masters
 * and states when they are in the host's memory. */
void tr_memory_params_bytes(const tr_param_memory *memory, tr_dtype dtype, size_t *values,
                            size_t *grads, size_t *states);

/* Return the bytes of masters, and of the optimizer's states, wherever they are. */
size_t tr_memory_masters_bytes(const tr_param_memory *memory, tr_dtype dtype);
size_t tr_memory_states_bytes(const tr_param_memory *memory, tr_dtype dtype);

/* Returns the bytes of the elements that a checkpoint of the model holds: trained parameters in
 * FP32, frozen ones and those without a master in BF16 if they have that type, and the optimizer's
 * states in FP32, or BF16 where they are kept in that or in 8 bits. */
double tr_memory_of_checkpoint(const tr_model *model, tr_optim_memory optimizer);

/* Rounds an offset in elements up so that 16-bit values are aligned to TR_ALIGN, too. */
size_t tr_memory_params_align(size_t elements);
/* Returns the element at which a parameter begins in memory of values or gradients, or of masters
 * and states, that is used up to element `end`. */
size_t tr_memory_params_begin(const tr_param *param, size_t end);
size_t tr_memory_states_begin(const tr_param *param, const tr_mesh *divided, size_t end);
/* Return the same for the optimizer's states in this type, and the elements that hold `numbers`
 * numbers: in 8 bits by block (TR_U8) bytes, of which each parameter has whole blocks. */
size_t tr_memory_moments_begin(const tr_param *param, const tr_mesh *divided, tr_dtype dtype,
                               size_t end);
size_t tr_memory_moments_length(tr_dtype dtype, int64_t numbers);
