#include "train/noise.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Of a slot; without an operator where another rank measures, or nothing is measured. */
typedef struct slot_noise {
    tr_op *sumsq;
    tr_step_end_noise at;
    bool in_forward; /* F writes its gradient */
    bool taken;      /* in this step */
} slot_noise;

struct tr_noise {
    const tr_store *store;
    slot_noise *slot; /* [store->slots] */
    tr_norms *tied;   /* of the whole batch's gradients of tied uses */
};

/* Prepares the norms of tied uses' gradients. */
static tr_status make_tied(tr_noise *n, const tr_mesh *mesh, const tr_step_end_vector *map,
                           size_t *scratch) {
    const tr_store *store = n->store;
    int64_t *entry;
    TR_TRY(tr_calloc((size_t)store->slots, sizeof *entry, &entry));
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        const tr_step_end_noise *at = &map->noise_entry[slot->param->index];
        entry[i] = !at->tied ? TR_NORM_NONE
                   : tr_step_end_measures_noise(mesh, slot->param, &slot->layout)
                       ? at->whole + slot->layout.part
                       : TR_NORM_ELSEWHERE;
    }
    tr_status status =
        tr_norms_create(&(tr_norms_desc){.store = store, .entry = entry}, scratch, &n->tied);
    free(entry);
    return status;
}

tr_status tr_noise_create(const tr_store *store, const tr_model *model, const tr_mesh *mesh,
                          const tr_step_end_vector *map, size_t *scratch, tr_noise **out) {
    tr_status status = TR_OK;
    tr_noise *n = NULL;
    *out = NULL;
    if (!map->noise_entry) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *n, &n));
    n->store = store;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *n->slot, &n->slot));
    for (int i = 0; i < store->slots; i++) {
        const tr_param *param = store->slot[i].param;
        slot_noise *slot = &n->slot[i];
        if (!tr_step_end_measures_noise(mesh, param, &store->slot[i].layout)) continue;
        slot->at = map->noise_entry[param->index];
        slot->in_forward =
            tr_layer_writes_in_forward(model->layers[tr_model_layer_of(model, param)]);
        const tr_op_desc desc = tr_step_end_sumsq_op(param, store->grad_dtype);
        TR_TRY_OUT(tr_op_prepare_fixed(store->device, desc, scratch, &slot->sumsq));
    }
    TR_TRY_OUT(make_tied(n, mesh, map, scratch));
out:
    if (status != TR_OK) tr_noise_destroy(n);
    else *out = n;
    return status;
}

void tr_noise_destroy(tr_noise *n) {
    if (!n) return;
    for (int i = 0; n->slot && i < n->store->slots; i++) tr_op_release(n->slot[i].sumsq);
    tr_norms_destroy(n->tied);
    free(n->slot);
    free(n);
}

void tr_noise_begin(tr_noise *n) {
    for (int i = 0; n && i < n->store->slots; i++) n->slot[i].taken = false;
}

/* Writes the squared norm of slot i's gradient to the entry of this rank's part. */
static tr_status take(const tr_noise *n, int i, tr_stream *stream, double *first, void *scratch) {
    const tr_store_slot *slot = &n->store->slot[i];
    const tr_op_args args = {
        .t = {[TR_SUMSQ_X] = tr_store_gradient(n->store, slot),
              [TR_SUMSQ_OUT] = tr_tensor_vector(first + slot->layout.part, TR_F64, 1)},
        .scratch = scratch};
    return tr_op_run(n->slot[i].sumsq, stream, &args);
}

tr_status tr_noise_take_part(tr_noise *n, tr_stream *stream, double *vector, int stage, int bucket,
                             bool in_forward, void *scratch) {
    for (int i = 0; n && i < n->store->slots; i++) {
        const tr_store_slot *slot = &n->store->slot[i];
        slot_noise *noise = &n->slot[i];
        if (!noise->sumsq || noise->taken || noise->in_forward != in_forward ||
            slot->stage != stage || (bucket >= 0 && slot->bucket != bucket))
            continue;
        noise->taken = true;
        TR_TRY(take(n, i, stream, vector + noise->at.part, scratch));
    }
    return TR_OK;
}

tr_status tr_noise_take_whole(tr_noise *n, tr_stream *stream, double *vector, void *scratch) {
    return n ? tr_norms_take(n->tied, 0, stream, vector, scratch) : TR_OK;
}

tr_noise_estimate tr_noise_of(const tr_step_end_vector *map, int64_t losses, const double *vector,
                              double loss_scale) {
    const int64_t first = map->losses - losses;
    const double b = vector[2 * first + 1]; /* the first loss is the first micro-batch's */
    double B = 0, part = 0, whole = 0;
    for (int64_t i = first; i < map->losses; i++) B += vector[2 * i + 1];
    for (int p = 0; p < map->params; p++) {
        const tr_step_end_noise *entry = &map->noise_entry[p];
        for (int k = 0; k < entry->parts; k++) {
            part += vector[entry->part + k];
            whole += vector[entry->whole + k];
        }
    }
    if (!(b > 0 && b < B)) return (tr_noise_estimate){NAN, NAN};
    part /= b * loss_scale * b * loss_scale;
    whole /= B * loss_scale * B * loss_scale;
    const double variance = (part - whole) / (1 / b - 1 / B);
    return (tr_noise_estimate){.square = whole - variance / B, .variance = variance};
}

void tr_noise_add(tr_ckpt_noise *noise, const tr_noise_estimate *step) {
    if (!isfinite(step->square) || !isfinite(step->variance)) return;
    noise->steps++;
    const double n = noise->steps < TR_NOISE_WINDOW ? (double)noise->steps : TR_NOISE_WINDOW;
    noise->square += (step->square - noise->square) / n;
    noise->variance += (step->variance - noise->variance) / n;
}

double tr_noise_scale(const tr_ckpt_noise *noise) {
    const bool known = noise->square > 0 && noise->variance > 0;
    return known ? noise->variance / noise->square : NAN;
}
