/* Tensors in device memory, seen by the host one at a time. */
#include "ckpt/ckpt_impl.h"

tr_status tr_mirror_open(const tr_ckpt_tensor *tensors, int count, tr_mirror *out) {
    int64_t most = 0;
    *out = (tr_mirror){0};
    for (int i = 0; i < count; i++) {
        if (!tensors[i].device || tr_device_on_host(tensors[i].device)) continue;
        out->device = tensors[i].device;
        if (tensors[i].count > most) most = tensors[i].count;
    }
    if (!out->device) return TR_OK;
    return tr_device_staging_alloc(out->device, (size_t)most * sizeof *out->memory,
                                   (void **)&out->memory);
}

static tr_status copy(tr_mirror *mirror, void *to, const void *from) {
    tr_stream *stream = tr_device_compute(mirror->device);
    const tr_ckpt_tensor *tensor = mirror->source;
    TR_TRY(tr_stream_copy(stream, to, from, (size_t)tensor->count * tr_dtype_size(tensor->dtype)));
    return tr_stream_sync(stream);
}

tr_status tr_mirror_store(tr_mirror *mirror) {
    if (!mirror->source || mirror->view.local == mirror->source->local) return TR_OK;
    return copy(mirror, mirror->source->local, mirror->memory);
}

tr_status tr_mirror_turn(tr_mirror *mirror, const tr_ckpt_tensor *tensor, bool store) {
    if (mirror->source == tensor) return TR_OK;
    if (store) TR_TRY(tr_mirror_store(mirror));
    mirror->source = tensor;
    mirror->view = *tensor;
    if (!mirror->device) return TR_OK;
    mirror->view.local = mirror->memory;
    return copy(mirror, mirror->memory, tensor->local);
}

void tr_mirror_close(tr_mirror *mirror) {
    if (mirror->device) tr_device_staging_free(mirror->device, mirror->memory);
    *mirror = (tr_mirror){0};
}
