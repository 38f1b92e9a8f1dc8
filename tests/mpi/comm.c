/* comm/ over MPI: the checks of support/comm_checks.h as one rank of mpirun.
 * usage: comm [DEVICE [nccl]] */
#include "base/cores.h"
#include "support/comm_checks.h"
#include "tests/unit/support/seed.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* CUDA_MODULE_LOADING was set before an MPI library could have started CUDA. */
static bool loading_was_set;

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    const char *loading = getenv("CUDA_MODULE_LOADING");
    loading_was_set = loading && strcmp(loading, "EAGER") == 0;
    return PMPI_Init_thread(argc, argv, required, provided);
}

/* Returns true when the ranks of this host use disjoint CPUs, or are more than the CPUs. */
static bool cores_are_divided(tr_world *world, int before, int busy) {
    int ranks = tr_world_size(world), due = busy > ranks ? busy / ranks : 1;
    tr_cores mine, *all = calloc((size_t)ranks, sizeof *all);
    tr_cores_usable(&mine);
    CHECK(all);
    CHECK_OK(tr_world_gather_all(world, &mine, all, sizeof mine));
    CHECK(tr_world_cores(world) == due);
    int users[TR_CORES_MAX] = {0}, most = before >= ranks ? 1 : ranks;
    for (int r = 0; r < ranks; r++) {
        CHECK(all[r].count >= due);
        for (int i = 0; i < all[r].count; i++) CHECK(++users[all[r].cpu[i]] <= most);
    }
    free(all);
    return true;
}

int main(int argc, char **argv) {
    tr_world *world;
    tr_cores before;
    tr_cores_usable(&before);
    const int busy = tr_cores_count(); /* fewer with a quota of processor time */
    (void)unsetenv("CUDA_MODULE_LOADING");
    if (tr_world_open_mpi(&world) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        return 1;
    }
    uint32_t seed = (uint32_t)tr_test_seed(1);
    bool nccl = argc > 2 && strcmp(argv[2], "nccl") == 0;
    bool good = loading_was_set == (tr_world_size(world) > 1) &&
                cores_are_divided(world, before.count, busy) &&
                comm_checks_on(world, argc > 1 ? argv[1] : "ref", nccl, seed) &&
                (argc > 1 || comm_checks_last(world, "ref", seed));
    if (!good) tr_world_abort(world, 1); /* otherwise the other ranks would wait for this one */
    tr_world_close(world);
    return 0;
}
