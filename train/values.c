#include "train/values.h"

#include "base/memory.h"
#include "train/gathers.h"
#include "train/store.h"

#include <stdlib.h>

/* A place to which a bucket is gathered; memory NULL: that of the parameters. The ranges of a
 * gather that is in flight must not change, and a bucket may be gathered to several places in one
 * step, so each place has its own. */
typedef struct value_place {
    int stage, bucket;
    char *memory;
    tr_gathers *gathers;
} value_place;

struct tr_values {
    tr_store *store;
    value_place *place; /* [count] */
    size_t count, capacity;
};

tr_status tr_values_create(tr_store *store, tr_values **out) {
    TR_TRY(tr_calloc(1, sizeof **out, out));
    (*out)->store = store;
    return TR_OK;
}

void tr_values_destroy(tr_values *v) {
    if (!v) return;
    for (size_t i = 0; i < v->count; i++) tr_gathers_destroy(v->place[i].gathers);
    free(v->place);
    free(v);
}

static value_place *find(const tr_values *v, int stage, int bucket, const void *memory) {
    for (size_t i = 0; i < v->count; i++) {
        value_place *p = &v->place[i];
        if (p->memory == memory && p->stage == stage && p->bucket == bucket) return p;
    }
    return NULL;
}

static bool is_in(const tr_store_slot *slot, int stage, int bucket) {
    return slot->stage == stage && slot->bucket == bucket;
}

tr_status tr_values_add(tr_values *v, int stage, int bucket, void *memory) {
    const tr_store *store = v->store;
    const size_t size = tr_dtype_size(store->dtype);
    if (find(v, stage, bucket, memory)) return TR_OK;
    TR_TRY(tr_grow(&v->place, &v->capacity, v->count + 1, sizeof *v->place));
    value_place *p = &v->place[v->count];
    *p = (value_place){.stage = stage, .bucket = bucket, .memory = memory};
    TR_TRY(tr_gathers_create(&p->gathers));
    v->count++;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (!is_in(slot, stage, bucket) || (!memory && !tr_store_gathers(slot))) continue;
        void *first = memory ? p->memory + slot->value_place * size : slot->param->value;
        TR_TRY(tr_gathers_add(p->gathers, store, slot, first, 1, size));
    }
    return TR_OK;
}

/* Copies this rank's portions to their places among the others. */
static tr_status copy_portions(const tr_store *store, tr_stream *stream, const value_place *p) {
    const size_t size = tr_dtype_size(store->dtype);
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (!is_in(slot, p->stage, p->bucket) || !slot->value) continue;
        char *to = p->memory + (slot->value_place + (size_t)slot->portion.begin) * size;
        TR_TRY(tr_stream_copy(stream, to, slot->value, (size_t)slot->portion.extent * size));
    }
    return TR_OK;
}

tr_status tr_values_start(tr_values *v, tr_stream *stream, int stage, int bucket, void *memory) {
    const value_place *p = find(v, stage, bucket, memory);
    if (!memory && !v->store->outdated) return TR_OK;
    if (memory) TR_TRY(copy_portions(v->store, stream, p));
    return tr_gathers_start(p->gathers, stream);
}

tr_status tr_values_wait(tr_values *v, tr_stream *stream, int stage, int bucket, void *memory) {
    const value_place *p = find(v, stage, bucket, memory);
    if (!memory && !v->store->outdated) return TR_OK;
    TR_TRY(tr_gathers_wait(p->gathers, stream));
    for (int i = 0; i < v->store->slots && memory; i++)
        if (is_in(&v->store->slot[i], stage, bucket))
            tr_store_place_value(v->store, &v->store->slot[i], memory);
    return TR_OK;
}
