/* The cuda device of the emulation, instead of device/cuda/cuda.c: the own kernels run on the host
 * (cuda_runtime_api.h). cuda:0 runs threads in ascending order, cuda:1 in descending order, and on
 * cuda:2 no memory is aligned to 16 bytes, so that no pack may be used. These three have no
 * cuBLASLt, so the device's own kernel computes products; cuda:3 has it (cublaslt.c). Memory has
 * exactly the requested size and is not zeroed: an operator finds its scratch as another one left
 * it. */
#include "base/memory.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

#include <stdlib.h>
#include <string.h>

enum { ASCENDING, DESCENDING, UNALIGNED, LIBRARY, KINDS };

typedef struct emulated {
    tr_cuda_device base;
    tr_cuda_stream compute;
    struct tr_emulated_stream order;
    size_t offset; /* of memory from a multiple of TR_ALIGN */
} emulated;

static tr_status emulated_open(int ordinal, const tr_device_options *options, tr_device **out) {
    emulated *e;
    if (ordinal >= KINDS) return TR_FAIL(TR_ERR_DEVICE, "there are %d emulated GPUs", (int)KINDS);
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    e->base.base =
        (tr_device){.ops = &tr_device_ops_cuda, .threads = options->threads, .units = 132};
    e->base.compute = &e->compute.base;
    e->base.warms = options->ranks > 1;
    e->base.shared = 24 << 10; /* less than XENT wants for some of the tests' rows */
    e->compute = (tr_cuda_stream){.base.device = &e->base.base, .handle = &e->order};
    e->order.descending = ordinal == DESCENDING;
    e->offset = ordinal == UNALIGNED ? 8 : 0;
    e->base.blas = ordinal == LIBRARY ? tr_emulated_blas : NULL;
    *out = &e->base.base;
    return TR_OK;
}

static void emulated_close(tr_device *device) {
    free(device);
}

static tr_status emulated_alloc(tr_device *device, size_t bytes, void **out) {
    const size_t offset = ((emulated *)device)->offset;
    void *memory = NULL;
    *out = NULL;
    if (posix_memalign(&memory, TR_ALIGN, bytes + offset) != 0)
        return TR_FAIL(TR_ERR_FIT, "no memory for %zu bytes", bytes);
    memset(memory, 0xff, bytes + offset);
    *out = (char *)memory + offset;
    return TR_OK;
}

static void emulated_free(tr_device *device, void *memory) {
    free((char *)memory - ((emulated *)device)->offset);
}

static tr_stream *emulated_compute(tr_device *device) {
    return &((emulated *)device)->compute.base;
}

static tr_status emulated_sync(tr_stream *stream) {
    (void)stream;
    return TR_OK;
}

static tr_status emulated_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
    return TR_OK;
}

static tr_status emulated_zero(tr_stream *stream, void *memory, size_t bytes) {
    (void)stream;
    memset(memory, 0, bytes);
    return TR_OK;
}

const tr_device_ops tr_device_ops_cuda = {
    .kind = "cuda",
    .on_host = true,
    .open = emulated_open,
    .close = emulated_close,
    .alloc = emulated_alloc,
    .free = emulated_free,
    .compute = emulated_compute,
    .stream_sync = emulated_sync,
    .stream_copy = emulated_copy,
    .stream_zero = emulated_zero,
    .fuses = true,
    .prepare =
        {
#define ENTRY(UPPER, lower) [TR_OP_##UPPER] = tr_cuda_prepare_##lower,
            TR_OP_LIST(ENTRY)
#undef ENTRY
        },
};
