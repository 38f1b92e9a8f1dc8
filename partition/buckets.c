#include "partition/buckets.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "layers/param_layout.h"
#include "partition/param_memory.h"

/* What all buckets of a stage have in common. */
typedef struct bucketing {
    const tr_model *model;
    const tr_placement *placement;
    tr_mesh mesh;  /* of a rank that has the stage */
    tr_dtype wire; /* of gradients in messages */
    size_t grad;   /* bytes of an element of a gradient in the arena; 0: none is there */
    size_t value;  /* bytes of an element of a value that is gathered; 0: none is */
    bool divided;  /* values are divided; else they are updated in portions */
} bucketing;

/* Adds the bytes of messages for the layer's gradients that this rank sums with other ranks. */
static tr_status add_bytes(const bucketing *b, const tr_layer *layer, tr_bucket *bucket) {
    for (int k = 0; k < layer->params_count; k++) {
        const tr_param *param = &layer->params[k];
        tr_param_layout layout;
        if (param->frozen) continue;
        TR_TRY(tr_param_layout_make(param, &b->mesh, &layout));
        if (tr_mesh_part_size(&layout.sum) > 1 || tr_mesh_part_size(&layout.across) > 1)
            bucket->bytes += (size_t)param->count * tr_dtype_size(b->wire);
    }
    return TR_OK;
}

/* Returns true when data ranks gather the parameter. */
static bool is_gathered(const bucketing *b, const tr_param *param) {
    return b->divided || !(param->frozen || tr_placement_shares(b->placement, b->model,
                                                                b->mesh.index[TR_AXIS_PP], param));
}

/* Returns the elements of a layer that the data rank at a place sends in a gather. */
static int64_t sent_by(const bucketing *b, const tr_layer *layer, int place) {
    int64_t sent = 0;
    for (int k = 0; k < layer->params_count; k++)
        if (is_gathered(b, &layer->params[k]))
            sent += tr_param_portion_of(&layer->params[k], &b->mesh, place).extent;
    return sent;
}

/* Measures the gather of a layer. The data rank that sends most is the first one, or one with
 * a larger portion than the rank before it. */
static void fill_gather(const bucketing *b, const tr_layer *layer, tr_bucket *bucket) {
    int64_t most;
    if (!b->value) return;
    most = sent_by(b, layer, 0);
    for (int k = 0; k < layer->params_count; k++) {
        const tr_param *param = &layer->params[k];
        int place[TR_PORTION_STEPS];
        if (!is_gathered(b, param)) continue;
        if (!b->divided) bucket->updated += (size_t)param->count * b->value;
        for (int n = tr_param_portion_steps(param, &b->mesh, place); n > 0; n--)
            most = tr_max_i64(most, sent_by(b, layer, place[n - 1]));
    }
    if (b->divided) bucket->values = tr_memory_layer_values(layer) * b->value;
    bucket->gathered = (size_t)tr_mesh_near(&b->mesh) * (size_t)most * b->value;
}

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 1;
}

static tr_status fill_stage(const bucketing *b, int stage, tr_stage_cost *cost) {
    const int end = b->placement->first[stage + 1];
    double f = 0, i = 0, w = 0;
    for (int k = 0; k < cost->buckets; k++) {
        const tr_layer *layer = b->model->layers[end - 1 - k];
        i += layer->flops_i;
        w += layer->flops_w;
        f += layer->flops_f;
        cost->bucket[k] = (tr_bucket){.w = share(w, cost->w),
                                      .b = share(i + w, cost->i + cost->w),
                                      .f = 1 - share(f, cost->f),
                                      .arena = tr_memory_layer_grads(layer) * b->grad,
                                      .in_forward = tr_layer_writes_in_forward(layer)};
        fill_gather(b, layer, &cost->bucket[k]);
        TR_TRY(add_bytes(b, layer, &cost->bucket[k]));
    }
    return TR_OK;
}

tr_status tr_buckets_make(const tr_model *model, const tr_placement *placement, const tr_mesh *mesh,
                          tr_dtype dtype, tr_reduce reduce, int zero, tr_stage_table *table) {
    const bool gathers = tr_memory_divided(mesh, zero) != NULL;
    bucketing b = {.model = model,
                   .placement = placement,
                   .mesh = *mesh,
                   .wire = tr_reduce_wire(reduce, dtype),
                   .grad = tr_memory_in_arena(mesh, zero) ? tr_dtype_size(dtype) : 0,
                   .value = gathers ? tr_dtype_size(model->shape.dtype) : 0,
                   .divided = tr_memory_gathers(mesh, zero)};
    TR_TRY(tr_calloc((size_t)model->count, sizeof *table->bucket, &table->bucket));
    for (int s = 0; s < table->stages; s++) {
        tr_stage_cost *cost = &table->cost[s];
        b.mesh.index[TR_AXIS_PP] = placement->owner[s];
        cost->buckets = placement->first[s + 1] - placement->first[s];
        cost->bucket = table->bucket + placement->first[s];
        TR_TRY(fill_stage(&b, s, cost));
    }
    return TR_OK;
}
