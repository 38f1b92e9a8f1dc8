/* Saves and loads 60 FP32 matrices, of which each rank holds as many rows, as bench/torch_ckpt.py
 * does with PyTorch's distributed checkpoints; bench/ckpt.sh runs both in turn. A save ends when
 * all files are on the disk; a load begins without their pages in memory, and what it has read is
 * compared.
 *
 *   mpirun --bind-to none -n 2 build/release/bench/bench_ckpt FOLDER [GIB [ROUNDS]]
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/philox.h"
#include "ckpt/ckpt.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MATRICES = 60, ROWS = 2048 }; /* rows of a rank */
enum { PAUSE = 10 }; /* seconds before a load: a virtual disk goes on writing for some time */

typedef struct bench {
    tr_world *world;
    char root[PATH_MAX];
    int64_t cols;
    tr_box box;
    tr_ckpt_tensor matrix[MATRICES];
} bench;

static float value_of(const bench *b, int matrix, int64_t element) {
    const uint64_t place = (uint64_t)(tr_world_rank(b->world) * MATRICES + matrix);
    return (float)(tr_mix64((place << 40) + (uint64_t)element) >> 40);
}

static tr_status make_state(bench *b, double gib) {
    const int ranks = tr_world_size(b->world);
    b->cols = (int64_t)(gib * (1 << 30) / 4 / MATRICES / ROWS / ranks);
    b->box = (tr_box){.offset = {(int64_t)tr_world_rank(b->world) * ROWS},
                      .extent = {ROWS, b->cols},
                      .local_stride = {b->cols, 1}};
    for (int i = 0; i < MATRICES; i++) {
        tr_ckpt_tensor *t = &b->matrix[i];
        float *values;
        TR_TRY(tr_calloc((size_t)(ROWS * b->cols), sizeof *values, &values));
        *t = (tr_ckpt_tensor){.rank = 2,
                              .shape = {(int64_t)ranks * ROWS, b->cols},
                              .boxes = 1,
                              .box = &b->box,
                              .local = values,
                              .dtype = TR_F32,
                              .write = true};
        (void)snprintf(t->name, sizeof t->name, "weights/t%d", i);
        for (int64_t e = 0; e < ROWS * b->cols; e++) values[e] = value_of(b, i, e);
    }
    return TR_OK;
}

/* Drops the pages of the files of a step. */
static tr_status drop_pages(const bench *b, int64_t step) {
    char folder[PATH_MAX + 32];
    (void)snprintf(folder, sizeof folder, "%s/step-%08lld", b->root, (long long)step);
    DIR *files = opendir(folder);
    if (!files) return TR_FAIL(TR_ERR_IO, "%s cannot be read", folder);
    for (const struct dirent *file = readdir(files); file; file = readdir(files)) {
        const int fd = openat(dirfd(files), file->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
    (void)closedir(files);
    return TR_OK;
}

/* Fails unless every matrix has its values again. */
static tr_status compare(const bench *b) {
    for (int i = 0; i < MATRICES; i++) {
        const float *values = b->matrix[i].local;
        for (int64_t e = 0; e < ROWS * b->cols; e++)
            if (values[e] != value_of(b, i, e))
                return TR_FAIL(TR_ERR_INTERNAL, "%s is not as it was saved", b->matrix[i].name);
    }
    return TR_OK;
}

static tr_status take_round(bench *b, int64_t step) {
    const int rank = tr_world_rank(b->world), ranks = tr_world_size(b->world);
    tr_ckpt_state state = {
        .step = step, .next_sample = step, .optimizer_step = step, .tokens_seen = (double)step};
    TR_TRY(tr_world_barrier(b->world));
    const double begin = tr_now_s();
    TR_TRY(tr_ckpt_save(b->world, b->root, &state, b->matrix, MATRICES));
    TR_TRY(tr_world_barrier(b->world));
    const double saved = tr_now_s() - begin;
    if (rank == 0) TR_TRY(drop_pages(b, step));
    for (int i = 0; i < MATRICES; i++)
        memset(b->matrix[i].local, 0, (size_t)(ROWS * b->cols) * sizeof(float));
    (void)sleep(PAUSE);
    TR_TRY(tr_world_barrier(b->world));
    const double cold = tr_now_s();
    TR_TRY(tr_ckpt_load(b->world, b->root, step, b->matrix, MATRICES, NULL, NULL));
    TR_TRY(tr_world_barrier(b->world));
    const double loaded = tr_now_s() - cold;
    const double gb = 4e-9 * MATRICES * ROWS * (double)b->cols * ranks;
    TR_TRY(compare(b));
    if (rank == 0)
        printf("trireme %.2f GB, %d ranks: save %.2f GB/s, cold load %.2f GB/s\n", gb, ranks,
               gb / saved, gb / loaded);
    (void)fflush(stdout);
    return TR_OK;
}

static tr_status run(bench *b, const char *folder, double gib, int rounds) {
    (void)snprintf(b->root, sizeof b->root, "%s/ckpt", folder);
    TR_TRY(make_state(b, gib));
    for (int k = 1; k <= rounds; k++) {
        if (tr_world_rank(b->world) == 0) tr_ckpt_remove_root(b->root);
        TR_TRY(take_round(b, k));
    }
    if (tr_world_rank(b->world) == 0) tr_ckpt_remove_root(b->root);
    return TR_OK;
}

int main(int argc, char **argv) {
    bench b = {0};
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: bench_ckpt FOLDER [GIB [ROUNDS]]\n");
        return 64;
    }
    tr_status status = tr_world_open_mpi(&b.world);
    if (status == TR_OK)
        status = run(&b, argv[1], argc > 2 ? atof(argv[2]) : 1.5, argc > 3 ? atoi(argv[3]) : 3);
    if (status != TR_OK) fprintf(stderr, "%s (%s)\n", tr_error_message(), tr_error_trace());
    if (status != TR_OK && b.world) tr_world_abort(b.world, (int)status);
    for (int i = 0; i < MATRICES; i++) free(b.matrix[i].local);
    tr_world_close(b.world);
    return (int)status;
}
