#include "train/pace.h"

#include "base/memory.h"
#include "partition/adafactor.h"
#include "partition/muon.h"
#include "train/norms.h"

#include <stdlib.h>

/* Of a slot; without operators where another one has the parameter, or nothing is trained. */
typedef struct slot_step {
    tr_op *descend;
    tr_muon muon;
    tr_op *rescale, *product[TR_MUON_STEPS], *square, *sum, *apply; /* NULL: not muon's */
    tr_adafactor factor;
    tr_op *sums, *scale;         /* NULL: not adafactor's, or no matrix */
    double *row_sums, *col_sums; /* device: of the factor's rows and columns */
    double *norms;               /* device: [parts][2], of the parameter and of its direction */
    bool counted;                /* this rank computes the norms of its part */
} slot_step;

struct tr_pace {
    const tr_store *store;
    tr_group *tensor;   /* NULL: a single tensor rank */
    slot_step *slot;    /* [store->slots] */
    double *norms;      /* device: of all slots */
    tr_norms *taken[2]; /* of parameters and of directions */
    /* Muon's, device: two parts of a matrix and two products of it with itself, one after the other
     */
    char *part[2], *square[2];
    /* Adafactor's, device: sums of rows or columns, first those that the tensor ranks add */
    double *sums;
    int64_t shared;
    int64_t count;
};

static tr_status prepare(const tr_store *store, tr_op_desc desc, size_t *scratch, tr_op **out) {
    TR_TRY(tr_op_prepare(&(tr_op_context){.device = store->device, .deterministic = true}, &desc,
                         out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

static bool steps_slot(const tr_store_slot *slot) {
    return slot->shares < 0 && !slot->param->frozen && tr_optim_row_of(slot->optimizer)->by_tensor;
}

static tr_status prepare_muon(const tr_store *store, const tr_store_slot *slot, size_t *scratch,
                              slot_step *out) {
    const tr_muon *m = &out->muon;
    TR_TRY(tr_muon_make(slot->param, &slot->layout, &out->muon));
    TR_TRY(prepare(store, tr_muon_rescale(m, slot->layout.parts), scratch, &out->rescale));
    for (int k = 0; k < TR_MUON_STEPS; k++)
        TR_TRY(prepare(store, tr_muon_product(m, k), scratch, &out->product[k]));
    TR_TRY(prepare(store, tr_muon_square(m), scratch, &out->square));
    TR_TRY(prepare(store, tr_muon_sum(m), scratch, &out->sum));
    return prepare(store, tr_muon_apply(m), scratch, &out->apply);
}

static tr_status prepare_factor(const tr_store *store, const tr_store_slot *slot, size_t *scratch,
                                slot_step *out) {
    TR_TRY(tr_adafactor_make(slot->param, &slot->layout, &out->factor));
    TR_TRY(prepare(store, tr_adafactor_sums(&out->factor), scratch, &out->sums));
    return prepare(store, tr_adafactor_scale(&out->factor), scratch, &out->scale);
}

/* Describes the step along the slot's direction. */
static tr_op_desc descend_of(const tr_store *store, const tr_optim_config *config,
                             const tr_store_slot *slot, const tr_muon *muon) {
    const tr_param *param = slot->param;
    const bool is_muon = slot->optimizer == TR_OPTIM_MUON;
    tr_op_desc desc = tr_optim_descend(slot->portion.extent, is_muon ? 0 : slot->layout.parts,
                                       store->dtype, param->lr_scale);
    if (is_muon) desc.descend.factor = muon->length;
    if (slot->optimizer == TR_OPTIM_ADAFACTOR || slot->optimizer == TR_OPTIM_ADAFACTOR_VECTOR)
        desc.descend.whole = tr_global_count(&param->tensor[0]);
    if (tr_optim_row_of(slot->optimizer)->decays_last)
        desc.descend.weight_decay = param->decay ? config->weight_decay : 0;
    return desc;
}

/* Prepares the step of a slot with the norms at `norms`. Only tensor ranks may hold different
 * parts, since only they sum norms; data ranks may have different portions of a part. */
static tr_status prepare_slot(const tr_store *store, const tr_optim_config *config,
                              const tr_mesh *mesh, int i, double *norms, size_t *scratch,
                              slot_step *out) {
    const tr_store_slot *slot = &store->slot[i];
    const tr_param *param = slot->param;
    const tr_param_layout *layout = &slot->layout;
    const bool cut = tr_optim_row_of(slot->optimizer)->whole && slot->portion.extent > 0 &&
                     slot->portion.extent < param->count;
    if (cut || param->tensors > 1 || layout->replicas.count[TR_AXIS_DP] != mesh->degree[TR_AXIS_DP])
        return TR_FAIL(TR_ERR_INTERNAL, "%s has parts that cannot be stepped as one tensor",
                       tr_param_name(param));
    out->norms = norms;
    out->counted = mesh->index[TR_AXIS_TP] % layout->replicas.count[TR_AXIS_TP] == 0;
    if (slot->portion.extent == 0) return TR_OK;
    if (slot->optimizer == TR_OPTIM_MUON) TR_TRY(prepare_muon(store, slot, scratch, out));
    if (slot->optimizer == TR_OPTIM_ADAFACTOR) TR_TRY(prepare_factor(store, slot, scratch, out));
    return prepare(store, descend_of(store, config, slot, &out->muon), scratch, &out->descend);
}

/* Prepares the norms of the slots' parameters and of their directions. Data ranks that have
 * portions of a tensor all need its norms; of those that own whole tensors only the owner does. */
static tr_status prepare_norms(tr_pace *s, size_t *scratch) {
    const tr_store *store = s->store;
    const bool alone = !store->divided || tr_optim_row_of(store->optimizer)->whole;
    tr_status status = TR_OK;
    int64_t *entry;
    TR_TRY(tr_calloc((size_t)store->slots, sizeof *entry, &entry));
    for (int k = 0; k < 2 && status == TR_OK; k++) {
        for (int i = 0; i < store->slots; i++) {
            const slot_step *x = &s->slot[i];
            const bool takes = x->counted && (!alone || x->descend);
            entry[i] =
                takes ? x->norms - s->norms + 2 * store->slot[i].layout.part + k : TR_NORM_NONE;
        }
        status = tr_norms_create(
            &(tr_norms_desc){.store = store, .entry = entry, .masters = k == 0, .alone = alone},
            scratch, &s->taken[k]);
    }
    free(entry);
    return status;
}

/* Allocates what the largest of muon's matrices needs. */
static tr_status alloc_work(tr_pace *s) {
    size_t part = 0, square = 0;
    for (int i = 0; i < s->store->slots; i++) {
        if (!s->slot[i].apply) continue;
        const size_t p = tr_muon_part_bytes(&s->slot[i].muon);
        const size_t q = tr_muon_square_bytes(&s->slot[i].muon);
        if (p > part) part = p;
        if (q > square) square = q;
    }
    if (part == 0) return TR_OK;
    TR_TRY(tr_device_alloc(s->store->device, TR_MEMORY_DATA, 2 * (part + square),
                           (void **)&s->part[0]));
    s->part[1] = s->part[0] + part;
    s->square[0] = s->part[1] + part;
    s->square[1] = s->square[0] + square;
    return TR_OK;
}

/* Allocates the sums of all matrices' rows and columns: first those that the tensor ranks add. */
static tr_status alloc_sums(tr_pace *s) {
    int64_t own = 0;
    for (int i = 0; i < s->store->slots; i++) {
        if (!s->slot[i].sums) continue;
        const tr_adafactor *m = &s->slot[i].factor;
        s->shared += m->shared;
        own += m->rows + m->cols - m->shared;
    }
    if (own == 0) return TR_OK;
    TR_TRY(tr_device_alloc(s->store->device, TR_MEMORY_DATA,
                           (size_t)(s->shared + own) * sizeof(double), (void **)&s->sums));
    double *shared = s->sums, *rest = s->sums + s->shared;
    for (int i = 0; i < s->store->slots; i++) {
        slot_step *x = &s->slot[i];
        if (!x->sums) continue;
        double **rows = x->factor.shared > 0 && x->factor.shares_rows ? &shared : &rest;
        double **cols = x->factor.shared > 0 && !x->factor.shares_rows ? &shared : &rest;
        x->row_sums = *rows;
        *rows += x->factor.rows;
        x->col_sums = *cols;
        *cols += x->factor.cols;
    }
    return TR_OK;
}

tr_status tr_pace_create(const tr_store *store, const tr_optim_config *config, const tr_mesh *mesh,
                         tr_group *tensor, size_t *scratch, tr_pace **out) {
    tr_status status = TR_OK;
    tr_pace *s = NULL;
    *out = NULL;
    if (!tr_optim_row_of(store->optimizer)->by_tensor) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->store = store;
    s->tensor = mesh->degree[TR_AXIS_TP] > 1 ? tensor : NULL;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *s->slot, &s->slot));
    for (int i = 0; i < store->slots; i++)
        if (steps_slot(&store->slot[i]))
            s->count += tr_step_end_tensor_norms(store->optimizer, store->slot[i].param,
                                                 &store->slot[i].layout);
    if (s->count > 0)
        TR_TRY_OUT(tr_device_alloc(store->device, TR_MEMORY_DATA, (size_t)s->count * sizeof(double),
                                   (void **)&s->norms));
    double *norms = s->norms;
    for (int i = 0; i < store->slots; i++) {
        if (!steps_slot(&store->slot[i])) continue;
        TR_TRY_OUT(prepare_slot(store, config, mesh, i, norms, scratch, &s->slot[i]));
        norms += tr_step_end_tensor_norms(store->optimizer, store->slot[i].param,
                                          &store->slot[i].layout);
    }
    TR_TRY_OUT(prepare_norms(s, scratch));
    TR_TRY_OUT(alloc_work(s));
    TR_TRY_OUT(alloc_sums(s));
out:
    if (status != TR_OK) tr_pace_destroy(s);
    else *out = s;
    return status;
}

void tr_pace_destroy(tr_pace *s) {
    if (!s) return;
    for (int i = 0; s->slot && i < s->store->slots; i++) {
        slot_step *x = &s->slot[i];
        tr_op *const once[] = {x->descend, x->rescale, x->square, x->sum,
                               x->apply,   x->sums,    x->scale};
        for (size_t k = 0; k < sizeof once / sizeof *once; k++) tr_op_release(once[k]);
        for (int k = 0; k < TR_MUON_STEPS; k++) tr_op_release(x->product[k]);
    }
    for (int k = 0; k < 2; k++) tr_norms_destroy(s->taken[k]);
    if (s->norms) tr_device_free(s->store->device, s->norms);
    if (s->sums) tr_device_free(s->store->device, s->sums);
    if (s->part[0]) tr_device_free(s->store->device, s->part[0]);
    free(s->slot);
    free(s);
}

/* Takes step k of Newton and Schulz from `from` to `to`, parts of the matrix. */
static tr_status muon_step(const tr_pace *s, int i, int k, tr_tensor from, tr_tensor to,
                           tr_stream *stream, void *scratch) {
    const slot_step *x = &s->slot[i];
    const tr_muon *m = &x->muon;
    const tr_tensor p = tr_tensor_matrix(s->square[0], m->dtype, m->side, m->side);
    const tr_tensor q = tr_tensor_matrix(s->square[1], m->dtype, m->side, m->side);
    const tr_op_args product = {
        .t = {[TR_MATMUL_A] = from, [TR_MATMUL_B] = from, [TR_MATMUL_C] = p}, .scratch = scratch};
    const tr_op_args square = {.t = {[TR_MATMUL_A] = p, [TR_MATMUL_B] = p, [TR_MATMUL_C] = q},
                               .scratch = scratch};
    const tr_op_args sum = {.t = {[TR_ADD_A] = q, [TR_ADD_B] = p, [TR_ADD_Y] = q},
                            .scratch = scratch};
    const tr_op_args apply = {.t = {[TR_MATMUL_A] = m->left ? q : from,
                                    [TR_MATMUL_B] = m->left ? from : q,
                                    [TR_MATMUL_C] = to,
                                    [TR_MATMUL_RESIDUAL] = from},
                              .scratch = scratch};
    /* Of ranks with the same part one adds its product to those of the others. */
    if (x->counted || !m->sums) TR_TRY(tr_op_run(x->product[k], stream, &product));
    else TR_TRY(tr_stream_zero(stream, s->square[0], tr_tensor_bytes(&p)));
    if (s->tensor && m->sums)
        TR_TRY(tr_group_all_reduce(s->tensor, stream, s->square[0], m->side * m->side, m->dtype,
                                   TR_REDUCE_SUM));
    TR_TRY(tr_op_run(x->square, stream, &square));
    TR_TRY(tr_op_run(x->sum, stream, &sum));
    return tr_op_run(x->apply, stream, &apply);
}

/* Makes the direction of a matrix orthogonal, in its gradient's memory. */
static tr_status make_orthogonal(const tr_pace *s, int i, tr_stream *stream, void *scratch) {
    const tr_store_slot *slot = &s->store->slot[i];
    const tr_muon *m = &s->slot[i].muon;
    const size_t bytes = (size_t)slot->param->count * tr_dtype_size(m->dtype);
    tr_tensor part[2];
    for (int k = 0; k < 2; k++) part[k] = tr_tensor_matrix(s->part[k], m->dtype, m->rows, m->cols);
    const tr_op_args rescale = {
        .t = {[TR_RESCALE_X] = tr_tensor_vector(s->part[0], m->dtype, slot->param->count),
              [TR_RESCALE_NORMS] =
                  tr_tensor_matrix(s->slot[i].norms, TR_F64, slot->layout.parts, 2)},
        .scratch = scratch};
    /* Products need aligned memory, which a gradient has not that is joined to another. */
    TR_TRY(tr_stream_copy(stream, s->part[0], slot->grad, bytes));
    TR_TRY(tr_op_run(s->slot[i].rescale, stream, &rescale));
    for (int k = 0; k < TR_MUON_STEPS; k++)
        TR_TRY(muon_step(s, i, k, part[k % 2], part[(k + 1) % 2], stream, scratch));
    return tr_stream_copy(stream, slot->grad, s->part[TR_MUON_STEPS % 2], bytes);
}

static tr_tensor matrix_of(const tr_pace *s, int i) {
    const tr_adafactor *m = &s->slot[i].factor;
    return tr_tensor_matrix(s->store->slot[i].grad, m->dtype, m->rows, m->cols);
}

/* Sums the squares of this rank's part of a matrix along both axes. */
static tr_status take_sums(const tr_pace *s, int i, tr_stream *stream, void *scratch) {
    const slot_step *x = &s->slot[i];
    const tr_op_args args = {
        .t = {[TR_FACTOR_X] = matrix_of(s, i),
              [TR_FACTOR_ROWS] = tr_tensor_vector(x->row_sums, TR_F64, x->factor.rows),
              [TR_FACTOR_COLS] = tr_tensor_vector(x->col_sums, TR_F64, x->factor.cols)},
        .scratch = scratch};
    TR_TRY(tr_op_run(x->sums, stream, &args));
    /* Of ranks with the same part one adds its sums to those of the others. */
    if (x->counted || x->factor.shared == 0) return TR_OK;
    return tr_stream_zero(stream, x->factor.shares_rows ? x->row_sums : x->col_sums,
                          (size_t)x->factor.shared * sizeof(double));
}

/* Divides the gradient of a matrix by the root of its second moments. */
static tr_status scale(const tr_pace *s, int i, tr_stream *stream, tr_step_state *state,
                       void *scratch) {
    const slot_step *x = &s->slot[i];
    const tr_store_slot *slot = &s->store->slot[i];
    const tr_op_args args = {
        .t = {[TR_FACTOR_X] = matrix_of(s, i),
              [TR_FACTOR_ROWS] = tr_tensor_vector(x->row_sums, TR_F64, x->factor.rows),
              [TR_FACTOR_COLS] = tr_tensor_vector(x->col_sums, TR_F64, x->factor.cols),
              [TR_FACTOR_R] = tr_tensor_vector(slot->state[0], s->store->acc, x->factor.rows),
              [TR_FACTOR_C] = tr_tensor_vector(slot->state[1], s->store->acc, x->factor.cols)},
        .scratch = scratch,
        .state = state};
    return tr_op_run(x->scale, stream, &args);
}

static tr_status make_factored(const tr_pace *s, tr_stream *stream, tr_step_state *state,
                               void *scratch) {
    for (int i = 0; i < s->store->slots; i++)
        if (s->slot[i].sums) TR_TRY(take_sums(s, i, stream, scratch));
    if (s->tensor && s->shared > 0)
        TR_TRY(tr_group_all_reduce(s->tensor, stream, s->sums, s->shared, TR_F64, TR_REDUCE_SUM));
    for (int i = 0; i < s->store->slots; i++)
        if (s->slot[i].scale) TR_TRY(scale(s, i, stream, state, scratch));
    return TR_OK;
}

static tr_status descend(const tr_pace *s, int i, tr_stream *stream, tr_step_state *state,
                         void *scratch) {
    const tr_store *store = s->store;
    const tr_store_slot *slot = &store->slot[i];
    const tr_range own = slot->portion;
    tr_op_args args = {
        .t = {[TR_DESCEND_U] = tr_tensor_vector(slot->grad, store->acc, own.extent),
              [TR_DESCEND_NORMS] =
                  tr_tensor_matrix(s->slot[i].norms, TR_F64, slot->layout.parts, 2),
              [TR_DESCEND_MASTER] = tr_tensor_vector(slot->master, store->acc, own.extent),
              [TR_DESCEND_VALUE] = tr_tensor_vector(slot->value, store->dtype, own.extent)},
        .scratch = scratch,
        .state = state};
    if (slot->optimizer == TR_OPTIM_MUON) args.t[TR_DESCEND_NORMS] = (tr_tensor){0};
    return tr_op_run(s->slot[i].descend, stream, &args);
}

tr_status tr_pace_run(tr_pace *s, tr_stream *stream, tr_step_state *state, void *scratch) {
    const int slots = s->store->slots;
    if (s->count == 0) return TR_OK;
    TR_TRY(make_factored(s, stream, state, scratch));
    TR_TRY(tr_stream_zero(stream, s->norms, (size_t)s->count * sizeof(double)));
    /* Each norm is written by one tensor rank and is zero elsewhere, so the sum is exact. */
    for (int k = 0; k < 2; k++) TR_TRY(tr_norms_take(s->taken[k], stream, s->norms, scratch));
    if (s->tensor)
        TR_TRY(tr_group_all_reduce(s->tensor, stream, s->norms, s->count, TR_F64, TR_REDUCE_SUM));
    for (int i = 0; i < slots; i++)
        if (s->slot[i].apply) TR_TRY(make_orthogonal(s, i, stream, scratch));
    for (int i = 0; i < slots; i++)
        if (s->slot[i].descend) TR_TRY(descend(s, i, stream, state, scratch));
    return TR_OK;
}
