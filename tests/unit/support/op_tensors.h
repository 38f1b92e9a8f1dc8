/* The description and tensors of a case, without data. Private to op_data.c. */
#pragma once

#include "support/op_cases.h"

enum { TR_OP_LOSS_SCALE = 8 };

/* Returns the case's description in a storage type. */
tr_op_desc tr_op_case_desc(const tr_op_case *c, tr_dtype storage);
/* Fills the tensors of a description; t is zeroed. */
void tr_op_case_tensors(const tr_op_desc *desc, unsigned options,
                        tr_op_tensor t[TR_OP_MAX_TENSORS]);
