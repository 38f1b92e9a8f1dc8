/* Replacements for files that the emulations leave out: attention without cuDNN, with the device's
 * own kernels only, and the devices other than ref and cuda. */
#include "device/cuda/cuda_impl.h"

tr_status tr_cuda_prepare_attention(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out) {
    return tr_cuda_prepare_own_attention(context, desc, false, out);
}
tr_status tr_cuda_prepare_attention_dgrad(const tr_op_context *context, const tr_op_desc *desc,
                                          tr_op **out) {
    return tr_cuda_prepare_own_attention(context, desc, true, out);
}

/* The emulation needs no other device than ref. */
static tr_status no_device(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal, (void)options, (void)out;
    return TR_FAIL(TR_ERR_DEVICE, "the emulation has only the devices ref and cuda");
}
const tr_device_ops tr_device_ops_cpu = {.kind = "cpu", .open = no_device};
const tr_device_ops tr_device_ops_guarded = {.kind = "guarded", .open = no_device};
