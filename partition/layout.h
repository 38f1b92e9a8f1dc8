/* A model laid out on a mesh by a schedule: the cut into stages, the lowered programs and the bytes
 * that every rank will take, all before anything is allocated. */
#pragma once

#include "layers/placement.h"
#include "partition/memory_plan.h"
#include "pipeline/program/lower.h"

typedef struct tr_layout_desc {
    tr_mesh mesh; /* its tensor index says whose share of the layers this is */
    tr_model_config model;
    int64_t batch, micro_batch; /* sequences of a whole step; of one micro-batch on one data rank */
    tr_dtype dtype;
    bool documents; /* as tr_model_shape says */
    /* Of mesh.degree[pp] ranks and the step's micro-batches; used until it is lowered. */
    const tr_schedule *schedule;
} tr_layout_desc;

enum { TR_LAYOUT_TRAIN, TR_LAYOUT_VALIDATE, TR_LAYOUT_PROGRAMS };

typedef struct tr_layout {
    tr_layout_desc desc;
    int micro_batches; /* of a step on one data rank */
    tr_model *model;
    int *first, *owner; /* [stages + 1], [stages]: what placement points to */
    tr_placement placement;
    tr_stage_table table;                        /* scratch: after tr_layout_lower */
    tr_program_set *program[TR_LAYOUT_PROGRAMS]; /* after tr_layout_lower */
} tr_layout;

/* The cut of a model into stages, balanced by FLOPs: first[stages + 1] as tr_cut_balanced has it.
 */
tr_status tr_layout_cut(const tr_model *model, int stages, int *first);

/* The model without memory, cut into the schedule's stages, balanced by FLOPs. TR_ERR_CONFIG for
 * sizes that do not go together. Release with tr_layout_destroy. */
tr_status tr_layout_create(const tr_layout_desc *desc, tr_layout **out);
void tr_layout_destroy(tr_layout *layout);

/* Number of pipeline ranks that this one receives messages from: those that an edge joins it with.
 */
int tr_layout_neighbours(const tr_layout *layout, int pp_rank);

/* Prepares the layers of pipeline rank pp_rank, or of every rank when it is below 0 (the operators'
 * scratch is part of the arena, and prepare alone knows it), and lowers the step and its
 * validation. tp: as tr_layer_env says. Called once. */
tr_status tr_layout_lower(tr_layout *layout, const tr_op_context *context, tr_group *tp,
                          int pp_rank);

/* The step inputs that the stages of a pipeline rank ask for, in input[TR_STEP_INPUTS]; and the
 * bytes of one on one data rank, of a whole step. */
void tr_layout_step_inputs(const tr_layout *layout, int pp_rank, tr_flow *input, int *inputs);
size_t tr_layout_step_bytes(const tr_layout *layout, const tr_flow *input);

/* What does not depend on prepared layers: parameters, gradients, optimizer state, step inputs. */
void tr_layout_memory_known(const tr_layout *layout, int pp_rank, tr_memory_plan *out);
/* Everything that the rank at pipeline index pp_rank and data index dp_rank will take, to the byte.
 * Its layers have been prepared by tr_layout_lower. */
tr_status tr_layout_memory(const tr_layout *layout, tr_device *device, int pp_rank, int dp_rank,
                           tr_memory_plan *out);
/* Arena of a pipeline rank: training and validation never run at once and share one. */
size_t tr_layout_arena(const tr_layout *layout, int pp_rank);
