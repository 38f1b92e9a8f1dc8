/* The optimizers: one row each says which rule of the device it takes, and which states it owns and
 * how checkpoints name them. */
#pragma once

#include "config/config.h"
#include "device/op.h"
#include "layers/param.h"

typedef enum tr_optim_kind {
    TR_OPTIM_ADAMW,
    TR_OPTIM_ADAM,
    TR_OPTIM_SGD,
    TR_OPTIM_MOMENTUM, /* optim.name sgd with optim.momentum above 0 */
    TR_OPTIM_LION,
    TR_OPTIM_LAMB,
    TR_OPTIM_MUON,             /* of matrices; the other parameters are AdamW's */
    TR_OPTIM_ADAFACTOR,        /* of matrices; the other parameters are the next one's */
    TR_OPTIM_ADAFACTOR_VECTOR, /* optim.name adafactor, of parameters with one axis */
    TR_OPTIM_KINDS
} tr_optim_kind;

enum { TR_OPTIM_STATES = TR_UPDATE_STATES }; /* the most that one owns */

typedef struct tr_optim_row {
    const char *name; /* optim.name */
    tr_update_rule rule;
    bool couples; /* optim.weight_decay is added to the gradient, like optim.l2 */
    /* The rule gives directions, and each tensor is stepped along its own (DIRECTION, DESCEND). */
    bool by_tensor;
    bool whole;       /* the step of a tensor needs all of its elements on one rank (owners.h) */
    bool decays_last; /* weight decay is part of DESCEND, not of the direction */
    /* The states' groups in checkpoints, in the order of the rule's operands; of ADAFACTOR in that
     * of a tensor's axes; NULL after the last. Optimizers that continue with each other's state
     * name it alike. */
    const char *state[TR_OPTIM_STATES];
    tr_code8 code[TR_OPTIM_STATES]; /* theirs with optim.moments int8 */
} tr_optim_row;

const tr_optim_row *tr_optim_row_of(tr_optim_kind kind);
/* Returns the optimizer that steps the parameter when the run's is `kind`. */
tr_optim_kind tr_optim_kind_for(tr_optim_kind kind, const tr_param *param);
/* Returns how many states an optimizer keeps for each parameter that it steps. */
int tr_optim_states(tr_optim_kind kind);
/* Returns how many numbers state k of a parameter has on a rank that updates `own` of its elements:
 * `own`; but ADAFACTOR, which updates all elements, has one number for each row in memory (state 0)
 * and for each column (state 1). */
int64_t tr_optim_state_count(tr_optim_kind kind, const tr_param *param, int k, int64_t own);
/* Returns how many numbers all states of a whole tensor have. */
int64_t tr_optim_state_total(tr_optim_kind kind, const tr_global *tensor);

/* What a run keeps of its optimizer. */
typedef struct tr_optim_memory {
    tr_optim_kind kind;
    tr_dtype moments;   /* of its states: TR_F32 (in an FP64 model FP64), TR_BF16, or TR_U8:
                           base/code8.h */
    bool no_master;     /* a BF16 model has no FP32 copies of its parameters */
    tr_dtype gradients; /* of their sums: TR_F32 (in an FP64 model FP64) or TR_BF16 */
    bool offload;       /* states and masters are in the host's memory (partition/offload.h) */
} tr_optim_memory;

/* Return the types of the states, and of the sums of gradients, in a model of this storage type. */
tr_dtype tr_optim_state_dtype(tr_optim_memory memory, tr_dtype dtype);
tr_dtype tr_optim_grad_dtype(tr_optim_memory memory, tr_dtype dtype);
/* Returns true when the sums of gradients have fewer bits than W's results: W writes addends
 * (tr_param.addend), and the optimizer's step widens the sums. */
bool tr_optim_narrow_grads(tr_optim_memory memory);

/* An optimizer and its coefficients. */
typedef struct tr_optim_config {
    double beta1, beta2, eps, weight_decay;
    tr_optim_kind kind;
    tr_dtype moments;   /* as in tr_optim_memory */
    bool no_master;     /* likewise */
    tr_dtype gradients; /* likewise */
    bool offload;       /* likewise */
    double momentum, clip_value, l1, l2;
    bool nesterov;
} tr_optim_config;

/* Returns what the config's keys of optim say. */
tr_optim_config tr_optim_of(const tr_config *config);

tr_optim_memory tr_optim_memory_of(const tr_optim_config *optimizer);

/* Describes the step of `count` adjacent elements, or of an optimizer that steps by tensor their
 * directions. decays: these parameters have weight decay, L1 and L2. */
tr_op_desc tr_optim_update(const tr_optim_config *optimizer, int64_t count, tr_dtype dtype,
                           bool decays, double lr_scale);

/* Returns true when DIRECTION with this description would only multiply gradients by the state's
 * gradient_factor. */
bool tr_optim_only_scales(const tr_op_desc *desc);

/* Describes the step of a tensor's `count` elements on this rank along their directions; other
 * ranks have the other parts of the whole tensor. */
tr_op_desc tr_optim_descend(int64_t count, int parts, tr_dtype dtype, double lr_scale);

enum { TR_OPTIM_NAMES = 64 };
/* Returns true when an optimizer has Adam's moments, or Adafactor's, and `before` lacks those of
 * some parameter: then all states begin at zero, and their count of steps begins again. */
bool tr_optim_restarts(tr_optim_kind kind, tr_optim_kind before);
/* Returns true when an optimizer goes on with a state of `before`. */
bool tr_optim_continues(tr_optim_kind kind, tr_optim_kind before);
/* Writes the groups of the states that begin at zero in an optimizer after `before`, with ", "
 * between them, to text[TR_OPTIM_NAMES]. */
void tr_optim_new_states(tr_optim_kind kind, tr_optim_kind before, char *text);
