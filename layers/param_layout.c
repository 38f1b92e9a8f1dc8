#include "layers/param_layout.h"

#include "base/minmax.h"

/* Returns the number of data ranks that hold the same boxes. */
static int copies_of(const tr_param *param, const tr_mesh *mesh) {
    const int copies = param->copies[TR_AXIS_DP];
    return copies ? copies : mesh->degree[TR_AXIS_DP];
}

/* Returns the number of those that divide its state: the near ones. */
static int owners_of(const tr_param *param, const tr_mesh *mesh) {
    return tr_min_int(copies_of(param, mesh), tr_mesh_near(mesh));
}

tr_status tr_param_layout_make(const tr_param *param, const tr_mesh *mesh, tr_param_layout *out) {
    tr_param_layout l = {.parts = 1};
    const int near = owners_of(param, mesh);
    l.replicas = l.sum = l.across = l.owners = tr_mesh_self(mesh);
    TR_TRY(tr_mesh_widen(mesh, TR_AXIS_DP, near, &l.owners));
    for (tr_axis axis = TR_AXIS_DP; axis < TR_AXIS_COUNT; axis++) {
        const int count = axis == TR_AXIS_DP ? near : param->copies[axis];
        TR_TRY(tr_mesh_widen(mesh, axis, param->copies[axis], &l.replicas));
        if (param->partial & TR_AXIS_BIT(axis)) TR_TRY(tr_mesh_widen(mesh, axis, count, &l.sum));
        const int parts = mesh->degree[axis] / l.replicas.count[axis];
        l.parts *= parts;
        l.part = l.part * parts + mesh->index[axis] / l.replicas.count[axis];
    }
    if (param->partial & TR_AXIS_BIT(TR_AXIS_DP))
        tr_mesh_cross(mesh, TR_AXIS_DP, near, copies_of(param, mesh), &l.across);
    /* All data ranks write, so that the files have about the same size, but only one tensor rank,
     * so that all data ranks of a line take the same turns. */
    l.savers = l.replicas;
    l.savers.count[TR_AXIS_TP] = 1;
    l.counted = param->use == 0 && tr_mesh_part_place(mesh, &l.replicas) == 0;
    l.counted_in_tp = mesh->index[TR_AXIS_TP] % l.replicas.count[TR_AXIS_TP] == 0;
    l.saves = param->use == 0 && tr_mesh_part_place(mesh, &l.savers) >= 0;
    l.saves_portion = l.saves && mesh->index[TR_AXIS_DP] % copies_of(param, mesh) < near;
    *out = l;
    return TR_OK;
}

bool tr_param_layout_takes_turn(const tr_param_layout *layout, const tr_mesh *mesh, int64_t count,
                                int64_t *load) {
    const int run = layout->savers.count[TR_AXIS_DP];
    bool mine = false;
    if (!layout->saves) return false;
    for (int first = 0; first < mesh->degree[TR_AXIS_DP]; first += run) {
        int best = first;
        for (int d = first + 1; d < first + run; d++)
            if (load[d] < load[best]) best = d;
        load[best] += count;
        mine |= best == mesh->index[TR_AXIS_DP];
    }
    return mine;
}

tr_status tr_param_matrix_make(const tr_param *param, tr_param_matrix *out) {
    const tr_global *global = &param->tensor[0];
    const int64_t rows = global->shape[0], cols = global->shape[1];
    *out = (tr_param_matrix){.rows = rows,
                             .cols = cols,
                             .rows_whole = param->local[0] == rows,
                             .cols_whole = param->local[1] == cols};
    if (param->tensors == 1 && global->rank == 2 && (out->rows_whole || out->cols_whole))
        return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "%s is not a matrix that ranks divide along one axis",
                   tr_param_name(param));
}

tr_range tr_param_portion_of(const tr_param *param, const tr_mesh *mesh, int place) {
    if (!mesh) return (tr_range){.extent = param->count};
    if (param->whole) return (tr_range){.extent = place == param->owner ? param->count : 0};
    const int ranks = owners_of(param, mesh);
    const int64_t blocks = (param->count + TR_PARAM_BLOCK - 1) / TR_PARAM_BLOCK;
    const tr_range mine = tr_range_part(blocks, ranks, (place + param->turn) % ranks);
    const int64_t begin = tr_min_i64(mine.begin * TR_PARAM_BLOCK, param->count);
    const int64_t end = tr_min_i64((mine.begin + mine.extent) * TR_PARAM_BLOCK, param->count);
    return (tr_range){.begin = begin, .extent = end - begin};
}

/* Owner k of the turn, which is at place k - param->turn, has one block more than later ones while
 * k is below the rest of the division, and the last one with a block may have a part of one. */
int tr_param_portion_steps(const tr_param *param, const tr_mesh *mesh,
                           int place[TR_PORTION_STEPS]) {
    const int ranks = owners_of(param, mesh);
    const int64_t blocks = (param->count + TR_PARAM_BLOCK - 1) / TR_PARAM_BLOCK;
    const int rest = (int)(blocks % ranks);
    const int last = blocks < ranks ? rest - 1 : ranks - 1;
    const int step[TR_PORTION_STEPS] = {0, rest, last};
    const int turn = param->turn % ranks;
    if (param->whole) {
        place[0] = param->owner;
        place[1] = (param->owner + 1) % ranks;
        return 2;
    }
    for (int k = 0; k < TR_PORTION_STEPS; k++) place[k] = (step[k] + ranks - turn) % ranks;
    return TR_PORTION_STEPS;
}

tr_range tr_param_portion(const tr_param *param, const tr_mesh *mesh) {
    const int place = mesh ? mesh->index[TR_AXIS_DP] % owners_of(param, mesh) : 0;
    return tr_param_portion_of(param, mesh, place);
}
