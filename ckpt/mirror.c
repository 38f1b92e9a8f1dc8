/* Tensors in device memory, and in 8 bits by block, seen by the host as FP32 or BF16, one at a
 * time. */
#include "base/code8.h"
#include "base/memory.h"
#include "ckpt/ckpt_impl.h"

#include <stdlib.h>

static bool is_on_host(const tr_ckpt_tensor *tensor) {
    return !tensor->device || tr_device_on_host(tensor->device);
}

static bool is_mirrored(const tr_ckpt_tensor *tensor) {
    return !is_on_host(tensor) || tensor->dtype == TR_U8;
}

size_t tr_ckpt_tensor_bytes(const tr_ckpt_tensor *tensor) {
    return tensor->dtype == TR_U8 ? tr_code8_bytes(tensor->count)
                                  : (size_t)tensor->count * tr_dtype_size(tensor->dtype);
}

/* Allocates what the device's streams copy to, or without a device plain memory. */
static tr_status alloc_staging(tr_device *device, size_t bytes, void **out) {
    return device ? tr_device_staging_alloc(device, bytes, out) : tr_calloc(1, bytes, out);
}

static void free_staging(tr_device *device, void *memory) {
    if (device) tr_device_staging_free(device, memory);
    else free(memory);
}

tr_status tr_mirror_open(const tr_ckpt_tensor *tensors, int count, tr_mirror *out) {
    int64_t most = 0;
    size_t codes = 0;
    *out = (tr_mirror){0};
    for (int i = 0; i < count; i++) {
        if (!is_mirrored(&tensors[i])) continue;
        out->device = tensors[i].device;
        if (tensors[i].count > most) most = tensors[i].count;
        if (tensors[i].dtype == TR_U8 && !is_on_host(&tensors[i]) &&
            tr_ckpt_tensor_bytes(&tensors[i]) > codes)
            codes = tr_ckpt_tensor_bytes(&tensors[i]);
    }
    if (codes > 0) TR_TRY(alloc_staging(out->device, codes, (void **)&out->codes));
    if (most == 0) return TR_OK;
    return alloc_staging(out->device, (size_t)most * sizeof *out->memory, (void **)&out->memory);
}

static tr_status copy(tr_mirror *mirror, void *to, const void *from) {
    tr_stream *stream = tr_device_compute(mirror->device);
    TR_TRY(tr_stream_copy(stream, to, from, tr_ckpt_tensor_bytes(mirror->source)));
    return tr_stream_sync(stream);
}

/* Returns the source's numbers in 8 bits in host memory. */
static uint8_t *codes_of(const tr_mirror *mirror) {
    return is_on_host(mirror->source) ? mirror->source->local : mirror->codes;
}

static float *scales_of(const tr_mirror *mirror) {
    return (float *)(void *)(codes_of(mirror) + tr_code8_scales(mirror->source->count));
}

static void decode(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    for (int64_t i = 0; i < tensor->count; i++)
        mirror->memory[i] = tr_code8_decode(codes_of(mirror)[i],
                                            scales_of(mirror)[i / TR_CODE8_BLOCK], tensor->code);
}

/* Rounds to nearest. */
static void encode(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    for (int64_t at = 0; at < tensor->count; at += TR_CODE8_BLOCK) {
        const int64_t end =
            at + TR_CODE8_BLOCK < tensor->count ? at + TR_CODE8_BLOCK : tensor->count;
        float largest = 0;
        for (int64_t i = at; i < end; i++) largest = fmaxf(largest, fabsf(mirror->memory[i]));
        const float scale = tr_code8_scale(largest);
        scales_of(mirror)[at / TR_CODE8_BLOCK] = scale;
        for (int64_t i = at; i < end; i++)
            codes_of(mirror)[i] =
                tr_code8_encode(mirror->memory[i], scale, tensor->code, 0x80000000u);
    }
}

tr_status tr_mirror_store(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    if (!tensor || !is_mirrored(tensor)) return TR_OK;
    if (tensor->dtype != TR_U8) return copy(mirror, tensor->local, mirror->memory);
    encode(mirror);
    return is_on_host(tensor) ? TR_OK : copy(mirror, tensor->local, mirror->codes);
}

tr_status tr_mirror_turn(tr_mirror *mirror, const tr_ckpt_tensor *tensor, bool store) {
    if (mirror->source == tensor) return TR_OK;
    if (store) TR_TRY(tr_mirror_store(mirror));
    mirror->source = tensor;
    mirror->view = *tensor;
    if (!is_mirrored(tensor)) return TR_OK;
    mirror->view.local = mirror->memory;
    if (tensor->dtype != TR_U8) return copy(mirror, mirror->memory, tensor->local);
    mirror->view.dtype = TR_F32;
    if (!is_on_host(tensor)) TR_TRY(copy(mirror, mirror->codes, tensor->local));
    decode(mirror);
    return TR_OK;
}

void tr_mirror_close(tr_mirror *mirror) {
    free_staging(mirror->device, mirror->codes);
    free_staging(mirror->device, mirror->memory);
    *mirror = (tr_mirror){0};
}
