/* Checkpoints between processes: rows split over the ranks are saved, columns are loaded; a save
 * that fails on one rank fails on all with one message. */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 64, COLUMNS = 48 };

/* Returns this rank's slab along `axis`; the slabs have unequal sizes. */
static tr_box slab(int axis, int rank, int size) {
    const int64_t extent[2] = {ROWS, COLUMNS};
    int64_t from = extent[axis] * rank * rank / (size * size);
    int64_t end = extent[axis] * (rank + 1) * (rank + 1) / (size * size);
    tr_box box = {.extent = {ROWS, COLUMNS}, .local_stride = {COLUMNS, 1}};
    box.offset[axis] = from;
    box.extent[axis] = end - from;
    return box;
}

static float value_of(int64_t row, int64_t column) {
    return (float)(row * COLUMNS + column) + 0.5f;
}

static bool run(tr_world *world, const char *root) {
    static float local[ROWS * COLUMNS];
    const int rank = tr_world_rank(world), size = tr_world_size(world);
    tr_box box = slab(0, rank, size);
    tr_ckpt_tensor tensor = {.name = "weights/w",
                             .rank = 2,
                             .shape = {ROWS, COLUMNS},
                             .boxes = 1,
                             .box = &box,
                             .local = local,
                             .write = true};
    tr_ckpt_state state = {.step = 7, .next_sample = 70, .optimizer_step = 7, .tokens_seen = 700},
                  loaded;
    for (int64_t i = 0; i < box.extent[0] * COLUMNS; i++)
        local[i] = value_of(box.offset[0] + i / COLUMNS, i % COLUMNS);
    if (tr_ckpt_save(world, root, &state, &tensor, 1) != TR_OK) return false;
    if (tr_ckpt_save(world, root, &state, &tensor, 1) != TR_ERR_IO ||
        !strstr(tr_error_message(), "never overwritten"))
        return false;

    box = slab(1, rank, size);
    memset(local, 0, sizeof local);
    if (tr_ckpt_load(world, root, -1, &tensor, 1, &loaded, NULL) != TR_OK) return false;
    if (loaded.step != 7 || loaded.next_sample != 70) return false;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < box.extent[1]; c++)
            if (local[r * COLUMNS + c] != value_of(r, box.offset[1] + c)) return false;
    tensor.shape[0] = ROWS + rank; /* another model: all ranks report the same failure */
    tr_status status = tr_ckpt_load(world, root, 7, &tensor, 1, &loaded, NULL);
    return status == (size == 1 ? TR_OK : TR_ERR_DATA);
}

int main(void) {
    tr_world *world;
    if (tr_world_open_mpi(&world) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        return 1;
    }
    char root[64] = "ckpt-mpi-XXXXXX", command[100];
    bool first = tr_world_rank(world) == 0, made = !first || mkdtemp(root) != NULL;
    bool good =
        tr_world_broadcast(world, 0, root, sizeof root) == TR_OK && made && run(world, root);
    if (!good) fprintf(stderr, "rank %d: %s\n", tr_world_rank(world), tr_error_message());
    (void)tr_world_agree(
        world, good ? TR_OK : TR_ERR_INTERNAL); /* all ranks have finished before it is removed */
    (void)snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (first && system(command) != 0) good = false;
    if (!good) tr_world_abort(world, 1);
    tr_world_close(world);
    return 0;
}
