/* What the files of device/ref/ share. The reference is plain C with FP64 inside: it is there to be
 * obviously right, not fast. Private. */
#pragma once

#include "device/host_impl.h"

/* Each operator's work, tr_ref_<operator>, as device/op.h defines it. */
#define TR_REF_DECLARE(UPPER, lower) tr_status tr_ref_##lower(tr_op *op, const tr_op_args *args);
TR_OP_LIST(TR_REF_DECLARE)
#undef TR_REF_DECLARE

/* Element i of storage (f32 or bf16). */
static inline double tr_ref_load(tr_dtype dtype, const void *from, int64_t i) {
    return dtype == TR_F32 ? (double)((const float *)from)[i]
                           : (double)tr_bf16_to_f32(((const uint16_t *)from)[i]);
}

static inline void tr_ref_store(tr_dtype dtype, void *to, int64_t i, double value) {
    if (dtype == TR_F32) ((float *)to)[i] = (float)value;
    else ((uint16_t *)to)[i] = tr_f32_to_bf16((float)value);
}

/* Adds to an accumulated f32 gradient. */
static inline void tr_ref_accumulate(void *to, int64_t i, double value) {
    ((float *)to)[i] = (float)((double)((float *)to)[i] + value);
}

/* f(x) of an activation and f'(x). */
double tr_ref_activate(tr_activation activation, double x);
double tr_ref_slope(tr_activation activation, double x);
