#include "partition/buckets.h"

#include "base/memory.h"
#include "layers/param_layout.h"
#include "partition/param_memory.h"

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

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 1;
}

static tr_status fill_stage(const tr_model *model, const tr_placement *placement, int stage,
                            const tr_mesh *mesh, tr_dtype dtype, tr_reduce reduce, int zero,
                            tr_stage_cost *cost) {
    const int end = placement->first[stage + 1];
    const size_t value = tr_memory_gathers(mesh, zero) ? tr_dtype_size(model->shape.dtype) : 0,
                 grad = tr_memory_in_arena(mesh, zero) ? tr_dtype_size(dtype) : 0;
    double i = 0, w = 0;
    for (int k = 0; k < cost->buckets; k++) {
        const tr_layer *layer = model->layers[end - 1 - k];
        i += layer->flops_i;
        w += layer->flops_w;
        cost->bucket[k] = (tr_bucket){.w = share(w, cost->w),
                                      .b = share(i + w, cost->i + cost->w),
                                      .arena = tr_memory_layer_grads(layer) * grad,
                                      .in_forward = tr_layer_writes_in_forward(layer),
                                      .values = tr_memory_layer_values(layer) * value};
        TR_TRY(add_bytes(layer, mesh, tr_reduce_wire(reduce, dtype), &cost->bucket[k].bytes));
    }
    return TR_OK;
}

tr_status tr_buckets_make(const tr_model *model, const tr_placement *placement, const tr_mesh *mesh,
                          tr_dtype dtype, tr_reduce reduce, int zero, tr_stage_table *table) {
    TR_TRY(tr_calloc((size_t)model->count, sizeof *table->bucket, &table->bucket));
    for (int s = 0; s < table->stages; s++) {
        tr_mesh of = *mesh; /* of a rank that has the stage */
        tr_stage_cost *cost = &table->cost[s];
        of.index[TR_AXIS_PP] = placement->owner[s];
        cost->buckets = placement->first[s + 1] - placement->first[s];
        cost->bucket = table->bucket + placement->first[s];
        TR_TRY(fill_stage(model, placement, s, &of, dtype, reduce, zero, cost));
    }
    return TR_OK;
}
