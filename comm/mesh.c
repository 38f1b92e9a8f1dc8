#include "comm/mesh.h"

#include <stdint.h>

static const char *const axis_name[TR_AXIS_COUNT] = {
    [TR_AXIS_PP] = "pp", [TR_AXIS_DP] = "dp", [TR_AXIS_TP] = "tp"};

tr_status tr_mesh_make(int pp, int dp, int tp, int rank, int size, tr_mesh *out) {
    tr_mesh mesh = {.degree = {[TR_AXIS_PP] = pp, [TR_AXIS_DP] = dp, [TR_AXIS_TP] = tp}};
    int64_t product = 1;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) {
        if (mesh.degree[axis] < 1)
            return TR_FAIL(TR_ERR_CONFIG, "parallel.%s must be 1 or more, not %d", axis_name[axis],
                           mesh.degree[axis]);
        if (__builtin_mul_overflow(product, mesh.degree[axis], &product))
            return TR_FAIL(
                TR_ERR_CONFIG,
                "parallel.pp * parallel.dp * parallel.tp overflows: use smaller degrees");
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
                       "ranks (trireme run -n %lld), or choose degrees with the product %d",
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
    tr_mesh_part line = tr_mesh_self(mesh);
    (void)tr_mesh_widen(mesh, axis, 0, &line); /* the whole axis: cannot fail */
    tr_mesh_part_ranks(mesh, &line, ranks);
}

/* --- parts of a mesh -------------------------------------------------------------------------- */

tr_mesh_part tr_mesh_self(const tr_mesh *mesh) {
    tr_mesh_part part;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) {
        part.first[axis] = mesh->index[axis];
        part.count[axis] = part.stride[axis] = 1;
    }
    return part;
}

tr_status tr_mesh_widen(const tr_mesh *mesh, tr_axis axis, int count, tr_mesh_part *part) {
    const int degree = mesh->degree[axis];
    if (count == 0) count = degree;
    if (count < 1 || degree % count)
        return TR_FAIL(TR_ERR_INTERNAL, "%d neighbours do not divide the %d ranks of axis %s",
                       count, degree, axis_name[axis]);
    part->first[axis] = mesh->index[axis] / count * count;
    part->count[axis] = count;
    return TR_OK;
}

void tr_mesh_cross(const tr_mesh *mesh, tr_axis axis, int count, int most, tr_mesh_part *part) {
    if (count == most) return;
    part->first[axis] = mesh->index[axis] / most * most + mesh->index[axis] % count;
    part->count[axis] = most / count;
    part->stride[axis] = count;
}

tr_mesh_part tr_mesh_pair(const tr_mesh *mesh, tr_axis axis, int a, int b) {
    tr_mesh_part part = tr_mesh_self(mesh);
    part.first[axis] = a < b ? a : b;
    part.count[axis] = 2;
    part.stride[axis] = a < b ? b - a : a - b;
    return part;
}

int tr_mesh_part_size(const tr_mesh_part *part) {
    int size = 1;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) size *= part->count[axis];
    return size;
}

/* Returns the world rank of the part's rank number `place`. */
static int rank_in_part(const tr_mesh *mesh, const tr_mesh_part *part, int place) {
    int index[TR_AXIS_COUNT];
    for (int axis = TR_AXIS_COUNT - 1; axis >= 0; axis--) {
        index[axis] = part->first[axis] + place % part->count[axis] * part->stride[axis];
        place /= part->count[axis];
    }
    return tr_mesh_rank(mesh, index);
}

void tr_mesh_part_ranks(const tr_mesh *mesh, const tr_mesh_part *part, int *ranks) {
    const int size = tr_mesh_part_size(part);
    for (int i = 0; i < size; i++) ranks[i] = rank_in_part(mesh, part, i);
}

int tr_mesh_part_place(const tr_mesh *mesh, const tr_mesh_part *part) {
    int place = 0;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) {
        const int distance = mesh->index[axis] - part->first[axis];
        const int step = distance / part->stride[axis];
        if (distance < 0 || distance % part->stride[axis] || step >= part->count[axis]) return -1;
        place = place * part->count[axis] + step;
    }
    return place;
}

/* Returns how many divisors of `degree` are smaller than `limit`. */
static int divisors_below(int degree, int limit) {
    int count = 0;
    for (int d = 1; d < limit; d++) count += degree % d == 0;
    return count;
}

/* Numbers the shapes: first products of runs, by the runs' lengths, which divide their axes; then
 * pairs, by axis and distance; then longer parts with a distance, by axis, distance and length,
 * which divide the axis. */
int64_t tr_mesh_part_id(const tr_mesh *mesh, const tr_mesh_part *part) {
    int64_t runs = 1, shape = 0, pairs = 0, pair = -1, size = 1, lines = 0, line = -1;
    for (int axis = 0; axis < TR_AXIS_COUNT; axis++) {
        const int degree = mesh->degree[axis], count = part->count[axis];
        const int lengths = divisors_below(degree, degree + 1);
        size *= degree;
        runs *= lengths;
        shape = shape * lengths + divisors_below(degree, count);
        if (part->stride[axis] > 1 && count > 2)
            line = lines + (int64_t)divisors_below(degree, part->stride[axis]) * lengths +
                   divisors_below(degree, count);
        else if (part->stride[axis] > 1 || degree % count) pair = pairs + part->stride[axis];
        pairs += degree;
        lines += (int64_t)lengths * lengths;
    }
    if (line >= 0) shape = runs + pairs + line;
    else if (pair >= 0) shape = runs + pair;
    return shape * size + rank_in_part(mesh, part, 0);
}
