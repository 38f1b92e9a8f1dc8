/* Parameters. Layers list their parameters; initialization, optimizer, gradient norm, checkpoint
 * and export all use this one registry.
 *
 * A parameter is one dense range of a rank's memory with one owner (layers/param_layout.h). It
 * holds boxes of one or more global tensors, so one local matrix may serve q_proj, k_proj and
 * v_proj. If rows of a local matrix have different owners (key heads that neighbours share, and
 * query heads of only this rank), the matrix is several parameters, joined in memory. Two
 * parameters of a rank hold boxes of the same tensor only when they are uses of a tied one. */
#pragma once

#include "base/dtype.h"
#include "base/status.h"
#include "comm/mesh.h"
#include "device/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* A checkpoint prefixes a tensor's name with a group, such as "weights/"; a parameter's name leaves
 * room for it. */
enum { TR_PARAM_RANK = 4, TR_NAME_SIZE = 128, TR_NAME_GROUP = 12 };

/* A box of a global tensor: its global offset and extent, and its place in the parameter's local
 * memory (offset and strides in elements). */
typedef struct tr_box {
    int64_t offset[TR_PARAM_RANK], extent[TR_PARAM_RANK];
    int64_t local_offset, local_stride[TR_PARAM_RANK];
} tr_box;

/* A tensor of the whole model, and the boxes of it that a parameter holds on this rank. */
typedef struct tr_global {
    char name[TR_NAME_SIZE]; /* Hugging Face name */
    int rank;
    int64_t shape[TR_PARAM_RANK]; /* 1 beyond rank */
    int boxes;
    tr_box *box; /* [boxes], of at least one element each */
} tr_global;

typedef enum tr_init {
    TR_INIT_ZERO,
    TR_INIT_ONE,
    TR_INIT_NORMAL,  /* of deviation init_std */
    TR_INIT_UNIFORM, /* within init_std of 0 */
    /* model.init: of matrices, with init_std as a factor, except of TRUNCATED. in and out are the
     * whole tensor's. */
    TR_INIT_TRUNCATED, /* normal of deviation init_std, drawn again beyond two of them */
    TR_INIT_XAVIER,    /* uniform within sqrt(6 / (in + out)) of 0 (Glorot & Bengio 2010) */
    TR_INIT_HE,        /* normal of deviation sqrt(2 / in) (He et al. 2015) */
    TR_INIT_ORTHOGONAL /* layers/orthogonal.h */
} tr_init;

typedef struct tr_param {
    int tensors;
    tr_global *tensor;            /* [tensors]; the first one's name names the parameter */
    int use;                      /* 0: the parameter itself; k > 0: another use of it (tied) */
    int index;                    /* registry order: position in the whole model's list */
    int turn;                     /* the same for all uses of a tied one: the index of use 0 */
    bool tied;                    /* the model has another use of it */
    int64_t local[TR_PARAM_RANK]; /* local shape, of the tensors' rank; local memory is dense */
    int64_t count;                /* local elements */
    tr_init init;
    float init_std;
    int init_inputs; /* the axis of a matrix's inputs */
    bool decay;      /* weight decay applies */
    bool is_linear;  /* a matrix of a linear layer inside the model, without low-rank updates */
    /* Set by tr_tuning_apply when the layer is created; tr_param_describe makes a parameter that is
     * trained. */
    bool frozen; /* never changes: it has no optimizer state and no part in the gradient's norm */
    double lr_scale; /* factor of the learning rate */
    /* W writes its gradient. A frozen parameter has a gradient, which nothing reads, only when one
     * operator writes it together with that of a trained one. */
    bool has_grad;
    /* Neighbours along each axis that hold the same boxes; 0: all ranks of the axis. Runs of
     * neighbours begin at multiples of their length: with 2 over a tensor group of 4, ranks 0 and 1
     * hold the same boxes, and 2 and 3. */
    int copies[TR_AXIS_COUNT];
    /* Axes, as TR_AXIS_BIT, along which each copy computes only a part of the gradient, so that the
     * copies' parts are summed. Along the other axes all copies compute the same gradient. */
    unsigned partial;
    /* With parallel.zero: one data rank updates all of this parameter, the one at place `owner`
     * among those that hold it (partition/owners.h). Otherwise they cut it. */
    bool whole;
    int owner;
    /* Value and gradient directly follow those of the previous parameter in the layer's list,
     * without a gap, and operators use both as one matrix. Neither is tied; both decay or neither
     * does. */
    bool joined;

    /* Memory, set before the layer runs. Uses of one parameter on the same rank share the value,
     * and each has its own gradient. */
    tr_dtype dtype; /* of value: the model's */
    void *value;    /* local */
    /* Local, summed over the step's micro-batches; NULL unless has_grad. In tr_dtype_acc(dtype), or
     * BF16 if there is an addend. */
    void *grad;
    /* FP32, local: W writes the gradient of one micro-batch here, and its stage then adds it to
     * `grad` with stochastic rounding. Other layers use the same memory. NULL: W writes `grad`, or
     * adds to it. */
    void *addend;
} tr_param;

static inline const char *tr_param_name(const tr_param *param) {
    return param->tensor[0].name;
}

/* Return the parameter's value, and where W writes its gradient, as tensors of the local shape. */
tr_tensor tr_param_value(const tr_param *param);
tr_tensor tr_param_grad(const tr_param *param);

/* Makes the gradients of `count` adjacent parameters of a layer exist together, because one
 * operator writes them: all have one if any of them is trained. Returns true if they have. */
bool tr_params_grad_together(tr_param *params, int count);

/* A run of indices along one dimension. */
typedef struct tr_range {
    int64_t begin, extent;
} tr_range;

/* Returns part `index` of `parts` equal parts of 0..total; the first total % parts have one
 * more. */
tr_range tr_range_part(int64_t total, int parts, int index);

enum { TR_BOX_CUTS = 2 * TR_PARAM_RANK - 1 };
/* Cuts out the elements of a tensor's box that have their places in local memory in `range`. Writes
 * the boxes that hold them to cut[TR_BOX_CUTS], with places from range.begin on, and returns their
 * number, which is 0 when there are none. The box's strides must be those of a dense array of which
 * it is a part, with axes in any order. */
int tr_box_cut(const tr_box *box, int rank, tr_range range, tr_box *cut);

/* Returns the elements of the whole tensor. */
int64_t tr_global_count(const tr_global *tensor);

/* Fills dense local FP32 memory local[param->count] with the initial values, using `threads`
 * threads. Every element depends only on (seed, name of its global tensor, global row-major
 * index). Fails with TR_ERR_FIT when there is no memory for a whole tensor of
 * TR_INIT_ORTHOGONAL. */
tr_status tr_param_init(const tr_param *param, uint64_t seed, int threads, float *local);
