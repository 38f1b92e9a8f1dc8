/* Tests NCCL on GPUs. One rank: the all-reduce of a group of one, which the program itself does not
 * use. Several: the checks of support/comm_checks.h. NCCL refuses several ranks on one GPU, unless
 * NCCL_HOSTID makes them appear to be on different machines. Exit code 77: no GPU. usage: gpu_nccl
 * [DEVICE] */
#include "comm/nccl_impl.h"
#include "support/comm_checks.h"
#include "tests/unit/support/seed.h"

#include <string.h>

enum { COUNT = 1000 };

static bool unchanged(const checks *k, both *data) {
    CHECK(download(k, k->stream, data));
    for (int i = 0; i < COUNT; i++) {
        float got;
        memcpy(&got, data->host + (size_t)i * sizeof got, sizeof got);
        if (got == (float)i) continue;
        fprintf(stderr, "all_reduce: element %d is %g\n", i, (double)got);
        return false;
    }
    return true;
}

static bool check_alone(const checks *k) {
    const tr_group_desc desc = {
        .world = k->world, .device = k->device, .ranks = (int[]){0}, .n = 1, .max_bytes = 1 << 20};
    tr_group *g;
    both data;
    CHECK_OK(tr_group_make_nccl(&desc, &g));
    g->world = k->world;
    g->n = 1;
    CHECK(both_new(k, COUNT * sizeof(float), &data));
    for (int i = 0; i < COUNT; i++) store(data.host, TR_F32, i, i);
    CHECK(upload(k->stream, &data));
    int64_t ticket;
    CHECK_OK(g->ops->start(g, k->stream, data.device, COUNT, TR_F32, TR_REDUCE_SUM, true, &ticket));
    CHECK_OK(g->ops->wait(g, k->stream, ticket));
    CHECK(unchanged(k, &data));
    tr_group_close(g);
    both_free(k, &data);
    return true;
}

static bool check_one_rank(tr_world *world, const char *device) {
    checks k;
    CHECK(checks_open(world, device, 1, &k));
    bool good = check_alone(&k);
    tr_device_close(k.device);
    return good;
}

/* Opens the device for the first time in this process, with the option that ranks wait for each
 * other: this decides how kernels are loaded. Returns false without a GPU. */
static bool has_device(const char *name) {
    const tr_device_options options = {.threads = 1, .ranks = 2};
    tr_device *device;
    if (tr_device_open(name, &options, &device) != TR_OK) return false;
    tr_device_close(device);
    return true;
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cuda";
    tr_world *world;
    char text[64];
    if (!has_device(device)) {
        printf("skipped: %s\n", tr_error_message());
        return 77;
    }
    if (tr_world_open_mpi(&world) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_message());
        return 1;
    }
    int ranks = tr_world_size(world);
    bool good = ranks == 1 ? check_one_rank(world, device)
                           : comm_checks_on(world, device, true, (uint32_t)tr_test_seed(1));
    if (!good) tr_world_abort(world, 1); /* otherwise the other ranks would wait for this one */
    tr_world_nccl_text(text, sizeof text);
    if (tr_world_rank(world) == 0)
        printf("%s with %d rank%s on %s\n", text, ranks, ranks == 1 ? "" : "s", device);
    tr_world_close(world);
    return good ? 0 : 1;
}
