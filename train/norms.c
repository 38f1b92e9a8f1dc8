#include "train/norms.h"

#include "base/memory.h"
#include "partition/step_end.h"

#include <stdlib.h>

/* Of a slot. */
typedef struct slot_norm {
    tr_op *blocks; /* of the portion; NULL: none are gathered, it is empty or has no norm */
    tr_op *total;  /* of the blocks, or of all elements; NULL: it is not written here */
    double *all;   /* [blocks of the parameter] */
    double *here;  /* [blocks of the parameter, total]; NULL: the device takes them */
    int64_t entry;
} slot_norm;

struct tr_norms {
    const tr_store *store;
    tr_norms_of of;
    slot_norm *slot;      /* [store->slots] */
    double *blocks;       /* device: of all slots; NULL: none are gathered */
    double *here;         /* staging: of all slots; NULL: the device takes the norms */
    tr_gathers **gathers; /* [laps]; NULL: none are gathered */
    int laps;             /* 1 of gradients, which are taken at once */
};

/* Returns the device that takes squares. */
static tr_device *device_of(const tr_norms *n) {
    return n->here ? n->store->host : n->store->device;
}

static int lap_of(const tr_norms *n, int i) {
    return n->laps > 1 ? n->store->slot[i].lap : 0;
}

/* Returns the blocks of a slot that has a norm, or 0. */
static int64_t blocks_of(const tr_norms *n, int i) {
    return n->slot[i].entry == TR_NORM_NONE ? 0 : tr_sumsq_blocks(n->store->slot[i].param->count);
}

/* Allocates the blocks of all slots that have a norm, in the device's memory. */
static tr_status alloc_blocks(tr_norms *n) {
    int64_t count = 0;
    for (int i = 0; i < n->store->slots; i++) count += blocks_of(n, i);
    if (count == 0) return TR_OK;
    TR_TRY(tr_device_alloc(n->store->device, TR_MEMORY_DATA, (size_t)count * sizeof(double),
                           (void **)&n->blocks));
    count = 0;
    for (int i = 0; i < n->store->slots; i++) {
        n->slot[i].all = n->blocks + count;
        count += blocks_of(n, i);
    }
    return TR_OK;
}

/* Allocates the blocks and totals that the host computes. */
static tr_status alloc_here(tr_norms *n) {
    int64_t count = 0;
    for (int i = 0; i < n->store->slots; i++) count += blocks_of(n, i) + 1;
    TR_TRY(tr_device_staging_alloc(n->store->device, (size_t)count * sizeof(double),
                                   (void **)&n->here));
    count = 0;
    for (int i = 0; i < n->store->slots; i++) {
        n->slot[i].here = n->here + count;
        count += blocks_of(n, i) + 1;
    }
    return TR_OK;
}

static tr_status open_gathers(tr_norms *n) {
    TR_TRY(tr_calloc((size_t)n->laps, sizeof(tr_gathers *), &n->gathers));
    for (int lap = 0; lap < n->laps; lap++) TR_TRY(tr_gathers_create(&n->gathers[lap]));
    return TR_OK;
}

/* Returns the elements of this rank's portion. */
static tr_tensor portion_of(const tr_norms *n, const tr_store_slot *slot) {
    const tr_store *store = n->store;
    const int64_t own = slot->portion.extent;
    if (n->of == TR_NORMS_OF_GRADIENTS) return tr_tensor_vector(slot->grad, store->grad_dtype, own);
    if (n->of == TR_NORMS_OF_DIRECTIONS) return tr_tensor_vector(slot->direction, store->acc, own);
    return tr_store_has_masters(store) ? tr_tensor_vector(slot->master, store->acc, own)
                                       : tr_tensor_vector(slot->value, store->dtype, own);
}

static tr_status prepare_slot(tr_norms *n, int i, size_t *scratch) {
    const tr_store *store = n->store;
    const tr_store_slot *slot = &store->slot[i];
    slot_norm *norm = &n->slot[i];
    const tr_dtype dtype = portion_of(n, slot).dtype;
    const bool parts = n->gathers || n->here;
    if (norm->entry == TR_NORM_NONE) return TR_OK;
    const tr_op_desc blocks = tr_step_end_blocks_op(slot->param, store->divided, dtype),
                     total = parts ? tr_step_end_total_op(slot->param)
                                   : tr_step_end_sumsq_op(slot->param, dtype);
    tr_device *adds = n->gathers ? store->device : device_of(n);
    if (norm->entry != TR_NORM_ELSEWHERE)
        TR_TRY(tr_op_prepare_fixed(adds, total, scratch, &norm->total));
    if (parts && slot->portion.extent > 0)
        TR_TRY(tr_op_prepare_fixed(device_of(n), blocks, scratch, &norm->blocks));
    if (!n->gathers) return TR_OK;
    return tr_gathers_add(n->gathers[lap_of(n, i)], store, slot, norm->all, TR_PARAM_BLOCK,
                          sizeof(double));
}

tr_status tr_norms_create(const tr_norms_desc *desc, size_t *scratch, tr_norms **out) {
    tr_status status = TR_OK;
    const tr_store *store = desc->store;
    tr_norms *n;
    TR_TRY(tr_calloc(1, sizeof *n, &n));
    n->store = store;
    n->of = desc->of;
    n->laps = desc->of == TR_NORMS_OF_GRADIENTS ? 1 : store->laps;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *n->slot, &n->slot));
    for (int i = 0; i < store->slots; i++) n->slot[i].entry = desc->entry[i];
    if (n->of == TR_NORMS_OF_MASTERS && store->host && tr_store_has_masters(store))
        TR_TRY_OUT(alloc_here(n));
    if (store->divided && !desc->alone) {
        TR_TRY_OUT(alloc_blocks(n));
        TR_TRY_OUT(open_gathers(n));
    }
    for (int i = 0; i < store->slots; i++) TR_TRY_OUT(prepare_slot(n, i, scratch));
out:
    if (status != TR_OK) tr_norms_destroy(n);
    else *out = n;
    return status;
}

void tr_norms_destroy(tr_norms *n) {
    if (!n) return;
    for (int i = 0; n->slot && i < n->store->slots; i++) {
        tr_op_release(n->slot[i].blocks);
        tr_op_release(n->slot[i].total);
    }
    tr_device_free(n->store->device, n->blocks);
    tr_device_staging_free(n->store->device, n->here);
    for (int lap = 0; n->gathers && lap < n->laps; lap++) tr_gathers_destroy(n->gathers[lap]);
    free(n->gathers);
    free(n->slot);
    free(n);
}

/* Takes the blocks of this rank's portion. */
static tr_status take_blocks(const tr_norms *n, int i, tr_stream *stream, void *scratch) {
    const tr_store_slot *slot = &n->store->slot[i];
    const slot_norm *norm = &n->slot[i];
    const int64_t first = slot->portion.begin / TR_PARAM_BLOCK;
    const int64_t count = tr_sumsq_blocks(slot->portion.extent);
    double *const to = n->here ? norm->here + first : norm->all + first;
    const tr_op_args args = {.t = {[TR_SUMSQ_X] = portion_of(n, slot),
                                   [TR_SUMSQ_SUMS] = tr_tensor_vector(to, TR_F64, count)},
                             .scratch = scratch};
    if (!n->here) return tr_op_run(norm->blocks, stream, &args);
    TR_TRY(tr_op_run(norm->blocks, tr_device_compute(n->store->host), &args));
    if (!n->gathers) return TR_OK;
    return tr_stream_copy(stream, norm->all + first, to, (size_t)count * sizeof(double));
}

static tr_status take_total(const tr_norms *n, int i, tr_stream *stream, double *vector,
                            void *scratch) {
    const tr_store_slot *slot = &n->store->slot[i];
    const slot_norm *norm = &n->slot[i];
    const int64_t blocks = tr_sumsq_blocks(slot->param->count);
    const bool here = n->here && !n->gathers;
    double *const out = here ? norm->here + blocks : vector + norm->entry;
    tr_op_args args = {.t = {[TR_SUMSQ_OUT] = tr_tensor_vector(out, TR_F64, 1)},
                       .scratch = scratch};
    if (here || n->gathers)
        args.t[TR_SUMSQ_SUMS] = tr_tensor_vector(here ? norm->here : norm->all, TR_F64, blocks);
    else args.t[TR_SUMSQ_X] = portion_of(n, slot);
    if (!here) return tr_op_run(norm->total, stream, &args);
    TR_TRY(tr_op_run(norm->total, tr_device_compute(n->store->host), &args));
    return tr_stream_copy(stream, vector + norm->entry, out, sizeof *out);
}

tr_status tr_norms_take(tr_norms *n, int lap, tr_stream *stream, double *vector, void *scratch) {
    if (!n) return TR_OK;
    for (int i = 0; i < n->store->slots; i++)
        if (n->slot[i].blocks && lap_of(n, i) == lap) TR_TRY(take_blocks(n, i, stream, scratch));
    if (n->gathers) TR_TRY(tr_gathers_run(n->gathers[lap], stream));
    for (int i = 0; i < n->store->slots; i++)
        if (n->slot[i].total && lap_of(n, i) == lap)
            TR_TRY(take_total(n, i, stream, vector, scratch));
    return TR_OK;
}
