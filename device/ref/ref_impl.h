/* Shared by the files of device/ref/. The reference is plain C with FP64 inside, meant to be
 * obviously correct, not fast. Private. */
#pragma once

#include "device/host_impl.h"

/* Each operator's work, tr_ref_<operator>, as device/op.h defines it. */
#define TR_REF_DECLARE(UPPER, lower) tr_status tr_ref_##lower(tr_op *op, const tr_op_args *args);
TR_OP_LIST(TR_REF_DECLARE)
#undef TR_REF_DECLARE

/* Returns a scalar as operators on that dtype read it: rounded to FP32 unless the dtype is
 * wider. */
static inline double tr_ref_scalar(tr_dtype dtype, double x) {
    return dtype == TR_F64 ? x : (double)(float)x;
}

static inline double tr_ref_load(tr_dtype dtype, const void *from, int64_t i) {
    if (dtype == TR_F64) return ((const double *)from)[i];
    return dtype == TR_F32 ? (double)((const float *)from)[i]
                           : (double)tr_narrow_load(dtype, ((const uint16_t *)from)[i]);
}

static inline void tr_ref_store(tr_dtype dtype, void *to, int64_t i, double value) {
    if (dtype == TR_F64) ((double *)to)[i] = value;
    else if (dtype == TR_F32) ((float *)to)[i] = (float)value;
    else ((uint16_t *)to)[i] = tr_narrow_round(dtype, (float)value);
}

/* Element i of an operand, in the operand's own type. */
static inline double tr_ref_get(const tr_op_args *args, int operand, int64_t i) {
    return tr_ref_load(args->t[operand].dtype, args->t[operand].data, i);
}

static inline void tr_ref_set(const tr_op_args *args, int operand, int64_t i, double value) {
    tr_ref_store(args->t[operand].dtype, args->t[operand].data, i, value);
}

/* Adds to the gradient of a parameter, or writes it. */
static inline void tr_ref_accumulate(const tr_op_args *args, int operand, int64_t i, double value) {
    tr_ref_set(args, operand, i, args->adds ? tr_ref_get(args, operand, i) + value : value);
}

/* Returns x, which is element i of a run that QUANTIZE rounds with this description and `use`. */
uint16_t tr_ref_round_drawn(const tr_quantize_desc *d, int use, const tr_op_args *args, int64_t i,
                            float x);
/* Encodes x[n], the elements from .. from + n - 1 of such a run, which are one block of
 * base/code8.h, to y[n] and *scale. */
void tr_ref_encode(const tr_quantize_desc *d, int use, tr_code8 code, const tr_op_args *args,
                   int64_t from, int64_t n, const double *x, uint8_t *y, float *scale);

/* f(x) of an activation and f'(x). */
double tr_ref_activate(tr_activation activation, double x);
double tr_ref_slope(tr_activation activation, double x);
