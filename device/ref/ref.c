/* The ref device: the table, and one prepare for all operators. */
#include "device/ref/ref_impl.h"

static const tr_host_compute_fn compute[TR_OP_COUNT] = {
#define REF_COMPUTE(UPPER, lower) [TR_OP_##UPPER] = tr_ref_##lower,
    TR_OP_LIST(REF_COMPUTE)
#undef REF_COMPUTE
};

/* Only attention keeps intermediate results: the probabilities (and their gradient) of one head,
 * and the gradients of one key and value. */
static size_t scratch_bytes(const tr_op_desc *desc) {
    size_t seq = (size_t)desc->attention.seq, size = (size_t)desc->attention.head_size;
    switch (desc->kind) {
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DECODE: return seq * sizeof(double);
    case TR_OP_ATTENTION_DGRAD: return 2 * seq * (seq + size) * sizeof(double);
    default: return 0;
    }
}

static tr_status prepare(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    if (desc->kind == TR_OP_MATMUL && !tr_matmul_only_sums(&desc->matmul)) return TR_OK;
    return tr_host_op_create(context, desc, 0, scratch_bytes(desc), compute[desc->kind], out);
}

static tr_status open_ref(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal;
    return tr_host_open(&tr_device_ops_ref, options, 0, out);
}

#define REF_PREPARE(UPPER, lower) [TR_OP_##UPPER] = prepare,
const tr_device_ops tr_device_ops_ref = {.kind = "ref",
                                         .fp64 = true,
                                         .open = open_ref,
                                         TR_HOST_OPS,
                                         .prepare = {TR_OP_LIST(REF_PREPARE)}};
