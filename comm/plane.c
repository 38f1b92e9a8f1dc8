/* Finds which ranks share a device, and chooses the data plane of a device. */
#include "comm/nccl_impl.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The data that each rank sends all others. */
typedef struct place {
    char machine[64]; /* the kernel's id: containers of one machine count as that machine */
    char device[48];
    bool host_id; /* NCCL_HOSTID is set: NCCL treats each rank as a separate machine */
    int nccl;     /* its version; 0: none */
} place;

typedef struct choice {
    const tr_device *device;
    tr_plane want;
    bool nccl;
    char *note;
    size_t size;
} choice;

/* Reads the kernel's id into a zeroed text, or the host's name if there is no id. */
static void read_machine(char *text, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(text, (int)size, file)) text[0] = '\0';
        (void)fclose(file);
    }
    text[strcspn(text, "\n")] = '\0';
    if (!text[0]) (void)gethostname(text, size - 1);
}

static bool same_place(const place *a, const place *b) {
    return !strcmp(a->machine, b->machine) && !strcmp(a->device, b->device);
}

/* Finds two ranks that share a device: returns the first and sets *second; -1 when no two do. */
static int find_shared(const place *all, int n, int *second) {
    for (int b = 1; b < n; b++)
        for (int a = 0; a < b; a++)
            if (same_place(&all[a], &all[b])) {
                *second = b;
                return a;
            }
    return -1;
}

/* Returns the first rank that lacks it, or -1. */
static int find_lacking(const place *all, int n, bool (*has)(const place *)) {
    for (int i = 0; i < n; i++)
        if (!has(&all[i])) return i;
    return -1;
}

static bool has_nccl(const place *p) {
    return p->nccl != 0;
}

static bool has_gpu(const place *p) {
    return strcmp(p->device, "host") != 0;
}

/* Fails because NCCL was requested and is impossible. */
static tr_status refuse(const place *all, int n, const choice *c) {
    int second = 0, first = find_shared(all, n, &second), lacking = find_lacking(all, n, has_nccl);
    if (tr_device_on_host(c->device))
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.transport=nccl connects GPUs, but device.name=%s is not a GPU: "
                       "set parallel.transport=auto",
                       c->device->name);
    if (lacking >= 0)
        return TR_FAIL(
            TR_ERR_DEVICE,
            "rank %d has no NCCL: its library cannot be loaded, or this build of Trireme "
            "is without it (`trireme doctor` checks it): set parallel.transport=auto",
            lacking);
    if (find_lacking(all, n, has_gpu) >= 0 || first < 0 || all[first].host_id) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "ranks %d and %d are on one GPU (%s), but NCCL needs one for each rank: set "
                   "parallel.transport=auto, or give each rank a GPU",
                   first, second, all[first].device);
}

/* Chooses from all ranks' data, with the same result on every rank. */
static tr_status choose(const place *all, int n, choice *c) {
    if (c->want == TR_PLANE_MPI || n == 1) return TR_OK;
    if (c->want == TR_PLANE_NCCL) {
        TR_TRY(refuse(all, n, c));
        c->nccl = true;
        return TR_OK;
    }
    if (tr_device_on_host(c->device) || find_lacking(all, n, has_gpu) >= 0) return TR_OK;
    int second = 0, first = find_shared(all, n, &second), lacking = find_lacking(all, n, has_nccl);
    if (lacking >= 0)
        (void)snprintf(c->note, c->size,
                       "rank %d has no NCCL (`trireme doctor` checks it): messages are staged on "
                       "the host",
                       lacking);
    else if (first >= 0)
        (void)snprintf(c->note, c->size,
                       "ranks %d and %d share a GPU (%s), which NCCL refuses: messages are staged "
                       "on the host",
                       first, second, all[first].device);
    else c->nccl = true;
    return TR_OK;
}

tr_status tr_world_choose_data_plane(tr_world *world, tr_device *device, tr_plane want, char *note,
                                     size_t size) {
    place mine = {.host_id = getenv("NCCL_HOSTID") != NULL,
                  .nccl = tr_device_on_host(device) ? 0 : tr_nccl_version()};
    choice c = {.device = device, .want = want, .note = note, .size = size};
    size_t ranks = (size_t)world->size;
    place *all = NULL;
    bool *shares = NULL;
    if (size > 0) note[0] = '\0';
    read_machine(mine.machine, sizeof mine.machine);
    tr_status status = tr_device_identity(device, mine.device, sizeof mine.device);
    if (status == TR_OK) status = tr_calloc(ranks, sizeof *all, &all);
    if (status == TR_OK) status = tr_calloc(ranks, sizeof *shares, &shares);
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_world_gather_all(world, &mine, all, sizeof mine));
    for (size_t r = 0; r < ranks; r++) shares[r] = same_place(&mine, &all[r]);
    free(world->shares);
    world->shares = shares;
    shares = NULL;
    TR_TRY_OUT(choose(all, world->size, &c));
    /* Collectives connect when the communicator is made, not during a step. */
    if (c.nccl) (void)setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    world->nccl_device = c.nccl ? device : NULL;
out:
    free(shares);
    free(all);
    return status;
}

bool tr_world_shares(const tr_world *world, int rank) {
    return world->shares ? world->shares[rank] : rank == world->rank;
}

int tr_world_sharers(const tr_world *world) {
    int count = 0;
    for (int r = 0; r < world->size; r++) count += tr_world_shares(world, r);
    return count;
}

/* Versions from 2.9 on are major * 10000 + minor * 100 + patch. */
void tr_world_nccl_text(char *text, size_t size) {
    int version = tr_nccl_version();
    (void)snprintf(text, size, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                   version % 100);
}

bool tr_world_uses_nccl(const tr_world *world) {
    return world->nccl_device != NULL;
}

void tr_world_set_own_sums(tr_world *world, tr_own_sums own) {
    world->own_sums = own;
}

tr_own_sums tr_world_own_sums(const tr_world *world) {
    return tr_world_uses_nccl(world) ? world->own_sums : (tr_own_sums){.ordered = false};
}

int tr_world_receive_units(const tr_world *world) {
    return world->nccl_device ? TR_NCCL_CHANNEL_UNITS : 0;
}

int tr_world_expected_units(tr_device *device, tr_plane want, int ranks) {
    place mine = {.nccl = tr_device_on_host(device) ? 0 : tr_nccl_version()};
    if (tr_device_identity(device, mine.device, sizeof mine.device) != TR_OK) tr_error_clear();
    const bool nccl = want == TR_PLANE_NCCL || (want == TR_PLANE_AUTO && has_gpu(&mine));
    return nccl && ranks > 1 && has_nccl(&mine) ? TR_NCCL_CHANNEL_UNITS : 0;
}

bool tr_world_by_nccl(const tr_world *world, const tr_device *device) {
    return device && world->nccl_device == device;
}
