#include "partition/step_end.h"

#include "base/memory.h"
#include "partition/adafactor.h"
#include "partition/muon.h"
#include "partition/param_memory.h"

#include <stdlib.h>
#include <string.h>

/* Calls visit for every use of every parameter of the model, in registry order. */
static tr_status visit_params(const tr_model *model, const tr_mesh *mesh, tr_step_end_vector *out,
                              tr_status (*visit)(const tr_mesh *mesh, const tr_param *param,
                                                 const tr_param_layout *layout,
                                                 tr_step_end_vector *out)) {
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k];
            tr_param_layout layout;
            TR_TRY(tr_param_layout_make(param, mesh, &layout));
            TR_TRY(visit(mesh, param, &layout, out));
        }
    return TR_OK;
}

static tr_status place_norm(const tr_mesh *mesh, const tr_param *param,
                            const tr_param_layout *layout, tr_step_end_vector *out) {
    (void)mesh;
    out->norm_entry[param->index] = out->norms;
    if (!param->frozen) out->norms += layout->parts;
    return TR_OK;
}

/* Returns true when a rank has the parameter's gradient of one micro-batch. */
static bool has_noise(const tr_mesh *mesh, const tr_param *param, const tr_param_layout *layout) {
    const tr_mesh_part *sum = &layout->sum;
    return !param->frozen && sum->count[TR_AXIS_TP] == 1 &&
           sum->count[TR_AXIS_DP] * layout->across.count[TR_AXIS_DP] == mesh->degree[TR_AXIS_DP];
}

bool tr_step_end_measures_noise(const tr_mesh *mesh, const tr_param *param,
                                const tr_param_layout *layout) {
    return has_noise(mesh, param, layout) && tr_mesh_part_place(mesh, &layout->replicas) == 0;
}

/* Places a parameter's norms for the noise scale, as if none were tied. */
static tr_status place_noise(const tr_mesh *mesh, const tr_param *param,
                             const tr_param_layout *layout, tr_step_end_vector *out) {
    tr_step_end_noise *entry = &out->noise_entry[param->index];
    if (!has_noise(mesh, param, layout)) return TR_OK;
    *entry = (tr_step_end_noise){.part = out->length,
                                 .whole = 2 * out->losses + out->norm_entry[param->index],
                                 .parts = layout->parts};
    out->length += layout->parts;
    return TR_OK;
}

/* Gives every use of a tied parameter a place for the norm of its own gradient. */
static void place_ties(const tr_model *model, const tr_param *use, tr_step_end_vector *out) {
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k];
            tr_step_end_noise *entry = &out->noise_entry[param->index];
            if (entry->parts == 0 || entry->tied ||
                strcmp(tr_param_name(param), tr_param_name(use)) != 0)
                continue;
            entry->tied = true;
            entry->whole = out->length;
            out->length += entry->parts;
        }
}

static tr_status make_noise(const tr_model *model, const tr_mesh *mesh, tr_step_end_vector *out) {
    TR_TRY(tr_calloc((size_t)out->params, sizeof *out->noise_entry, &out->noise_entry));
    TR_TRY(visit_params(model, mesh, out, place_noise));
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++)
            if (model->layers[i]->params[k].use > 0)
                place_ties(model, &model->layers[i]->params[k], out);
    return TR_OK;
}

tr_status tr_step_end_vector_make(const tr_model *model, const tr_mesh *mesh, int micro_batches,
                                  bool noise, tr_step_end_vector *out) {
    *out = (tr_step_end_vector){.params = model->params_count};
    TR_TRY(tr_calloc((size_t)out->params, sizeof *out->norm_entry, &out->norm_entry));
    TR_TRY(visit_params(model, mesh, out, place_norm));
    out->norms++; /* the last one spoils a step */
    out->sequences = model->shape.batch;
    out->losses = tr_step_end_count(out, mesh, micro_batches);
    out->length = 2 * out->losses + out->norms;
    if (noise) TR_TRY(make_noise(model, mesh, out));
    out->length++;
    return TR_OK;
}

void tr_step_end_vector_free(tr_step_end_vector *vector) {
    free(vector->norm_entry);
    free(vector->noise_entry);
    *vector = (tr_step_end_vector){0};
}

int64_t tr_step_end_count(const tr_step_end_vector *vector, const tr_mesh *mesh,
                          int micro_batches) {
    return (int64_t)mesh->degree[TR_AXIS_DP] * micro_batches * vector->sequences;
}

int64_t tr_step_end_first(const tr_step_end_vector *vector, const tr_mesh *mesh,
                          int micro_batches) {
    return 2 * (vector->losses - tr_step_end_count(vector, mesh, micro_batches));
}

int64_t tr_step_end_losses(const tr_step_end_vector *vector, const tr_mesh *mesh, int micro_batches,
                           int64_t *stride) {
    *stride = 2 * vector->sequences;
    if (mesh->index[TR_AXIS_TP] == 0)
        return tr_step_end_first(vector, mesh, micro_batches) +
               mesh->index[TR_AXIS_DP] * micro_batches * *stride;
    *stride = 0;
    return vector->length;
}

size_t tr_step_end_vector_bytes(const tr_step_end_vector *vector) {
    return (size_t)(vector->length + 2 * vector->sequences) * sizeof(double);
}

tr_op_desc tr_step_end_tie_op(const tr_param *param, const tr_mesh *divided, tr_dtype dtype) {
    return (tr_op_desc){
        .kind = TR_OP_ADD,
        .rows = {.rows = 1, .width = tr_param_portion(param, divided).extent, .dtype = dtype}};
}

tr_op_desc tr_step_end_sumsq_op(const tr_param *param, tr_dtype dtype) {
    return (tr_op_desc){.kind = TR_OP_SUMSQ, .sumsq = {.count = param->count, .dtype = dtype}};
}

tr_op_desc tr_step_end_blocks_op(const tr_param *param, const tr_mesh *divided, tr_dtype dtype) {
    return (tr_op_desc){.kind = TR_OP_SUMSQ,
                        .sumsq = {.count = tr_param_portion(param, divided).extent,
                                  .dtype = dtype,
                                  .part = TR_SUMSQ_BLOCKS}};
}

tr_op_desc tr_step_end_total_op(const tr_param *param) {
    return (tr_op_desc){.kind = TR_OP_SUMSQ,
                        .sumsq = {.count = tr_sumsq_blocks(param->count),
                                  .dtype = tr_dtype_acc(param->dtype),
                                  .part = TR_SUMSQ_TOTAL}};
}

int64_t tr_step_end_tensor_norms(tr_optim_kind optimizer, const tr_param *param,
                                 const tr_param_layout *layout) {
    const tr_optim_row *row = tr_optim_row_of(tr_optim_kind_for(optimizer, param));
    return row->by_tensor ? 2 * (int64_t)layout->parts : 0;
}

tr_op_desc tr_step_end_finish_op(const tr_step_end_vector *vector, int64_t losses) {
    return (tr_op_desc){.kind = TR_OP_STEP_FINISH,
                        .step_finish = {.losses = losses, .norms = vector->norms}};
}

typedef struct measure {
    tr_device *device;
    const tr_mesh *mesh;
    size_t scratch;   /* of the operator that needs most */
    int64_t elements; /* that this rank updates */
    tr_optim_memory optimizer;
    tr_dtype gradients;
    int64_t norms;     /* of its tensors */
    int64_t sums;      /* of rows and columns of adafactor's matrices */
    size_t moments;    /* of the largest of these, while the host has them */
    tr_muon_room muon; /* of its matrices */
    const tr_step_end_vector *vector;
    const tr_mesh *divided;
    int64_t blocks, noise_blocks; /* of the norms that data ranks divide */
    int64_t tensor_blocks;        /* of those of tensors' parameters, and of their directions */
    tr_op **op; /* [ops]: kept until all are measured, because many descriptions are equal */
    size_t ops, op_room;
} measure;

static tr_status measure_op(measure *sum, const tr_op_desc *desc) {
    TR_TRY(tr_grow(&sum->op, &sum->op_room, sum->ops + 1, sizeof(tr_op *)));
    TR_TRY(tr_op_prepare_fixed(sum->device, *desc, &sum->scratch, &sum->op[sum->ops]));
    sum->ops++;
    return TR_OK;
}

static tr_status measure_matrix(measure *sum, const tr_param *param,
                                const tr_param_layout *layout) {
    tr_muon muon;
    TR_TRY(tr_muon_make(param, layout, &muon));
    const tr_op_desc once[] = {tr_muon_rescale(&muon, layout->parts),
                               tr_muon_load(&muon),
                               tr_muon_square(&muon),
                               tr_muon_sum(&muon),
                               tr_muon_apply(&muon),
                               tr_muon_store(&muon)};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) TR_TRY(measure_op(sum, &once[i]));
    for (int k = 0; k < TR_MUON_STEPS; k++) {
        const tr_op_desc product = tr_muon_product(&muon, k);
        TR_TRY(measure_op(sum, &product));
    }
    tr_muon_room_add(&sum->muon, &muon);
    return TR_OK;
}

static tr_status measure_factors(measure *sum, const tr_param *param,
                                 const tr_param_layout *layout) {
    tr_adafactor m;
    TR_TRY(tr_adafactor_make(param, layout, &m));
    const tr_op_desc sums = tr_adafactor_sums(&m), scale = tr_adafactor_scale(&m);
    sum->sums += m.rows + m.cols;
    if (sum->optimizer.offload && tr_adafactor_moments_bytes(&m) > sum->moments)
        sum->moments = tr_adafactor_moments_bytes(&m);
    TR_TRY(measure_op(sum, &sums));
    return measure_op(sum, &scale);
}

/* Measures the norms of a tensor's blocks that data ranks divide. */
static tr_status measure_tensor_blocks(measure *sum, const tr_param *param) {
    const tr_op_desc part = tr_step_end_blocks_op(param, sum->divided, tr_dtype_acc(param->dtype)),
                     total = tr_step_end_total_op(param);
    sum->tensor_blocks += tr_sumsq_blocks(param->count);
    if (part.sumsq.count > 0) TR_TRY(measure_op(sum, &part));
    return measure_op(sum, &total);
}

/* Measures the step of a tensor by itself. */
static tr_status measure_tensor(measure *sum, const tr_param *param,
                                const tr_param_layout *layout) {
    const tr_optim_kind kind = tr_optim_kind_for(sum->optimizer.kind, param);
    const int64_t own = tr_param_portion(param, sum->divided).extent;
    const int64_t norms = tr_step_end_tensor_norms(sum->optimizer.kind, param, layout);
    const bool counted = layout->counted_in_tp;
    const bool alone = !sum->divided || tr_optim_row_of(sum->optimizer.kind)->whole;
    if (norms == 0) return TR_OK;
    sum->norms += norms;
    if (counted && !alone) TR_TRY(measure_tensor_blocks(sum, param));
    if (own == 0) return TR_OK;
    const tr_op_desc sumsq = tr_step_end_sumsq_op(param, tr_dtype_acc(param->dtype)),
                     descend = tr_optim_descend(own, layout->parts, param->dtype, 1);
    if (counted && alone) TR_TRY(measure_op(sum, &sumsq));
    if (!sum->optimizer.offload) TR_TRY(measure_op(sum, &descend));
    if (kind == TR_OPTIM_ADAFACTOR) return measure_factors(sum, param, layout);
    return kind == TR_OPTIM_MUON ? measure_matrix(sum, param, layout) : TR_OK;
}

/* Measures the norms of a trained parameter: the step's, and those for the noise scale. */
static tr_status measure_norms(measure *sum, const tr_param *param, const tr_param_layout *layout) {
    const tr_op_desc whole = tr_step_end_sumsq_op(param, sum->gradients),
                     part = tr_step_end_blocks_op(param, sum->divided, sum->gradients),
                     total = tr_step_end_total_op(param);
    const tr_step_end_noise *noise = sum->vector->noise_entry;
    const bool tied = noise && noise[param->index].tied;
    const bool measured = noise && tr_step_end_measures_noise(sum->mesh, param, layout);
    if (measured || (layout->counted && !sum->divided)) TR_TRY(measure_op(sum, &whole));
    if (!sum->divided || (param->use > 0 && !tied)) return TR_OK;
    if (param->use == 0) sum->blocks += tr_sumsq_blocks(param->count);
    if (tied) sum->noise_blocks += tr_sumsq_blocks(param->count);
    TR_TRY(measure_op(sum, &part));
    return measure_op(sum, &total);
}

static tr_status measure_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    measure *sum = context;
    tr_param_layout layout;
    if (param->frozen) return TR_OK;
    TR_TRY(tr_param_layout_make(param, sum->mesh, &layout));
    TR_TRY(measure_norms(sum, param, &layout));
    const tr_op_desc tie = tr_step_end_tie_op(param, sum->divided, sum->gradients);
    if (shares) return tie.rows.width > 0 ? measure_op(sum, &tie) : TR_OK;
    sum->elements += param->count;
    return measure_tensor(sum, param, &layout);
}

tr_status tr_step_end_bytes(const tr_step_end_desc *d, size_t *bytes) {
    tr_status status = TR_OK;
    measure sum = {.device = d->device,
                   .mesh = d->mesh,
                   .optimizer = d->optimizer,
                   .gradients = tr_optim_grad_dtype(d->optimizer, d->dtype),
                   .vector = d->vector,
                   .divided = tr_memory_divided(d->mesh, d->zero)};
    const tr_op_desc finish = tr_step_end_finish_op(d->vector, d->vector->losses);
    TR_TRY_OUT(measure_op(&sum, &finish));
    if (!d->forward_only) {
        const int pp_rank = d->mesh->index[TR_AXIS_PP];
        TR_TRY_OUT(tr_placement_visit(d->placement, d->model, pp_rank, measure_param, &sum));
        /* Upper bound: updating a part needs no more than updating all elements at once. */
        const tr_op_desc update = tr_optim_update(&(tr_optim_config){.kind = d->optimizer.kind},
                                                  sum.elements, d->dtype, true, 1);
        if (!d->optimizer.offload) TR_TRY_OUT(measure_op(&sum, &update));
    }
    *bytes = tr_align_up(tr_step_end_vector_bytes(d->vector)) + tr_align_up(sum.scratch) +
             tr_align_up((size_t)sum.norms * sizeof(double)) +
             tr_align_up((size_t)sum.blocks * sizeof(double)) +
             tr_align_up((size_t)sum.noise_blocks * sizeof(double)) +
             2 * tr_align_up((size_t)sum.tensor_blocks * sizeof(double)) +
             tr_align_up((size_t)sum.sums * sizeof(double)) + sum.moments +
             tr_muon_room_bytes(&sum.muon);
out:
    while (sum.ops > 0) tr_op_release(sum.op[--sum.ops]);
    free(sum.op);
    return status;
}
