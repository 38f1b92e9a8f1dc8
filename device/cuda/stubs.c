/* The CUDA device of a build without the CUDA backend. Opening it fails. */
#include "device/device_impl.h"

static tr_status open_cuda(int ordinal, const tr_device_options *options, tr_device **out) {
    (void)ordinal, (void)options, (void)out;
    return TR_FAIL(TR_ERR_DEVICE, "this build of Trireme has no CUDA backend: set device.name=cpu");
}

const tr_device_ops tr_device_ops_cuda = {
    .kind = "cuda", .speed = TR_CUDA_SPEED, .open = open_cuda};
