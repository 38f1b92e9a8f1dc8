/* The table of operators: a row for each in device/table/. All properties that do not depend on the
 * device are derived from a row. Private to device/, and to the tests of operators. */
#pragma once

#include "device/op.h"

/* How an operator uses an operand. An optional one may be absent with any description. A gradient
 * of a parameter is written, or added to where the run says so; C of MATMUL, which is one only
 * where it accumulates, is OUT. */
enum {
    TR_SLOT_IN = 1,
    TR_SLOT_OUT = 2,
    TR_SLOT_BOTH = TR_SLOT_IN | TR_SLOT_OUT,
    TR_SLOT_OPTIONAL = 4,
    TR_SLOT_ONCE = 8, /* both flags are set, but a description either reads or writes it */
    TR_SLOT_GRADIENT = 16 | TR_SLOT_OUT /* of a parameter */
};

/* Sets of dtypes, 1 << dtype each. */
enum {
    TR_TYPES_ACC = 1 << TR_F32 | 1 << TR_F64, /* tr_dtype_acc of the storage type */
    TR_TYPES_F32 = 1 << TR_F32,
    TR_TYPES_BF16 = 1 << TR_BF16,
    TR_TYPES_F64 = 1 << TR_F64,
    TR_TYPES_I32 = 1 << TR_I32,
    TR_TYPES_U8 = 1 << TR_U8,
    TR_TYPES_STORAGE = 1 << TR_F32 | 1 << TR_BF16 | 1 << TR_F16 | 1 << TR_F64
};

/* An operand that an operator takes. */
typedef struct tr_op_slot {
    const char *name;
    unsigned use, types;
} tr_op_slot;

/* One operator of a decomposition. Its operand i is operand from[i] of the decomposed operator, or
 * absent when from[i] is negative. */
typedef struct tr_op_part {
    tr_op_desc desc;
    int from[TR_OP_MAX_TENSORS];
} tr_op_part;
enum { TR_OP_MAX_PARTS = 4 };

/* Returns a part without operands. */
tr_op_part tr_op_part_of(tr_op_desc desc);

typedef struct tr_op_row {
    const char *name;
    tr_op_slot slot[TR_OP_MAX_TENSORS]; /* by the operator's enum in op.h */
    bool fp64; /* also devices that else compute in at most FP32 take f64 */
    /* Returns the fault of a description, or NULL. Does not check dtypes, which the slots list. */
    const char *(*fault)(const tr_op_desc *desc);
    /* Returns true when two descriptions of this operator are equal field by field; padding and
     * other members of the union may differ. */
    bool (*same)(const tr_op_desc *a, const tr_op_desc *b);
    /* Returns a number that is equal where `same` is true, and differs between the layers of a
     * model. NULL: layers of the same shape have the same description. */
    uint64_t (*key)(const tr_op_desc *desc);
    /* Appends all fields, " name value" each, to text[size], so that the texts are equal where
     * `same` is true. NULL: no library has several plans for the operator. */
    void (*text)(const tr_op_desc *desc, char *text, size_t size);
    /* Fills dtype, shape and strides of the operands that a description implies. Unused operands
     * keep rank 0. */
    void (*operands)(const tr_op_desc *desc, tr_tensor t[TR_OP_MAX_TENSORS]);
    double (*flops)(const tr_op_desc *desc); /* NULL: 0 */
    /* Fills the decomposition, which runs in order when a device refuses the description; returns
     * its length. NULL or 0: every device must support the operator. */
    int (*decompose)(const tr_op_desc *desc, tr_op_part part[TR_OP_MAX_PARTS]);
} tr_op_row;

/* Returns the row of an operator, or NULL. */
const tr_op_row *tr_op_row_of(tr_op_kind kind);

#define TR_OP_ROW(UPPER, lower) extern const tr_op_row tr_op_row_##lower;
TR_OP_LIST(TR_OP_ROW)
#undef TR_OP_ROW

/* Returns true when a * b * c elements of 8 bytes fit the address space and each factor is at least
 * `least` >= 0. For the rows' checks. */
bool tr_op_sizes_fit(int64_t least, int64_t a, int64_t b, int64_t c);
/* Return the fault of the boxes of a rounding, or NULL; and true when two roundings are equal. */
const char *tr_quantize_boxes_fault(const tr_quantize_desc *d);
bool tr_quantize_same(const tr_quantize_desc *a, const tr_quantize_desc *b);
/* Returns the key of a rounding's boxes, as tr_op_row.key. */
uint64_t tr_quantize_key(const tr_quantize_desc *d);

/* Returns the number by which prepared operators are found: equal for equal descriptions, and for
 * few others. */
uint64_t tr_op_key(const tr_op_desc *desc);
