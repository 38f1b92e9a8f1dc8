/* Stochastic rounding of numbers that belong to the elements of a parameter: moments, values and
 * gradients. The random bits are those of the elements of the global tensors, so no layout changes
 * them. */
#pragma once

#include "base/philox.h"
#include "device/op.h"
#include "layers/param.h"

/* `use` of QUANTIZE, which tells the numbers of one element apart. */
enum {
    TR_PARAM_ROUNDING_STATE = 0,                  /* and 1: the optimizer's */
    TR_PARAM_ROUNDING_VALUE = 2,                  /* of a parameter without masters */
    TR_PARAM_ROUNDING_GRADIENT = TR_ROUNDING_USES /* and above: tr_param_rounding_gradient */
};

/* Returns the use for the gradient of a parameter on tensor rank `rank` of `ranks`: another one for
 * each use of a tied parameter, and for each tensor rank that computes a part of the gradient, so
 * that the roundings of parts that are summed are independent. Tensor ranks that all compute the
 * whole gradient have the same one, and so round to the same bits. */
int tr_param_rounding_gradient(const tr_param *param, int rank, int ranks);

/* Describes the rounding of `count` elements of the parameter. Fails with TR_ERR_INTERNAL when a
 * tensor has more than two axes, or the parameter more than TR_QUANTIZE_BOXES boxes. */
tr_status tr_param_rounding(const tr_param *param, int use, int64_t count, tr_op_desc *out);
