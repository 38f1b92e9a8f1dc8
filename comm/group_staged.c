/* Groups of device memory over a host transport. Each piece is copied to a pinned buffer, reduced
 * or exchanged there by the rounds of group_host.c, with the same bits, and copied back, in the
 * order of the caller's stream. */
#include "base/memory.h"
#include "base/minmax.h"
#include "comm/world_impl.h"

#include <stdlib.h>

enum { LEAST_BYTES = 1 << 16 };

typedef struct staged_group {
    tr_group base;
    tr_device *device;
    tr_group_host *rounds;
    unsigned char *stage; /* pinned; used by one piece at a time, in stream order */
    size_t bytes;
} staged_group;

static staged_group *self_of(tr_group *group) {
    return (staged_group *)group;
}

static tr_status run_all_reduce(const tr_job *job) {
    return tr_group_run_all_reduce(job->object, job->out, job->count, job->dtype, job->op);
}

static tr_status staged_all_reduce(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                                   tr_dtype dtype, tr_reduce op) {
    staged_group *g = self_of(group);
    size_t element = tr_dtype_size(dtype);
    int64_t piece = (int64_t)(g->bytes / element);
    for (int64_t at = 0; at < count; at += piece) {
        int64_t part = tr_min_i64(piece, count - at);
        unsigned char *place = (unsigned char *)buffer + (size_t)at * element;
        tr_job job = {.run = run_all_reduce,
                      .object = g->rounds,
                      .out = g->stage,
                      .count = part,
                      .dtype = dtype,
                      .op = op};
        TR_TRY(tr_stream_copy(stream, g->stage, place, (size_t)part * element));
        TR_TRY(tr_world_enqueue(group->world, stream, &job));
        TR_TRY(tr_stream_copy(stream, place, g->stage, (size_t)part * element));
    }
    return TR_OK;
}

static void release(staged_group *g) {
    tr_group_host_close(g->rounds);
    tr_device_staging_free(g->device, g->stage);
    free(g);
}

static void staged_close(tr_group *group) {
    staged_group *g = self_of(group);
    /* After a failure collectives may still be queued. */
    (void)tr_stream_sync(tr_device_compute(g->device));
    release(g);
}

static const tr_group_ops staged_ops = {.all_reduce = staged_all_reduce, .close = staged_close};

tr_status tr_group_make_staged(const tr_group_desc *desc, tr_group **out) {
    tr_status status = TR_OK;
    staged_group *g;
    TR_TRY(tr_device_start_queue(desc->device));
    TR_TRY(tr_calloc(1, sizeof *g, &g));
    g->base.ops = &staged_ops;
    g->device = desc->device;
    size_t least = LEAST_BYTES + (size_t)desc->n * TR_ALIGN;
    g->bytes = tr_align_up(desc->max_bytes > least ? desc->max_bytes : least);
    TR_TRY_OUT(tr_group_host_open(desc->world, desc->ranks, desc->n, desc->id,
                                  TR_TAG_GROUP + desc->id, g->bytes, &g->rounds));
    TR_TRY_OUT(tr_device_staging_alloc(desc->device, g->bytes, (void **)&g->stage));
    *out = &g->base;
    return TR_OK;
out:
    release(g);
    return status;
}
