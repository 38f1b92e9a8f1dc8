/* The decoder of an engine, which works between steps (train/decoder.h). */
#include "base/memory.h"
#include "train/engine_impl.h"

/* Calls visit for every bucket of whole values between steps: the decoder reads them behind its own
 * memory. */
static tr_status visit_decoding(tr_engine *e, tr_status (*visit)(tr_engine *e, int stage,
                                                                 int bucket, void *memory)) {
    const tr_layout *l = e->layout;
    const int pp_rank = e->desc.mesh.index[TR_AXIS_PP];
    char *memory = e->arena + l->decoding[pp_rank];
    for (int s = 0; s < l->placement.stages; s++)
        for (int k = 0; k < l->table.cost[s].buckets && l->owner[s] == pp_rank; k++) {
            const size_t bytes = l->table.cost[s].bucket[k].values;
            if (bytes > 0) TR_TRY(visit(e, s, k, memory));
            memory += tr_align_up(bytes);
        }
    return TR_OK;
}

/* The decoder takes the addresses of values when it is made. */
static tr_status place_decoding(tr_engine *e, int stage, int bucket, void *memory) {
    for (int i = 0; i < e->store->slots; i++)
        if (e->store->slot[i].stage == stage && e->store->slot[i].bucket == bucket)
            tr_store_place_value(e->store, &e->store->slot[i], memory);
    return tr_values_add(e->values, stage, bucket, memory);
}

tr_status tr_engine_make_decoder(tr_engine *e) {
    TR_TRY(visit_decoding(e, place_decoding));
    const tr_decoder_desc desc = {.world = e->desc.world,
                                  .device = e->desc.device,
                                  .mesh = e->desc.mesh,
                                  .groups = e->groups,
                                  .model = e->layout->model,
                                  .rows = 1,
                                  .placement = &e->layout->placement,
                                  .links = e->links,
                                  .memory = e->arena,
                                  .bytes = e->layout->decoding[e->desc.mesh.index[TR_AXIS_PP]]};
    return tr_decoder_create(&desc, &e->decoder);
}

static tr_status gather_decoding(tr_engine *e, int stage, int bucket, void *memory) {
    tr_stream *compute = tr_device_compute(e->desc.device);
    TR_TRY(tr_values_start(e->values, compute, stage, bucket, memory));
    return tr_values_wait(e->values, compute, stage, bucket, memory);
}

tr_status tr_engine_decode(tr_engine *e, tr_decoder **out) {
    *out = e->decoder;
    TR_TRY(tr_store_complete(e->store));
    TR_TRY(visit_decoding(e, gather_decoding));
    return tr_world_sync(e->desc.world, tr_device_compute(e->desc.device));
}
