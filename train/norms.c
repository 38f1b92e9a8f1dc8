#include "train/norms.h"

#include "base/memory.h"
#include "partition/step_end.h"

#include <stdlib.h>

/* Of a slot. */
typedef struct slot_norm {
    tr_op *blocks; /* of the portion; NULL: none are gathered, it is empty or has no norm */
    tr_op *total;  /* of the blocks, or of all elements; NULL: it is not written here */
    double *all;   /* [blocks of the parameter] */
    int64_t entry;
} slot_norm;

struct tr_norms {
    const tr_store *store;
    bool masters;
    slot_norm *slot; /* [store->slots] */
    double *blocks;  /* device: of all slots; NULL: none are gathered */
    tr_gathers *gathers;
};

static tr_status prepare(const tr_store *store, const tr_op_desc *desc, size_t *scratch,
                         tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = store->device}, desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

/* Allocates the blocks of all slots that have a norm. */
static tr_status alloc_blocks(tr_norms *n) {
    const tr_store *store = n->store;
    int64_t count = 0;
    for (int i = 0; i < store->slots; i++)
        if (n->slot[i].entry != TR_NORM_NONE) count += tr_sumsq_blocks(store->slot[i].param->count);
    if (count == 0) return TR_OK;
    TR_TRY(tr_device_alloc(store->device, TR_MEMORY_DATA, (size_t)count * sizeof(double),
                           (void **)&n->blocks));
    count = 0;
    for (int i = 0; i < store->slots; i++) {
        n->slot[i].all = n->blocks + count;
        if (n->slot[i].entry != TR_NORM_NONE) count += tr_sumsq_blocks(store->slot[i].param->count);
    }
    return TR_OK;
}

/* Returns the type of the elements. */
static tr_dtype dtype_of(const tr_norms *n) {
    return n->masters ? n->store->acc : n->store->grad_dtype;
}

static tr_status prepare_slot(tr_norms *n, int i, size_t *scratch) {
    const tr_store *store = n->store;
    const tr_store_slot *slot = &store->slot[i];
    slot_norm *norm = &n->slot[i];
    if (norm->entry == TR_NORM_NONE) return TR_OK;
    const tr_op_desc blocks = tr_step_end_blocks_op(slot->param, store->divided, dtype_of(n)),
                     total = n->gathers ? tr_step_end_total_op(slot->param)
                                        : tr_step_end_sumsq_op(slot->param, dtype_of(n));
    if (norm->entry != TR_NORM_ELSEWHERE) TR_TRY(prepare(store, &total, scratch, &norm->total));
    if (!n->gathers) return TR_OK;
    if (slot->portion.extent > 0) TR_TRY(prepare(store, &blocks, scratch, &norm->blocks));
    return tr_gathers_add(n->gathers, store, slot, norm->all, TR_PARAM_BLOCK, sizeof(double));
}

tr_status tr_norms_create(const tr_norms_desc *desc, size_t *scratch, tr_norms **out) {
    tr_status status = TR_OK;
    const tr_store *store = desc->store;
    tr_norms *n;
    TR_TRY(tr_calloc(1, sizeof *n, &n));
    n->store = store;
    n->masters = desc->masters;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *n->slot, &n->slot));
    for (int i = 0; i < store->slots; i++) n->slot[i].entry = desc->entry[i];
    if (store->divided && !desc->alone) {
        TR_TRY_OUT(alloc_blocks(n));
        TR_TRY_OUT(tr_gathers_create(&n->gathers));
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
    if (n->blocks) tr_device_free(n->store->device, n->blocks);
    tr_gathers_destroy(n->gathers);
    free(n->slot);
    free(n);
}

/* Returns the elements of this rank's portion. */
static tr_tensor portion_of(const tr_norms *n, const tr_store_slot *slot) {
    return tr_tensor_vector(n->masters ? slot->master : slot->grad, dtype_of(n),
                            slot->portion.extent);
}

/* Takes the blocks of this rank's portion. */
static tr_status take_blocks(const tr_norms *n, int i, tr_stream *stream, void *scratch) {
    const tr_store_slot *slot = &n->store->slot[i];
    const slot_norm *norm = &n->slot[i];
    const tr_range own = slot->portion;
    const tr_op_args args = {
        .t = {[TR_SUMSQ_X] = portion_of(n, slot),
              [TR_SUMSQ_SUMS] = tr_tensor_vector(norm->all + own.begin / TR_PARAM_BLOCK, TR_F64,
                                                 tr_sumsq_blocks(own.extent))},
        .scratch = scratch};
    return tr_op_run(norm->blocks, stream, &args);
}

static tr_status take_total(const tr_norms *n, int i, tr_stream *stream, double *vector,
                            void *scratch) {
    const tr_store_slot *slot = &n->store->slot[i];
    const slot_norm *norm = &n->slot[i];
    tr_op_args args = {.t = {[TR_SUMSQ_OUT] = tr_tensor_vector(vector + norm->entry, TR_F64, 1)},
                       .scratch = scratch};
    if (n->blocks)
        args.t[TR_SUMSQ_SUMS] =
            tr_tensor_vector(norm->all, TR_F64, tr_sumsq_blocks(slot->param->count));
    else args.t[TR_SUMSQ_X] = portion_of(n, slot);
    return tr_op_run(norm->total, stream, &args);
}

tr_status tr_norms_take(tr_norms *n, tr_stream *stream, double *vector, void *scratch) {
    if (!n) return TR_OK;
    for (int i = 0; i < n->store->slots; i++)
        if (n->slot[i].blocks) TR_TRY(take_blocks(n, i, stream, scratch));
    if (n->gathers) TR_TRY(tr_gathers_run(n->gathers, stream));
    for (int i = 0; i < n->store->slots; i++)
        if (n->slot[i].total) TR_TRY(take_total(n, i, stream, vector, scratch));
    return TR_OK;
}
