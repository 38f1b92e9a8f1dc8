#include "train/saver.h"

#include "base/clock.h"
#include "base/memory.h"
#include "train/background.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tr_saver {
    tr_saver_desc desc;
    tr_ckpt_tensor *snapshot; /* [count]: the tensors, those with `write` in `memory` */
    char *memory;
    tr_background *thread;
    tr_ckpt_saving *saving; /* NULL: there is none */
    int64_t step;
    bool in_background; /* the thread writes it */
    double seconds;     /* that the thread wrote */
};

/* The thread's work. */
static tr_status write_snapshot(void *context, int64_t step) {
    (void)step;
    tr_saver *s = context;
    const double begin = tr_now_s();
    tr_status status = tr_ckpt_saving_write(s->saving, NULL);
    s->seconds = tr_now_s() - begin;
    return status;
}

/* Returns true when the tensor is in the same memory as the one before: the snapshot has several
 * tensors of a parameter once. */
static bool is_with_previous(const tr_saver *s, int k) {
    const tr_ckpt_tensor *t = s->desc.tensors;
    return k > 0 && t[k - 1].write && t[k - 1].local == t[k].local;
}

/* Places the snapshot in s->memory, which may be NULL; returns its bytes. */
static size_t place_snapshot(tr_saver *s) {
    size_t end = 0, begin = 0;
    for (int k = 0; k < s->desc.count; k++) {
        tr_ckpt_tensor *copy = &s->snapshot[k];
        *copy = s->desc.tensors[k];
        copy->device = NULL; /* of those without `write` nothing is read */
        if (!copy->write) continue;
        if (!is_with_previous(s, k)) {
            begin = end;
            end += tr_align_up(tr_ckpt_tensor_bytes(copy));
        }
        copy->local = s->memory ? s->memory + begin : NULL;
    }
    return end;
}

static tr_status open_background(tr_saver *s) {
    TR_TRY(tr_calloc((size_t)s->desc.count, sizeof *s->snapshot, &s->snapshot));
    const size_t bytes = place_snapshot(s);
    if (bytes != s->desc.snapshot)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "the snapshot of what is saved takes %zu bytes, and %zu were planned", bytes,
                       s->desc.snapshot);
    if (bytes > 0)
        TR_TRY(
            tr_device_kept_alloc(s->desc.device, TR_MEMORY_SNAPSHOT, bytes, (void **)&s->memory));
    (void)place_snapshot(s);
    return tr_background_open(write_snapshot, s, "saves", &s->thread);
}

tr_status tr_saver_open(const tr_saver_desc *desc, tr_saver **out) {
    tr_saver *s;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->desc = *desc;
    tr_status status = desc->background ? open_background(s) : TR_OK;
    if (status != TR_OK) tr_saver_close(s);
    else *out = s;
    return status;
}

void tr_saver_close(tr_saver *s) {
    if (!s) return;
    tr_ckpt_saving_leave(s->saving);
    tr_background_close(s->thread);
    tr_ckpt_saving_abandon(s->saving);
    tr_device_kept_free(s->desc.device, s->memory);
    free(s->snapshot);
    free(s);
}

/* Copies the tensors that this rank writes to the snapshot. Waits, because later work changes
 * them. */
static tr_status take_snapshot(tr_saver *s) {
    tr_stream *stream = tr_device_compute(s->desc.device);
    for (int k = 0; k < s->desc.count; k++) {
        const tr_ckpt_tensor *t = &s->desc.tensors[k];
        if (!t->write || is_with_previous(s, k)) continue;
        TR_TRY(tr_stream_copy(stream, s->snapshot[k].local, t->local, tr_ckpt_tensor_bytes(t)));
    }
    return tr_world_sync(s->desc.world, stream);
}

tr_status tr_saver_begin(tr_saver *s, const tr_ckpt_state *state, bool background) {
    const tr_saver_desc *d = &s->desc;
    s->in_background = background && s->thread;
    if (s->in_background) TR_TRY(tr_world_agree(d->world, take_snapshot(s)));
    TR_TRY(tr_ckpt_saving_begin(d->world, d->root, state,
                                s->in_background ? s->snapshot : d->tensors, d->count, &s->saving));
    s->step = state->step;
    if (s->in_background) tr_background_start(s->thread, s->step);
    return TR_OK;
}

bool tr_saver_saves(const tr_saver *s) {
    return s && s->saving;
}

tr_status tr_saver_look(tr_saver *s, bool *written) {
    uint8_t mine = !s->in_background || !tr_background_busy(s->thread), *all;
    const int ranks = tr_world_size(s->desc.world);
    *written = false;
    TR_TRY(tr_calloc((size_t)ranks, sizeof *all, &all));
    tr_status status = tr_world_gather_all(s->desc.world, &mine, all, sizeof mine);
    if (status == TR_OK) *written = !memchr(all, 0, (size_t)ranks);
    free(all);
    return status;
}

/* Writes this rank's part, or waits until the thread has. */
static tr_status write_part(tr_saver *s, double *seconds) {
    const double begin = tr_now_s();
    tr_status status = TR_OK;
    if (s->in_background) {
        (void)tr_background_take(s->thread, s->step, &status);
        *seconds += s->seconds;
    } else {
        status = tr_ckpt_saving_write(s->saving, s->desc.world);
        *seconds += tr_now_s() - begin;
    }
    return status;
}

/* Sets *seconds to the most that a rank has. */
static tr_status find_longest(tr_world *world, double *seconds) {
    const int ranks = tr_world_size(world);
    double *all;
    TR_TRY(tr_calloc((size_t)ranks, sizeof *all, &all));
    tr_status status = tr_world_gather_all(world, seconds, all, sizeof *seconds);
    for (int k = 0; k < ranks && status == TR_OK; k++) *seconds = fmax(*seconds, all[k]);
    free(all);
    return status;
}

tr_status tr_saver_end(tr_saver *s, double *seconds) {
    tr_ckpt_saving *saving = s->saving;
    tr_status status = write_part(s, seconds);
    if (s->in_background) TR_TRY(find_longest(s->desc.world, seconds));
    const double begin = tr_now_s();
    s->saving = NULL;
    status = tr_ckpt_saving_end(saving, status);
    *seconds += tr_now_s() - begin;
    return status;
}
