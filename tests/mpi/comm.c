/* comm/ over MPI: the checks of tests/comm_checks.h as one rank of mpirun.
 * usage: comm [DEVICE] */
#include "tests/comm_checks.h"
#include "tests/unit/support/seed.h"

int main(int argc, char **argv) {
    tr_world *world;
    if (tr_world_open_mpi(&world) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        return 1;
    }
    uint32_t seed = (uint32_t)tr_test_seed(1);
    bool good = comm_checks_on(world, argc > 1 ? argv[1] : "ref", seed) &&
                (argc > 1 || comm_checks_last(world, "ref", seed));
    if (!good) tr_world_abort(world, 1); /* the others would wait for this rank */
    tr_world_close(world);
    return 0;
}
