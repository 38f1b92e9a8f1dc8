#include "partition/buckets.h"

#include "base/memory.h"
#include "layers/param_layout.h"
#include "partition/param_memory.h"

#include <stdlib.h>

/* Adds the bytes of messages for the layer's gradients that this rank sums with other ranks. */
static tr_status add_bytes(const tr_layer *layer, const tr_mesh *mesh, tr_dtype wire,
                           size_t *bytes) {
    for (int k = 0; k < layer->params_count; k++) {
        const tr_param *param = &layer->params[k];
        tr_param_layout layout;
        if (param->frozen) continue;
        TR_TRY(tr_param_layout_make(param, mesh, &layout));
        if (tr_mesh_part_size(&layout.sum) > 1 || tr_mesh_part_size(&layout.across) > 1)
            *bytes += (size_t)param->count * tr_dtype_size(wire);
    }
    return TR_OK;
}

/* What data ranks gather of a stage's layers. */
typedef struct gathering {
    const tr_model *model;
    const tr_placement *placement;
    const tr_mesh *mesh; /* of a rank that has the stage */
    size_t size;         /* bytes of an element; 0: nothing is gathered */
    bool divided;        /* values are divided; else they are updated in portions */
    int64_t *own;        /* [near data ranks]: elements that each sends */
} gathering;

/* Measures the gather of a layer. */
static void fill_gather(const gathering *g, const tr_layer *layer, tr_bucket *bucket) {
    const int ranks = tr_mesh_near(g->mesh);
    int64_t most = 0;
    if (!g->size) return;
    for (int r = 0; r < ranks; r++) g->own[r] = 0;
    for (int k = 0; k < layer->params_count; k++) {
        const tr_param *param = &layer->params[k];
        const bool shares =
            tr_placement_shares(g->placement, g->model, g->mesh->index[TR_AXIS_PP], param);
        if (!g->divided && (param->frozen || shares)) continue;
        for (int r = 0; r < ranks; r++) {
            const int64_t own = tr_param_portion_of(param, g->mesh, r).extent;
            g->own[r] += own;
            if (!g->divided) bucket->updated += (size_t)own * g->size;
        }
    }
    if (g->divided) bucket->values = tr_memory_layer_values(layer) * g->size;
    for (int r = 0; r < ranks; r++)
        if (g->own[r] > most) most = g->own[r];
    bucket->gathered = (size_t)ranks * (size_t)most * g->size;
}

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 1;
}

static tr_status fill_stage(const tr_model *model, const tr_placement *placement, int stage,
                            const tr_mesh *mesh, tr_dtype dtype, tr_reduce reduce, int zero,
                            int64_t *own, tr_stage_cost *cost) {
    const int end = placement->first[stage + 1];
    const size_t grad = tr_memory_in_arena(mesh, zero) ? tr_dtype_size(dtype) : 0;
    const gathering gather = {
        .model = model,
        .placement = placement,
        .mesh = mesh,
        .size = tr_memory_divided(mesh, zero) ? tr_dtype_size(model->shape.dtype) : 0,
        .divided = tr_memory_gathers(mesh, zero),
        .own = own};
    double f = 0, i = 0, w = 0;
    for (int k = 0; k < cost->buckets; k++) {
        const tr_layer *layer = model->layers[end - 1 - k];
        i += layer->flops_i;
        w += layer->flops_w;
        f += layer->flops_f;
        cost->bucket[k] = (tr_bucket){.w = share(w, cost->w),
                                      .b = share(i + w, cost->i + cost->w),
                                      .f = 1 - share(f, cost->f),
                                      .arena = tr_memory_layer_grads(layer) * grad,
                                      .in_forward = tr_layer_writes_in_forward(layer)};
        fill_gather(&gather, layer, &cost->bucket[k]);
        TR_TRY(add_bytes(layer, mesh, tr_reduce_wire(reduce, dtype), &cost->bucket[k].bytes));
    }
    return TR_OK;
}

tr_status tr_buckets_make(const tr_model *model, const tr_placement *placement, const tr_mesh *mesh,
                          tr_dtype dtype, tr_reduce reduce, int zero, tr_stage_table *table) {
    tr_status status = TR_OK;
    int64_t *own;
    TR_TRY(tr_calloc((size_t)model->count, sizeof *table->bucket, &table->bucket));
    TR_TRY(tr_calloc((size_t)tr_mesh_near(mesh), sizeof *own, &own));
    for (int s = 0; s < table->stages && status == TR_OK; s++) {
        tr_mesh of = *mesh; /* of a rank that has the stage */
        tr_stage_cost *cost = &table->cost[s];
        of.index[TR_AXIS_PP] = placement->owner[s];
        cost->buckets = placement->first[s + 1] - placement->first[s];
        cost->bucket = table->bucket + placement->first[s];
        status = fill_stage(model, placement, s, &of, dtype, reduce, zero, own, cost);
    }
    free(own);
    return status;
}
