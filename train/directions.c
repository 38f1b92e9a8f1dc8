#include "train/directions.h"

#include "base/memory.h"
#include "partition/adafactor.h"
#include "train/newton_schulz.h"
#include "train/norms.h"

#include <stdlib.h>

/* The step of a slot. It has no norms if the slot is frozen or shares another one's value, and no
 * operators either if another rank owns all of the parameter. */
typedef struct slot_step {
    tr_adafactor factor;
    tr_op *sums, *scale;         /* NULL: not adafactor's, or no matrix */
    double *row_sums, *col_sums; /* device: of the factor's rows and columns */
    double *norms;               /* device: [parts][2], of the parameter and of its direction */
    bool counted;                /* this rank computes the norms of its part */
} slot_step;

/* What the tensor ranks add in a lap: the norms, and adafactor's sums. */
typedef struct lap_sums {
    int64_t norm, norms, sum, sums; /* the first one, and how many */
} lap_sums;

struct tr_directions {
    const tr_store *store;
    tr_group *tensor;       /* NULL: a single tensor rank */
    slot_step *slot;        /* [store->slots] */
    double *norms;          /* device: of all slots */
    tr_norms *taken[2];     /* of parameters and of directions */
    lap_sums *lap;          /* [store->laps] */
    tr_newton_schulz *muon; /* its matrices */
    /* Adafactor's, device: sums of rows or columns, first those that the tensor ranks add */
    double *sums;
    char *moments; /* device: of a matrix, while the host has them; else NULL */
};

static bool steps_slot(const tr_store_slot *slot) {
    return slot->shares < 0 && !slot->param->frozen && tr_optim_row_of(slot->optimizer)->by_tensor;
}

static tr_status prepare_factor(const tr_store *store, const tr_optim_config *config, int i,
                                size_t *scratch, slot_step *out) {
    TR_TRY(tr_adafactor_make(store->slot[i].param, &store->slot[i].layout, &out->factor));
    out->factor.scales = tr_directions_scales(store, config, i);
    out->factor.bf16_grad = out->factor.scales && store->grad_dtype != store->acc;
    TR_TRY(
        tr_op_prepare_fixed(store->device, tr_adafactor_sums(&out->factor), scratch, &out->sums));
    return tr_op_prepare_fixed(store->device, tr_adafactor_scale(&out->factor), scratch,
                               &out->scale);
}

/* Prepares the step of a slot with the norms at `norms`. Only tensor ranks may hold different
 * parts, since only they sum norms; data ranks may have different portions of a part. */
static tr_status prepare_slot(tr_directions *d, const tr_optim_config *config, const tr_mesh *mesh,
                              int i, double *norms, size_t *scratch) {
    const tr_store *store = d->store;
    const tr_store_slot *slot = &store->slot[i];
    slot_step *out = &d->slot[i];
    const tr_param *param = slot->param;
    const tr_param_layout *layout = &slot->layout;
    const bool cut = tr_optim_row_of(slot->optimizer)->whole && slot->portion.extent > 0 &&
                     slot->portion.extent < param->count;
    if (cut || param->tensors > 1 || layout->replicas.count[TR_AXIS_DP] != mesh->degree[TR_AXIS_DP])
        return TR_FAIL(TR_ERR_INTERNAL, "%s has parts that cannot be stepped as one tensor",
                       tr_param_name(param));
    out->norms = norms;
    out->counted = layout->counted_in_tp;
    if (slot->portion.extent == 0) return TR_OK;
    if (slot->optimizer == TR_OPTIM_MUON) TR_TRY(tr_newton_schulz_add(d->muon, i, norms, scratch));
    if (slot->optimizer == TR_OPTIM_ADAFACTOR)
        TR_TRY(prepare_factor(store, config, i, scratch, out));
    return TR_OK;
}

/* Prepares the norms of the slots' parameters and of their directions, except those that FACTOR
 * takes. Data ranks that have portions of a tensor all need its norms; of those that own whole
 * tensors only the owner does. */
static tr_status prepare_norms(tr_directions *d, size_t *scratch) {
    const tr_store *store = d->store;
    const bool alone = !store->divided || tr_optim_row_of(store->optimizer)->whole;
    tr_status status = TR_OK;
    int64_t *entry;
    TR_TRY(tr_calloc((size_t)store->slots, sizeof *entry, &entry));
    for (int k = 0; k < 2 && status == TR_OK; k++) {
        for (int i = 0; i < store->slots; i++) {
            const slot_step *x = &d->slot[i];
            const bool takes = x->counted && (!alone || store->slot[i].portion.extent > 0) &&
                               (k == 0 || !x->scale);
            entry[i] =
                takes ? x->norms - d->norms + 2 * store->slot[i].layout.part + k : TR_NORM_NONE;
        }
        status = tr_norms_create(
            &(tr_norms_desc){.store = store,
                             .entry = entry,
                             .of = k == 0 ? TR_NORMS_OF_MASTERS : TR_NORMS_OF_DIRECTIONS,
                             .alone = alone},
            scratch, &d->taken[k]);
    }
    free(entry);
    return status;
}

/* Allocates the sums of all matrices' rows and columns: first those that the tensor ranks add, lap
 * by lap. */
static tr_status alloc_sums(tr_directions *d) {
    int64_t shared = 0, own = 0;
    for (int i = 0; i < d->store->slots; i++) {
        const tr_adafactor *m = &d->slot[i].factor;
        lap_sums *lap = &d->lap[d->store->slot[i].lap];
        if (!d->slot[i].sums) continue;
        if (lap->sums == 0) lap->sum = shared;
        lap->sums += m->shared;
        shared += m->shared;
        own += m->rows + m->cols - m->shared;
    }
    if (own == 0) return TR_OK;
    TR_TRY(tr_device_alloc(d->store->device, TR_MEMORY_DATA,
                           (size_t)(shared + own) * sizeof(double), (void **)&d->sums));
    double *next = d->sums, *rest = d->sums + shared;
    for (int i = 0; i < d->store->slots; i++) {
        slot_step *x = &d->slot[i];
        if (!x->sums) continue;
        double **rows = x->factor.shared > 0 && x->factor.shares_rows ? &next : &rest;
        double **cols = x->factor.shared > 0 && !x->factor.shares_rows ? &next : &rest;
        x->row_sums = *rows;
        *rows += x->factor.rows;
        x->col_sums = *cols;
        *cols += x->factor.cols;
    }
    return TR_OK;
}

/* Allocates memory of the device for moments that are the host's. */
static tr_status alloc_moments(tr_directions *d) {
    size_t most = 0;
    for (int i = 0; i < d->store->slots && d->store->host; i++)
        if (d->slot[i].scale && tr_adafactor_moments_bytes(&d->slot[i].factor) > most)
            most = tr_adafactor_moments_bytes(&d->slot[i].factor);
    if (most == 0) return TR_OK;
    return tr_device_alloc(d->store->device, TR_MEMORY_DATA, most, (void **)&d->moments);
}

/* Places the norms of all slots, lap by lap: a lap's slots are adjacent. */
static tr_status alloc_norms(tr_directions *d) {
    const tr_store *store = d->store;
    int64_t count = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (!steps_slot(slot)) continue;
        const int64_t own = tr_step_end_tensor_norms(store->optimizer, slot->param, &slot->layout);
        if (d->lap[slot->lap].norms == 0) d->lap[slot->lap].norm = count;
        d->lap[slot->lap].norms += own;
        count += own;
    }
    if (count == 0) return TR_OK;
    return tr_device_alloc(store->device, TR_MEMORY_DATA, (size_t)count * sizeof(double),
                           (void **)&d->norms);
}

bool tr_directions_scales(const tr_store *store, const tr_optim_config *config, int slot) {
    tr_optim_config own = *config;
    own.kind = store->slot[slot].optimizer;
    const tr_op_desc step =
        tr_optim_update(&own, 1, store->dtype, store->slot[slot].param->decay, 1);
    return own.kind == TR_OPTIM_ADAFACTOR && !store->host && tr_optim_only_scales(&step);
}

tr_status tr_directions_create(const tr_store *store, const tr_optim_config *config,
                               const tr_mesh *mesh, tr_group *tensor, size_t *scratch,
                               tr_directions **out) {
    tr_status status = TR_OK;
    tr_directions *d = NULL;
    *out = NULL;
    if (!tr_optim_row_of(store->optimizer)->by_tensor) return TR_OK;
    TR_TRY(tr_calloc(1, sizeof *d, &d));
    d->store = store;
    d->tensor = mesh->degree[TR_AXIS_TP] > 1 ? tensor : NULL;
    TR_TRY_OUT(tr_calloc((size_t)store->slots, sizeof *d->slot, &d->slot));
    TR_TRY_OUT(tr_calloc((size_t)store->laps, sizeof *d->lap, &d->lap));
    TR_TRY_OUT(alloc_norms(d));
    TR_TRY_OUT(tr_newton_schulz_create(store, d->tensor, &d->muon));
    double *norms = d->norms;
    for (int i = 0; i < store->slots; i++) {
        if (!steps_slot(&store->slot[i])) continue;
        TR_TRY_OUT(prepare_slot(d, config, mesh, i, norms, scratch));
        norms += tr_step_end_tensor_norms(store->optimizer, store->slot[i].param,
                                          &store->slot[i].layout);
    }
    TR_TRY_OUT(prepare_norms(d, scratch));
    TR_TRY_OUT(tr_newton_schulz_alloc(d->muon));
    TR_TRY_OUT(alloc_sums(d));
    TR_TRY_OUT(alloc_moments(d));
out:
    if (status != TR_OK) tr_directions_destroy(d);
    else *out = d;
    return status;
}

void tr_directions_destroy(tr_directions *d) {
    if (!d) return;
    for (int i = 0; d->slot && i < d->store->slots; i++) {
        slot_step *x = &d->slot[i];
        tr_op_release(x->sums);
        tr_op_release(x->scale);
    }
    for (int k = 0; k < 2; k++) tr_norms_destroy(d->taken[k]);
    tr_device_free(d->store->device, d->norms);
    tr_device_free(d->store->device, d->sums);
    tr_device_free(d->store->device, d->moments);
    tr_newton_schulz_destroy(d->muon);
    free(d->lap);
    free(d->slot);
    free(d);
}

/* Returns the matrix as DIRECTION leaves it, or without DIRECTION its gradient. */
static tr_tensor matrix_of(const tr_directions *d, int i) {
    const tr_adafactor *m = &d->slot[i].factor;
    const tr_store_slot *slot = &d->store->slot[i];
    return m->bf16_grad ? tr_tensor_matrix(slot->grad, TR_BF16, m->rows, m->cols)
                        : tr_tensor_matrix(slot->direction, m->dtype, m->rows, m->cols);
}

/* Sums the squares of this rank's part of a matrix along both axes. */
static tr_status take_sums(const tr_directions *d, int i, tr_stream *stream, tr_step_state *state,
                           void *scratch) {
    const slot_step *x = &d->slot[i];
    const tr_op_args args = {
        .t = {[TR_FACTOR_X] = matrix_of(d, i),
              [TR_FACTOR_ROWS] = tr_tensor_vector(x->row_sums, TR_F64, x->factor.rows),
              [TR_FACTOR_COLS] = tr_tensor_vector(x->col_sums, TR_F64, x->factor.cols)},
        .scratch = scratch,
        .state = state};
    TR_TRY(tr_op_run(x->sums, stream, &args));
    /* Of ranks with the same part one adds its sums to those of the others. */
    if (x->counted || x->factor.shared == 0) return TR_OK;
    return tr_stream_zero(stream, x->factor.shares_rows ? x->row_sums : x->col_sums,
                          (size_t)x->factor.shared * sizeof(double));
}

/* Divides the gradient of a matrix by the root of its second moments, and takes the norm. The
 * host's moments come to the device for that. */
static tr_status scale(const tr_directions *d, int i, tr_stream *stream, tr_step_state *state,
                       void *scratch) {
    const slot_step *x = &d->slot[i];
    const tr_store_slot *slot = &d->store->slot[i];
    const size_t size = tr_dtype_size(d->store->acc);
    const size_t bytes[] = {(size_t)x->factor.rows * size, (size_t)x->factor.cols * size};
    void *moment[] = {slot->state[0], slot->state[1]};
    for (int k = 0; k < 2 && d->moments; k++) {
        moment[k] = k == 0 ? d->moments : d->moments + tr_align_up(bytes[0]);
        TR_TRY(tr_stream_copy(stream, moment[k], slot->state[k], bytes[k]));
    }
    tr_op_args args = {
        .t = {[TR_FACTOR_X] = matrix_of(d, i),
              [TR_FACTOR_ROWS] = tr_tensor_vector(x->row_sums, TR_F64, x->factor.rows),
              [TR_FACTOR_COLS] = tr_tensor_vector(x->col_sums, TR_F64, x->factor.cols),
              [TR_FACTOR_R] = tr_tensor_vector(moment[0], d->store->acc, x->factor.rows),
              [TR_FACTOR_C] = tr_tensor_vector(moment[1], d->store->acc, x->factor.cols),
              [TR_FACTOR_U] = tr_tensor_matrix(slot->direction, x->factor.dtype, x->factor.rows,
                                               x->factor.cols)},
        .scratch = scratch,
        .state = state};
    if (x->counted)
        args.t[TR_FACTOR_NORM] = tr_tensor_vector(x->norms + 2 * slot->layout.part + 1, TR_F64, 1);
    TR_TRY(tr_op_run(x->scale, stream, &args));
    for (int k = 0; k < 2 && d->moments; k++)
        TR_TRY(tr_stream_copy(stream, slot->state[k], moment[k], bytes[k]));
    return TR_OK;
}

static tr_status make_factored(const tr_directions *d, int lap, tr_stream *stream,
                               tr_step_state *state, void *scratch) {
    const tr_store *store = d->store;
    const lap_sums *sums = &d->lap[lap];
    for (int i = 0; i < store->slots; i++)
        if (d->slot[i].sums && store->slot[i].lap == lap)
            TR_TRY(take_sums(d, i, stream, state, scratch));
    if (d->tensor && sums->sums > 0)
        TR_TRY(tr_group_all_reduce(d->tensor, stream, d->sums + sums->sum, sums->sums, TR_F64,
                                   TR_REDUCE_SUM));
    for (int i = 0; i < store->slots; i++)
        if (d->slot[i].scale && store->slot[i].lap == lap)
            TR_TRY(scale(d, i, stream, state, scratch));
    return TR_OK;
}

tr_status tr_directions_complete(tr_directions *d, int lap, tr_stream *stream, tr_step_state *state,
                                 void *scratch) {
    if (!d || d->lap[lap].norms == 0) return TR_OK;
    double *norms = d->norms + d->lap[lap].norm;
    TR_TRY(tr_stream_zero(stream, norms, (size_t)d->lap[lap].norms * sizeof(double)));
    TR_TRY(make_factored(d, lap, stream, state, scratch));
    /* Each norm is written by one tensor rank and is zero elsewhere, so the sum is exact. */
    for (int k = 0; k < 2; k++) TR_TRY(tr_norms_take(d->taken[k], lap, stream, d->norms, scratch));
    if (d->tensor)
        TR_TRY(tr_group_all_reduce(d->tensor, stream, norms, d->lap[lap].norms, TR_F64,
                                   TR_REDUCE_SUM));
    return tr_newton_schulz_run(d->muon, lap, stream, scratch);
}

const double *tr_directions_norms(const tr_directions *d, int slot) {
    return d->slot[slot].norms;
}

const double *tr_directions_lap_norms(const tr_directions *d, int lap, int64_t *count) {
    *count = d ? d->lap[lap].norms : 0;
    return *count > 0 ? d->norms + d->lap[lap].norm : NULL;
}
