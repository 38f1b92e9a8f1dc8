/* The layout of a model on a mesh by a schedule: the cut into stages, the lowered programs and the
 * bytes of every rank. All of it is known before memory is allocated. */
#pragma once

#include "comm/comm.h"
#include "layers/placement.h"
#include "partition/cut_for_schedule.h"
#include "partition/memory_plan.h"
#include "partition/param_memory.h"
#include "partition/step_end.h"
#include "pipeline/program/lower.h"

/* A smaller batch that some training steps take, and its order. */
typedef struct tr_smaller_batch {
    int64_t batch;
    const tr_schedule *schedule; /* with the stages of the whole batch's, on the same ranks */
} tr_smaller_batch;

typedef struct tr_layout_desc {
    tr_mesh mesh; /* its tensor index selects the share of the layers */
    tr_model_config model;
    int64_t batch, micro_batch; /* sequences of a step; of one micro-batch on one data rank */
    tr_dtype dtype;
    tr_optim_memory optimizer;
    bool noise;                            /* a step measures the noise scale (train/noise.h) */
    int zero;                              /* parallel.zero: what the data ranks divide */
    tr_reduce reduce;                      /* how ranks sum gradients: parallel.reduce */
    tr_own_sums own;                       /* as of tr_world_own_sums */
    int64_t offload_first, offload_stages; /* that offload activations: device.offload */
    bool apart;                            /* as in tr_memory_plan */
    bool background;                       /* saves from a copy: checkpoint.background */
    bool documents;                        /* see tr_model_shape */
    int64_t seq;                           /* tokens of a sequence; 0: model.context */
    /* Only validates: without gradients, optimizer state and the program of a training step. */
    bool forward_only;
    bool decodes; /* between steps the ranks decode one text (layers/cached.h) in the arena */
    /* Of mesh.degree[pp] ranks and the step's micro-batches; used until it is lowered. */
    const tr_schedule *schedule;
    /* Used while the layout is made. */
    const double *room; /* [mesh.degree[pp]]: of tr_cut_memory */
    const int *first;   /* [schedule->stages + 1]: the cut of another tensor rank; NULL: none yet */
    const char *cut;    /* parallel.cut, as tr_layer_cut_read reads it; NULL: the cut is chosen */
    /* Steps that train with fewer micro-batches; used as long as the layout. */
    const tr_smaller_batch *smaller; /* [smaller_count] */
    int smaller_count;
} tr_layout_desc;

enum { TR_LAYOUT_TRAIN, TR_LAYOUT_VALIDATE, TR_LAYOUT_PROGRAMS };

typedef struct tr_layout {
    tr_layout_desc desc;
    int micro_batches; /* of a step on one data rank */
    tr_model *model;
    int *first, *owner; /* [stages + 1], [stages]: placement points to them */
    bool for_room;      /* the cut is made for desc.room */
    tr_placement placement;
    size_t *decoding; /* [pipeline ranks]: bytes of the decoding layers; after tr_layout_prepare */
    size_t decoding_message; /* likewise: bytes of the largest message while the ranks decode */
    tr_stage_table table;    /* scratch: after tr_layout_lower */
    tr_program_set *program[TR_LAYOUT_PROGRAMS]; /* after tr_layout_lower; NULL: not needed */
    tr_program_set *
        *smaller; /* [desc.smaller_count], likewise: of the steps with smaller batches */
    tr_step_end_vector vector; /* likewise: of the end of a step */
} tr_layout;

/* Creates the model, without memory, and cuts it into the schedule's stages (tr_cut_for_schedule),
 * unless the cut is given. Fails with TR_ERR_CONFIG when sizes contradict each other, or the given
 * cut has other stages than the schedule. The caller releases *out with tr_layout_destroy. */
tr_status tr_layout_create(const tr_layout_desc *desc, tr_layout **out);
void tr_layout_destroy(tr_layout *layout);

/* Writes the layers of every stage, as "0-3 | 4-7", to text[size]. */
void tr_layout_cut(const tr_layout *layout, char *text, size_t size);

/* Returns the number of pipeline ranks from which this one receives messages, those at the other
 * ends of its edges. */
int tr_layout_neighbours(const tr_layout *layout, int pp_rank);

/* Returns the context of a pipeline rank's operators: as `common`, but products leave compute units
 * to the receives of its neighbours, `receive_units` each (tr_world_receive_units). */
tr_op_context tr_layout_context(const tr_layout *layout, const tr_op_context *common,
                                int receive_units, int pp_rank);

/* Prepares the layers of pipeline rank pp_rank, or of every rank when it is below 0, each in its
 * rank's context. tp: see tr_layer_env. Call it once. */
tr_status tr_layout_prepare(tr_layout *layout, const tr_op_context *common, int receive_units,
                            tr_group *tp, int pp_rank);
/* Lowers the step and its validation. The layers were prepared before, because the operators'
 * scratch is part of the arena. Call it once. */
tr_status tr_layout_lower(tr_layout *layout);

/* Lists the step inputs that the stages of a pipeline rank ask for, in input[TR_STEP_INPUTS];
 * tr_layout_step_bytes returns the bytes of one for a whole step on one data rank. */
void tr_layout_step_inputs(const tr_layout *layout, int pp_rank, tr_flow *input, int *inputs);
size_t tr_layout_step_bytes(const tr_layout *layout, const tr_flow *input);

/* Returns the programs of a training step with this batch, the whole one or one of the smaller;
 * after tr_layout_lower. */
const tr_program_set *tr_layout_step(const tr_layout *layout, int64_t batch);

/* Returns true when NCCL, if it sums the gradients, adds three or more values in an order of its
 * own. */
bool tr_layout_sums_freely(const tr_layout *layout);

/* Returns the memory of the parameters of the rank at these indices. */
tr_param_memory tr_layout_params(const tr_layout *layout, int pp_rank, int dp_rank);
/* Computes what each pipeline rank of the first tensor and data rank needs, counted as in
 * desc.room, to need[mesh.degree[pp]]. Call it before tr_layout_lower, or while the schedule
 * exists. */
tr_status tr_layout_needs(const tr_layout *layout, double *need);
/* Fills the bytes that do not depend on prepared layers: parameters, gradients, optimizer state,
 * step inputs. */
void tr_layout_memory_known(const tr_layout *layout, int pp_rank, int dp_rank, tr_memory_plan *out);
/* Fills all bytes that the rank at mesh->index will take, exactly, after tr_layout_lower. mesh: the
 * layout's, with other indices; the tensor index is the layout's or that of a rank alike. */
tr_status tr_layout_memory(const tr_layout *layout, tr_device *device, const tr_mesh *mesh,
                           tr_memory_plan *out);
/* Fails with TR_ERR_FIT when the plan of a rank exceeds the limit (0: none), and lists its parts
 * and what makes it smaller. device: of the run. is_free: as in tr_memory_refuse. */
tr_status tr_layout_check_fit(const tr_layout *layout, tr_device *device, int pp_rank,
                              const tr_memory_plan *plan, size_t limit, bool is_free);
/* Returns the bytes in which a pipeline rank's programs keep activations in the host's memory. */
size_t tr_layout_host(const tr_layout *layout, int pp_rank);
/* Returns the bytes of a pipeline rank's arena, which training with every batch, validation and
 * decoding share because they do not run at the same time. */
size_t tr_layout_arena(const tr_layout *layout, int pp_rank);
