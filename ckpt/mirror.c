/* Tensors in device memory seen by the host, and numbers in 8 bits by block filled as FP32, one
 * tensor at a time. */
#include "base/code8.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "ckpt/ckpt_impl.h"

#include <stdlib.h>

static bool is_on_host(const tr_ckpt_tensor *tensor) {
    return !tensor->device || tr_device_on_host(tensor->device);
}

/* Returns true for numbers in 8 bits that are to be filled: boxes fill them as FP32, since a block
 * is encoded only when all of it is there. */
static bool is_widened(const tr_ckpt_tensor *tensor, tr_mirror_use use) {
    return use == TR_MIRROR_FILL && tensor->dtype == TR_U8;
}

size_t tr_ckpt_tensor_bytes(const tr_ckpt_tensor *tensor) {
    return tensor->dtype == TR_U8 ? tr_code8_bytes(tensor->count)
                                  : (size_t)tensor->count * tr_dtype_size(tensor->dtype);
}

tr_status tr_mirror_open(const tr_ckpt_tensor *tensors, int count, tr_mirror_use use,
                         tr_mirror *out) {
    size_t staged = 0, wide = 0;
    *out = (tr_mirror){.use = use};
    for (int i = 0; i < count; i++) {
        const tr_ckpt_tensor *t = &tensors[i];
        if (use == TR_MIRROR_SAVE && !t->write) continue;
        if (!is_on_host(t)) {
            out->device = t->device;
            staged = tr_max_size(staged, tr_ckpt_tensor_bytes(t));
        }
        if (is_widened(t, use)) wide = tr_max_size(wide, (size_t)t->count * sizeof *out->wide);
    }
    if (wide > 0) TR_TRY(tr_calloc(1, wide, &out->wide));
    return staged > 0 ? tr_device_staging_alloc(out->device, staged, &out->staging) : TR_OK;
}

static tr_status copy(tr_mirror *mirror, void *to, const void *from) {
    tr_stream *stream = tr_device_compute(mirror->device);
    TR_TRY(tr_stream_copy(stream, to, from, tr_ckpt_tensor_bytes(mirror->source)));
    return tr_stream_sync(stream);
}

/* Returns the source's contents in host memory. */
static void *host_of(const tr_mirror *mirror) {
    return is_on_host(mirror->source) ? mirror->source->local : mirror->staging;
}

static void decode(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    const uint8_t *codes = host_of(mirror);
    const float *scales = (const float *)(const void *)(codes + tr_code8_scales(tensor->count));
    for (int64_t i = 0; i < tensor->count; i++)
        mirror->wide[i] = tr_code8_decode(codes[i], scales[i / TR_CODE8_BLOCK], tensor->code);
}

/* Rounds to nearest. */
static void encode(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    uint8_t *codes = host_of(mirror);
    float *scales = (float *)(void *)(codes + tr_code8_scales(tensor->count));
    for (int64_t at = 0; at < tensor->count; at += TR_CODE8_BLOCK) {
        const int64_t end = tr_min_i64(at + TR_CODE8_BLOCK, tensor->count);
        float largest = 0;
        for (int64_t i = at; i < end; i++) largest = fmaxf(largest, fabsf(mirror->wide[i]));
        const float scale = tr_code8_scale(largest);
        scales[at / TR_CODE8_BLOCK] = scale;
        for (int64_t i = at; i < end; i++)
            codes[i] = tr_code8_encode(mirror->wide[i], scale, tensor->code, 0x80000000u);
    }
}

/* Copies what was filled to the source. */
static tr_status store(tr_mirror *mirror) {
    const tr_ckpt_tensor *tensor = mirror->source;
    if (!tensor || mirror->use != TR_MIRROR_FILL) return TR_OK;
    if (is_widened(tensor, mirror->use)) encode(mirror);
    return is_on_host(tensor) ? TR_OK : copy(mirror, tensor->local, mirror->staging);
}

tr_status tr_mirror_turn(tr_mirror *mirror, const tr_ckpt_tensor *tensor) {
    if (mirror->source == tensor) return TR_OK;
    TR_TRY(store(mirror));
    mirror->source = tensor;
    if (!tensor) return TR_OK;
    mirror->view = *tensor;
    mirror->view.local = host_of(mirror);
    if (!is_on_host(tensor)) TR_TRY(copy(mirror, mirror->staging, tensor->local));
    if (!is_widened(tensor, mirror->use)) return TR_OK;
    decode(mirror);
    mirror->view.local = mirror->wide;
    mirror->view.dtype = TR_F32;
    return TR_OK;
}

void tr_mirror_close(tr_mirror *mirror) {
    if (mirror->device) tr_device_staging_free(mirror->device, mirror->staging);
    free(mirror->wide);
    *mirror = (tr_mirror){0};
}
