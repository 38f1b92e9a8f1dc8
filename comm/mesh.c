#include "comm/mesh.h"

#include <stdint.h>

const char *tr_axis_name(tr_axis axis) {
    static const char *const name[TR_AXIS_COUNT] = {
        [TR_AXIS_PP] = "pp", [TR_AXIS_DP] = "dp", [TR_AXIS_TP] = "tp"};
    return name[axis];
}

tr_status tr_mesh_make(int pp, int dp, int tp, int rank, int size, tr_mesh *out) {
    tr_mesh mesh = {.degree = {[TR_AXIS_PP] = pp, [TR_AXIS_DP] = dp, [TR_AXIS_TP] = tp}};
    int64_t product = 1;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) {
        if (mesh.degree[axis] < 1)
            return TR_FAIL(TR_ERR_CONFIG, "parallel.%s is %d; it must be 1 or more",
                           tr_axis_name((tr_axis)axis), mesh.degree[axis]);
        if (__builtin_mul_overflow(product, mesh.degree[axis], &product))
            return TR_FAIL(TR_ERR_CONFIG, "parallel.pp * parallel.dp * parallel.tp overflows");
    }
    if (product != size) {
        int64_t model = (int64_t)pp * tp;
        if (size % model == 0)
            return TR_FAIL(
                TR_ERR_CONFIG,
                "pp=%d * dp=%d * tp=%d needs %lld ranks, but this run has %d: start %lld "
                "ranks (trireme run -n %lld) or set parallel.dp=%lld",
                pp, dp, tp, (long long)product, size, (long long)product, (long long)product,
                (long long)(size / model));
        return TR_FAIL(TR_ERR_CONFIG,
                       "pp=%d * dp=%d * tp=%d needs %lld ranks, but this run has %d: start %lld "
                       "ranks (trireme run -n %lld), or choose degrees whose product is %d",
                       pp, dp, tp, (long long)product, size, (long long)product, (long long)product,
                       size);
    }
    if (rank < 0 || rank >= size)
        return TR_FAIL(TR_ERR_INTERNAL, "rank %d is not in a world of %d", rank, size);
    for (int axis = TR_AXIS_COUNT - 1; axis >= 0; axis--) {
        mesh.index[axis] = rank % mesh.degree[axis];
        rank /= mesh.degree[axis];
    }
    *out = mesh;
    return TR_OK;
}

int tr_mesh_rank(const tr_mesh *mesh, const int index[TR_AXIS_COUNT]) {
    int rank = 0;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) rank = rank * mesh->degree[axis] + index[axis];
    return rank;
}

void tr_mesh_line(const tr_mesh *mesh, tr_axis axis, int *ranks) {
    int index[TR_AXIS_COUNT];
    for (int i = 0; i < TR_AXIS_COUNT; i++) index[i] = mesh->index[i];
    for (int i = 0; i < mesh->degree[axis]; i++) {
        index[axis] = i;
        ranks[i] = tr_mesh_rank(mesh, index);
    }
}
