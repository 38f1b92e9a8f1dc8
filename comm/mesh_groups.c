#include "comm/mesh_groups.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 22 }; /* of a collective */

typedef struct entry {
    tr_mesh_part part;
    tr_group *group;
} entry;

struct tr_mesh_groups {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh;
    entry *entry;
    size_t count, capacity;
};

tr_status tr_mesh_groups_create(tr_world *world, tr_device *device, const tr_mesh *mesh,
                                tr_mesh_groups **out) {
    tr_mesh_groups *groups;
    TR_TRY(tr_calloc(1, sizeof *groups, &groups));
    *groups = (tr_mesh_groups){.world = world, .device = device, .mesh = *mesh};
    *out = groups;
    return TR_OK;
}

void tr_mesh_groups_destroy(tr_mesh_groups *groups) {
    if (!groups) return;
    for (size_t i = groups->count; i > 0; i--) tr_group_close(groups->entry[i - 1].group);
    free(groups->entry);
    free(groups);
}

size_t tr_mesh_groups_bytes(int size, tr_own_sums own) {
    return tr_group_landing_bytes(size, PIECE_BYTES, own);
}

static tr_status open_group(tr_mesh_groups *groups, const tr_mesh_part *part, tr_group **out) {
    const int size = tr_mesh_part_size(part);
    const int64_t id = tr_mesh_part_id(&groups->mesh, part);
    int *ranks;
    if (id > INT_MAX)
        return TR_FAIL(TR_ERR_CONFIG, "%d ranks need more groups than can be numbered",
                       tr_world_size(groups->world));
    TR_TRY(tr_calloc((size_t)size, sizeof *ranks, &ranks));
    tr_mesh_part_ranks(&groups->mesh, part, ranks);
    tr_status status =
        tr_group_open(groups->world, groups->device, ranks, size, (int)id, PIECE_BYTES, out);
    free(ranks);
    return status;
}

tr_status tr_mesh_groups_get(tr_mesh_groups *groups, const tr_mesh_part *part, tr_group **out) {
    for (size_t i = 0; i < groups->count; i++)
        if (memcmp(&groups->entry[i].part, part, sizeof *part) == 0) {
            *out = groups->entry[i].group;
            return TR_OK;
        }
    TR_TRY(tr_grow(&groups->entry, &groups->capacity, groups->count + 1, sizeof *groups->entry));
    TR_TRY(open_group(groups, part, out));
    groups->entry[groups->count++] = (entry){.part = *part, .group = *out};
    return TR_OK;
}
