/* The end of a step: norms, the step's state, and the update. */
#include "base/philox.h"
#include "device/op_table.h"

static const char *sumsq_fault(const tr_op_desc *desc) {
    return tr_op_sizes_fit(0, desc->sumsq.count, 1, 1) ? NULL : "count is out of range";
}

static bool same_sumsq(const tr_op_desc *a, const tr_op_desc *b) {
    return a->sumsq.count == b->sumsq.count && a->sumsq.dtype == b->sumsq.dtype &&
           a->sumsq.part == b->sumsq.part;
}

static void sumsq_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_sumsq_desc *d = &desc->sumsq;
    const bool total = d->part == TR_SUMSQ_TOTAL;
    const int64_t sums = total ? d->count : tr_sumsq_blocks(d->count);
    if (!total) t[TR_SUMSQ_X] = tr_tensor_vector(NULL, d->dtype, d->count);
    if (d->part != TR_SUMSQ_BLOCKS) t[TR_SUMSQ_OUT] = tr_tensor_vector(NULL, TR_F64, 1);
    if (d->part != TR_SUMSQ_WHOLE) t[TR_SUMSQ_SUMS] = tr_tensor_vector(NULL, TR_F64, sums);
}

const tr_op_row tr_op_row_sumsq = {
    .name = "sumsq",
    .slot = {[TR_SUMSQ_X] = {"x", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_SUMSQ_OUT] = {"out", TR_SLOT_OUT, TR_TYPES_F64},
             [TR_SUMSQ_SUMS] = {"sums", TR_SLOT_BOTH | TR_SLOT_ONCE, TR_TYPES_F64}},
    .fault = sumsq_fault,
    .same = same_sumsq,
    .operands = sumsq_operands,
};

static const char *step_finish_fault(const tr_op_desc *desc) {
    const tr_step_finish_desc *d = &desc->step_finish;
    if (!tr_op_sizes_fit(0, d->losses, 2, 1) || !tr_op_sizes_fit(0, d->norms, 1, 1))
        return "losses and norms are out of range";
    return NULL;
}

static bool same_step_finish(const tr_op_desc *a, const tr_op_desc *b) {
    return a->step_finish.losses == b->step_finish.losses &&
           a->step_finish.norms == b->step_finish.norms;
}

static void step_finish_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_step_finish_desc *d = &desc->step_finish;
    t[TR_STEP_FINISH_LOSSES] = tr_tensor_matrix(NULL, TR_F64, d->losses, 2);
    t[TR_STEP_FINISH_NORMS] = tr_tensor_vector(NULL, TR_F64, d->norms);
    t[TR_STEP_FINISH_STATE] = tr_tensor_vector(NULL, TR_U8, sizeof(tr_step_state));
}

const tr_op_row tr_op_row_step_finish = {
    .name = "step_finish",
    .slot = {[TR_STEP_FINISH_LOSSES] = {"losses", TR_SLOT_IN, TR_TYPES_F64},
             [TR_STEP_FINISH_NORMS] = {"norms", TR_SLOT_IN, TR_TYPES_F64},
             [TR_STEP_FINISH_STATE] = {"state", TR_SLOT_BOTH, TR_TYPES_U8}},
    .fault = step_finish_fault,
    .same = same_step_finish,
    .operands = step_finish_operands,
};

/* Returns the fault of operands that are rounded, and of their boxes. */
static const char *rounding_fault(bool rounds, tr_dtype dtype, const tr_quantize_desc *rounding) {
    if (!rounds) return NULL;
    if (dtype == TR_F64) return "only FP32 is rounded";
    if (rounding->use % TR_ROUNDING_USES != 0)
        return "use is not the first of those that share bits";
    return tr_quantize_boxes_fault(rounding);
}

/* Returns the fault of states in codes: the kernels are made for those of the optimizers. */
static const char *code_fault(const tr_update_desc *d) {
    if (d->state_dtype != TR_U8) return NULL;
    if (d->code[0] != TR_CODE8_SIGNED &&
        !(d->code[0] == TR_CODE8_EVEN && d->rule == TR_UPDATE_MOMENTUM))
        return "M has the code of signed numbers, or with the rule of momentum the even one";
    if (d->rule == TR_UPDATE_ADAMW && d->code[1] != TR_CODE8_SQUARES)
        return "V has the code of squares";
    return NULL;
}

static const char *update_fault(const tr_op_desc *desc) {
    const tr_update_desc *d = &desc->update;
    if (!tr_op_sizes_fit(0, d->count, 1, 1)) return "count is out of range";
    if (!(d->beta1 >= 0 && d->beta1 < 1 && d->beta2 >= 0 && d->beta2 < 1 && d->eps >= 0))
        return "beta1, beta2 must lie in [0, 1) and eps must not be negative";
    if (!(d->lr_scale > 0)) return "lr_scale must be above 0";
    if (!(d->rule >= 0 && d->rule < TR_UPDATE_RULES)) return "there is no such rule";
    if (!(d->momentum >= 0 && d->clip_value >= 0 && d->l1 >= 0 && d->l2 >= 0))
        return "momentum, clip_value, l1 and l2 must not be negative";
    if (d->state_dtype != TR_F32 && d->state_dtype != TR_BF16 && d->state_dtype != TR_U8)
        return "states must be f32, bf16 or u8";
    const char *fault = code_fault(d);
    if (fault) return fault;
    return rounding_fault(d->state_dtype != TR_F32 || d->bf16_master, d->dtype, &d->rounding);
}

static bool same_update(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_update_desc *a = &x->update, *b = &y->update;
    return a->count == b->count && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->weight_decay == b->weight_decay && a->lr_scale == b->lr_scale &&
           a->dtype == b->dtype && a->rule == b->rule && a->momentum == b->momentum &&
           a->clip_value == b->clip_value && a->l1 == b->l1 && a->l2 == b->l2 &&
           a->nesterov == b->nesterov && a->bf16_grad == b->bf16_grad &&
           a->bf16_master == b->bf16_master && a->state_dtype == b->state_dtype &&
           a->code[0] == b->code[0] && a->code[1] == b->code[1] &&
           tr_quantize_same(&a->rounding, &b->rounding);
}

static uint64_t update_key(const tr_op_desc *desc) {
    return tr_quantize_key(&desc->update.rounding) ^ (uint64_t)desc->update.count;
}

/* Describes a vector in FP32, or FP64 where the model is, or in BF16. */
static tr_tensor vector_of(const tr_update_desc *d, bool bf16) {
    return tr_tensor_vector(NULL, bf16 ? TR_BF16 : tr_dtype_acc(d->dtype), d->count);
}

/* Fills the operands that UPDATE and DIRECTION have in common. */
static void common_operands(const tr_update_desc *d, tr_tensor *t) {
    const int states = tr_update_states(d->rule);
    t[TR_UPDATE_GRAD] = vector_of(d, d->bf16_grad);
    t[TR_UPDATE_MASTER] = vector_of(d, d->bf16_master);
    for (int k = 0; k < states; k++) {
        const bool codes = d->state_dtype == TR_U8;
        t[TR_UPDATE_M + k] = codes ? tr_tensor_vector(NULL, TR_U8, d->count)
                                   : vector_of(d, d->state_dtype == TR_BF16);
        if (codes)
            t[TR_UPDATE_M_SCALES + k] = tr_tensor_vector(NULL, TR_F32, tr_code8_blocks(d->count));
    }
}

static void update_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_update_desc *d = &desc->update;
    common_operands(d, t);
    if (!d->bf16_master) t[TR_UPDATE_VALUE] = tr_tensor_vector(NULL, d->dtype, d->count);
}

enum { STATE_TYPES = TR_TYPES_ACC | TR_TYPES_BF16 | TR_TYPES_U8 };

const tr_op_row tr_op_row_update = {
    .name = "update",
    .slot = {[TR_UPDATE_GRAD] = {"grad", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_UPDATE_MASTER] = {"master", TR_SLOT_BOTH, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_UPDATE_M] = {"m", TR_SLOT_BOTH, STATE_TYPES},
             [TR_UPDATE_V] = {"v", TR_SLOT_BOTH, STATE_TYPES},
             [TR_UPDATE_VALUE] = {"value", TR_SLOT_OUT | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE},
             [TR_UPDATE_M_SCALES] = {"scales of m", TR_SLOT_BOTH, TR_TYPES_F32},
             [TR_UPDATE_V_SCALES] = {"scales of v", TR_SLOT_BOTH, TR_TYPES_F32}},
    .fault = update_fault,
    .same = same_update,
    .key = update_key,
    .operands = update_operands,
};

static void direction_operands(const tr_op_desc *desc, tr_tensor *t) {
    common_operands(&desc->update, t);
    t[TR_UPDATE_U] = vector_of(&desc->update, false);
}

const tr_op_row tr_op_row_direction = {
    .name = "direction",
    .slot = {[TR_UPDATE_GRAD] = {"grad", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_UPDATE_MASTER] = {"master", TR_SLOT_IN, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_UPDATE_M] = {"m", TR_SLOT_BOTH, STATE_TYPES},
             [TR_UPDATE_V] = {"v", TR_SLOT_BOTH, STATE_TYPES},
             [TR_UPDATE_U] = {"u", TR_SLOT_OUT, TR_TYPES_ACC},
             [TR_UPDATE_M_SCALES] = {"scales of m", TR_SLOT_BOTH, TR_TYPES_F32},
             [TR_UPDATE_V_SCALES] = {"scales of v", TR_SLOT_BOTH, TR_TYPES_F32}},
    .fault = update_fault,
    .same = same_update,
    .key = update_key,
    .operands = direction_operands,
};

static const char *descend_fault(const tr_op_desc *desc) {
    const tr_descend_desc *d = &desc->descend;
    if (!tr_op_sizes_fit(0, d->count, 1, 1) || !tr_op_sizes_fit(0, d->parts, 2, 1))
        return "count and parts are out of range";
    if (!tr_op_sizes_fit(0, d->whole, 1, 1) || (d->whole > 0 && d->parts < 1))
        return "whole is out of range, or without parts";
    if (!(d->lr_scale > 0 && d->factor > 0)) return "lr_scale and factor must be above 0";
    if (!(d->weight_decay >= 0)) return "weight_decay must not be negative";
    return rounding_fault(d->bf16_master, d->dtype, &d->rounding);
}

static bool same_descend(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_descend_desc *a = &x->descend, *b = &y->descend;
    return a->count == b->count && a->parts == b->parts && a->whole == b->whole &&
           a->lr_scale == b->lr_scale && a->factor == b->factor &&
           a->weight_decay == b->weight_decay && a->dtype == b->dtype &&
           a->bf16_master == b->bf16_master && tr_quantize_same(&a->rounding, &b->rounding);
}

static uint64_t descend_key(const tr_op_desc *desc) {
    return tr_quantize_key(&desc->descend.rounding) ^ (uint64_t)desc->descend.count;
}

static void descend_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_descend_desc *d = &desc->descend;
    t[TR_DESCEND_U] = t[TR_DESCEND_MASTER] =
        tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->count);
    if (d->parts > 0) t[TR_DESCEND_NORMS] = tr_tensor_matrix(NULL, TR_F64, d->parts, 2);
    if (d->bf16_master) t[TR_DESCEND_MASTER].dtype = TR_BF16;
    else t[TR_DESCEND_VALUE] = tr_tensor_vector(NULL, d->dtype, d->count);
}

const tr_op_row tr_op_row_descend = {
    .name = "descend",
    .slot = {[TR_DESCEND_U] = {"u", TR_SLOT_IN, TR_TYPES_ACC},
             [TR_DESCEND_NORMS] = {"norms", TR_SLOT_IN, TR_TYPES_F64},
             [TR_DESCEND_MASTER] = {"master", TR_SLOT_BOTH, TR_TYPES_ACC | TR_TYPES_BF16},
             [TR_DESCEND_VALUE] = {"value", TR_SLOT_OUT | TR_SLOT_OPTIONAL, TR_TYPES_STORAGE}},
    .fault = descend_fault,
    .same = same_descend,
    .key = descend_key,
    .operands = descend_operands,
};

static const char *rescale_fault(const tr_op_desc *desc) {
    const tr_rescale_desc *d = &desc->rescale;
    if (!tr_op_sizes_fit(0, d->count, 1, 1) || !tr_op_sizes_fit(1, d->parts, 2, 1))
        return "count and parts are out of range";
    return NULL;
}

static bool same_rescale(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_rescale_desc *a = &x->rescale, *b = &y->rescale;
    return a->count == b->count && a->parts == b->parts && a->dtype == b->dtype;
}

static void rescale_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_rescale_desc *d = &desc->rescale;
    t[TR_RESCALE_X] = tr_tensor_vector(NULL, tr_dtype_acc(d->dtype), d->count);
    t[TR_RESCALE_NORMS] = tr_tensor_matrix(NULL, TR_F64, d->parts, 2);
}

const tr_op_row tr_op_row_rescale = {
    .name = "rescale",
    .slot = {[TR_RESCALE_X] = {"x", TR_SLOT_BOTH, TR_TYPES_ACC},
             [TR_RESCALE_NORMS] = {"norms", TR_SLOT_IN, TR_TYPES_F64}},
    .fault = rescale_fault,
    .same = same_rescale,
    .operands = rescale_operands,
};
