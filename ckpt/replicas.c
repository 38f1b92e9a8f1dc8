/* Compares the replicas of parameters, by hashes of their boxes. */
#include "base/memory.h"
#include "base/minmax.h"
#include "ckpt/ckpt_impl.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { GROUP_LENGTH = 8 }; /* of "weights/" */

/* A box that a rank holds. */
typedef struct replica {
    uint64_t box;      /* hash of the tensor's name and the box's place */
    uint64_t contents; /* hash of its elements, as FP32 */
    int32_t rank;
    int32_t tensor; /* of that rank's list */
} replica;

static bool is_compared(const tr_ckpt_tensor *tensor) {
    return !tensor->fetch && !strncmp(tensor->name, "weights/", GROUP_LENGTH);
}

static uint64_t hash_place(const tr_ckpt_tensor *tensor, const tr_box4 *place) {
    return XXH3_64bits_withSeed(place, sizeof *place,
                                XXH3_64bits(tensor->name, strlen(tensor->name)));
}

static uint64_t hash_contents(const tr_ckpt_tensor *tensor, const tr_box *box, const tr_box4 *place,
                              float *buffer, XXH3_state_t *state) {
    const int64_t step = TR_CKPT_STEP, elements = tr_box4_volume(place);
    (void)XXH3_64bits_reset(state);
    for (int64_t first = 0; first < elements; first += step) {
        const int64_t count = tr_min_i64(elements - first, step);
        (void)tr_box4_copy(place, first, count, buffer, tensor, box, true);
        (void)XXH3_64bits_update(state, buffer, (size_t)count * sizeof *buffer);
    }
    return XXH3_64bits_digest(state);
}

/* Hashes this rank's boxes to mine[]. */
static tr_status hash_all(int rank, const tr_ckpt_tensor *tensors, int count, replica *mine) {
    tr_mirror mirror = {0};
    float *buffer = NULL;
    XXH3_state_t *state = XXH3_createState();
    tr_status status = state ? TR_OK : TR_FAIL(TR_ERR_FIT, "out of host memory");
    if (status == TR_OK) status = tr_calloc(TR_CKPT_BLOCK, 1, &buffer);
    if (status == TR_OK) status = tr_mirror_open(tensors, count, TR_MIRROR_COMPARE, &mirror);
    for (int32_t i = 0; i < count && status == TR_OK; i++) {
        if (!is_compared(&tensors[i])) continue;
        status = tr_mirror_turn(&mirror, &tensors[i]);
        for (int b = 0; b < tensors[i].boxes && status == TR_OK; b++) {
            const tr_box *box = &tensors[i].box[b];
            const tr_box4 place = tr_box4_make(tensors[i].rank, box->offset, box->extent);
            *mine++ = (replica){.box = hash_place(&tensors[i], &place),
                                .contents = hash_contents(&mirror.view, box, &place, buffer, state),
                                .rank = rank,
                                .tensor = i};
        }
    }
    tr_mirror_close(&mirror);
    free(buffer);
    (void)XXH3_freeState(state);
    return status;
}

static int by_box(const void *a, const void *b) {
    const replica *x = a, *y = b;
    if (x->box != y->box) return x->box < y->box ? -1 : 1;
    return x->rank - y->rank;
}

/* Fails when a replica of this rank differs from the one that the lowest rank holds. */
static tr_status compare(int rank, const tr_ckpt_tensor *tensors, replica *all, size_t count) {
    qsort(all, count, sizeof *all, by_box);
    const replica *first = all;
    for (const replica *c = all; c < all + count; c++) {
        if (c->box != first->box) first = c;
        if (c->rank != rank || c->contents == first->contents) continue;
        return TR_FAIL(TR_ERR_DATA, "the copies of parameter %s on rank %d and rank %d differ",
                       tensors[c->tensor].name + GROUP_LENGTH, first->rank, rank);
    }
    return TR_OK;
}

tr_status tr_ckpt_compare_replicas(tr_world *world, const tr_ckpt_tensor *tensors, int count) {
    const int rank = tr_world_rank(world);
    size_t boxes = 0, bytes = 0, *sizes = NULL;
    replica *mine = NULL, *all = NULL;
    for (int i = 0; i < count; i++)
        if (is_compared(&tensors[i])) boxes += (size_t)tensors[i].boxes;
    tr_status status = tr_calloc(boxes + 1, sizeof *mine, &mine);
    if (status == TR_OK) status = tr_calloc((size_t)tr_world_size(world), sizeof *sizes, &sizes);
    if (status == TR_OK) status = hash_all(rank, tensors, count, mine);
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_gather_all_v(world, mine, boxes * sizeof *mine, (void **)&all, sizes));
    for (int r = 0; r < tr_world_size(world); r++) bytes += sizes[r];
    TR_TRY_OUT(tr_world_agree(world, compare(rank, tensors, all, bytes / sizeof *all)));
out:
    free(all);
    free(sizes);
    free(mine);
    return status;
}
