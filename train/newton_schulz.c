#include "train/newton_schulz.h"

#include "base/memory.h"
#include "partition/muon.h"

#include <stdlib.h>

typedef struct matrix {
    int slot;
    const double *norms; /* device: [parts][2], of the parameter and of its direction */
    tr_muon muon;
    tr_op *rescale, *load, *product[TR_MUON_STEPS], *square, *sum, *apply, *store_back;
} matrix;

/* A matrix on its way, of which step `step` has begun: its product with itself is in `square`, and
 * is complete when `ticket` is. */
typedef struct turn {
    const matrix *m; /* NULL: none */
    int step;
    void *part, *square; /* device */
    int64_t ticket;
} turn;

struct tr_newton_schulz {
    const tr_store *store;
    tr_group *tensor; /* NULL: a single tensor rank */
    matrix *matrix;   /* [count] */
    size_t count, room;
    tr_muon_room needs;
    char *memory;
    turn turn[TR_MUON_TURNS];
    void *part, *square; /* device: where a step ends */
};

tr_status tr_newton_schulz_create(const tr_store *store, tr_group *tensor, tr_newton_schulz **out) {
    TR_TRY(tr_calloc(1, sizeof **out, out));
    (*out)->store = store;
    (*out)->tensor = tensor;
    return TR_OK;
}

void tr_newton_schulz_destroy(tr_newton_schulz *o) {
    if (!o) return;
    for (size_t i = 0; i < o->count; i++) {
        const matrix *m = &o->matrix[i];
        tr_op *const once[] = {m->rescale, m->load, m->square, m->sum, m->apply, m->store_back};
        for (size_t k = 0; k < sizeof once / sizeof *once; k++) tr_op_release(once[k]);
        for (int k = 0; k < TR_MUON_STEPS; k++) tr_op_release(m->product[k]);
    }
    tr_device_free(o->store->device, o->memory);
    free(o->matrix);
    free(o);
}

tr_status tr_newton_schulz_add(tr_newton_schulz *o, int i, const double *norms, size_t *scratch) {
    const tr_store_slot *slot = &o->store->slot[i];
    tr_device *device = o->store->device;
    TR_TRY(tr_grow(&o->matrix, &o->room, o->count + 1, sizeof *o->matrix));
    matrix *m = &o->matrix[o->count++];
    *m = (matrix){.slot = i, .norms = norms};
    TR_TRY(tr_muon_make(slot->param, &slot->layout, &m->muon));
    tr_muon_room_add(&o->needs, &m->muon);
    const tr_muon *u = &m->muon;
    TR_TRY(
        tr_op_prepare_fixed(device, tr_muon_rescale(u, slot->layout.parts), scratch, &m->rescale));
    TR_TRY(tr_op_prepare_fixed(device, tr_muon_load(u), scratch, &m->load));
    for (int k = 0; k < TR_MUON_STEPS; k++)
        TR_TRY(tr_op_prepare_fixed(device, tr_muon_product(u, k), scratch, &m->product[k]));
    TR_TRY(tr_op_prepare_fixed(device, tr_muon_square(u), scratch, &m->square));
    TR_TRY(tr_op_prepare_fixed(device, tr_muon_sum(u), scratch, &m->sum));
    TR_TRY(tr_op_prepare_fixed(device, tr_muon_apply(u), scratch, &m->apply));
    return tr_op_prepare_fixed(device, tr_muon_store(u), scratch, &m->store_back);
}

tr_status tr_newton_schulz_alloc(tr_newton_schulz *o) {
    const size_t bytes = tr_muon_room_bytes(&o->needs);
    if (bytes == 0) return TR_OK;
    TR_TRY(tr_device_alloc(o->store->device, TR_MEMORY_DATA, bytes, (void **)&o->memory));
    char *next = o->memory;
    for (int k = 0; k < tr_muon_room_turns(&o->needs); k++) {
        o->turn[k].part = next;
        o->turn[k].square = next + o->needs.part;
        next += o->needs.part + o->needs.square;
    }
    o->part = next;
    o->square = next + o->needs.part;
    return TR_OK;
}

static tr_tensor part_of(const matrix *m, void *data) {
    return tr_tensor_matrix(data, m->muon.dtype, m->muon.rows, m->muon.cols);
}

static tr_tensor square_of(const matrix *m, void *data) {
    return tr_tensor_matrix(data, m->muon.dtype, m->muon.side, m->muon.side);
}

static tr_tensor direction_of(const tr_newton_schulz *o, const matrix *m) {
    return tr_tensor_matrix(o->store->slot[m->slot].direction, m->muon.direction, m->muon.rows,
                            m->muon.cols);
}

/* Begins a step of Newton and Schulz. Of ranks with the same part one adds its product to those of
 * the others. */
static tr_status begin_step(const tr_newton_schulz *o, turn *t, tr_stream *stream, void *scratch) {
    const matrix *m = t->m;
    const tr_tensor x = part_of(m, t->part), p = square_of(m, t->square);
    const tr_op_args args = {.t = {[TR_MATMUL_A] = x, [TR_MATMUL_B] = x, [TR_MATMUL_C] = p},
                             .scratch = scratch};
    const bool sums = o->tensor && m->muon.sums;
    if (!m->muon.sums || o->store->slot[m->slot].layout.counted_in_tp)
        TR_TRY(tr_op_run(m->product[t->step], stream, &args));
    else TR_TRY(tr_stream_zero(stream, t->square, tr_tensor_bytes(&p)));
    t->ticket = TR_GROUP_NO_TICKET;
    return sums ? tr_group_start(o->tensor, stream, t->square, m->muon.side * m->muon.side,
                                 m->muon.dtype, TR_REDUCE_SUM, &t->ticket)
                : TR_OK;
}

/* Ends it: the part's memory and that of the new one change places. */
static tr_status end_step(tr_newton_schulz *o, turn *t, tr_stream *stream, void *scratch) {
    const matrix *m = t->m;
    const tr_tensor from = part_of(m, t->part), to = part_of(m, o->part);
    const tr_tensor p = square_of(m, t->square), q = square_of(m, o->square);
    const tr_op_args square = {.t = {[TR_MATMUL_A] = p, [TR_MATMUL_B] = p, [TR_MATMUL_C] = q},
                               .scratch = scratch};
    const tr_op_args sum = {.t = {[TR_ADD_A] = q, [TR_ADD_B] = p, [TR_ADD_Y] = q},
                            .scratch = scratch};
    const tr_op_args apply = {.t = {[TR_MATMUL_A] = m->muon.left ? q : from,
                                    [TR_MATMUL_B] = m->muon.left ? from : q,
                                    [TR_MATMUL_C] = to,
                                    [TR_MATMUL_RESIDUAL] = from},
                              .scratch = scratch};
    if (o->tensor) TR_TRY(tr_group_wait(o->tensor, stream, t->ticket));
    TR_TRY(tr_op_run(m->square, stream, &square));
    TR_TRY(tr_op_run(m->sum, stream, &sum));
    TR_TRY(tr_op_run(m->apply, stream, &apply));
    o->part = from.data;
    t->part = to.data;
    t->step++;
    return TR_OK;
}

/* Begins the next of the lap's matrices from *next on, if there is one. Products need aligned
 * memory; a direction that is joined to another one may be unaligned. */
static tr_status begin(const tr_newton_schulz *o, int lap, size_t *next, turn *t, tr_stream *stream,
                       void *scratch) {
    t->m = NULL;
    while (*next < o->count && o->store->slot[o->matrix[*next].slot].lap != lap) (*next)++;
    if (*next == o->count) return TR_OK;
    const matrix *m = &o->matrix[(*next)++];
    const tr_store_slot *slot = &o->store->slot[m->slot];
    const tr_op_args rescale = {.t = {[TR_RESCALE_X] = tr_tensor_vector(
                                          slot->direction, m->muon.direction, slot->param->count),
                                      [TR_RESCALE_NORMS] = tr_tensor_matrix(
                                          (void *)m->norms, TR_F64, slot->layout.parts, 2)},
                                .scratch = scratch};
    const tr_op_args load = {
        .t = {[TR_CAST_X] = direction_of(o, m), [TR_CAST_Y] = part_of(m, t->part)},
        .scratch = scratch};
    TR_TRY(tr_op_run(m->rescale, stream, &rescale));
    TR_TRY(tr_op_run(m->load, stream, &load));
    t->m = m;
    t->step = 0;
    return begin_step(o, t, stream, scratch);
}

/* Ends the step of a turn, and begins its matrix's next one, or the next matrix. */
static tr_status advance(tr_newton_schulz *o, int lap, size_t *next, turn *t, tr_stream *stream,
                         void *scratch) {
    TR_TRY(end_step(o, t, stream, scratch));
    if (t->step < TR_MUON_STEPS) return begin_step(o, t, stream, scratch);
    const tr_op_args store_back = {
        .t = {[TR_CAST_X] = part_of(t->m, t->part), [TR_CAST_Y] = direction_of(o, t->m)},
        .scratch = scratch};
    TR_TRY(tr_op_run(t->m->store_back, stream, &store_back));
    return begin(o, lap, next, t, stream, scratch);
}

/* All matrices take as many steps, so that no turn outlasts the first. */
tr_status tr_newton_schulz_run(tr_newton_schulz *o, int lap, tr_stream *stream, void *scratch) {
    const int turns = tr_muon_room_turns(&o->needs);
    size_t next = 0;
    for (int k = 0; k < turns; k++) TR_TRY(begin(o, lap, &next, &o->turn[k], stream, scratch));
    while (o->turn[0].m)
        for (int k = 0; k < turns; k++)
            if (o->turn[k].m) TR_TRY(advance(o, lap, &next, &o->turn[k], stream, scratch));
    return TR_OK;
}
