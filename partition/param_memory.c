#include "partition/param_memory.h"

#include "base/code8.h"
#include "base/memory.h"
#include "layers/param_layout.h"

size_t tr_memory_params_align(size_t elements) {
    return tr_align_up(elements * sizeof(uint16_t)) / sizeof(uint16_t);
}

size_t tr_memory_params_begin(const tr_param *param, size_t end) {
    return param->joined ? end : tr_memory_params_align(end);
}

/* The parameter before a joined one is adjacent in the layer's list. */
size_t tr_memory_states_begin(const tr_param *param, const tr_mesh *divided, size_t end) {
    return param->joined && !param[-1].frozen && !divided ? end : tr_memory_params_align(end);
}

size_t tr_memory_moments_begin(const tr_param *param, const tr_mesh *divided, tr_dtype dtype,
                               size_t end) {
    return dtype == TR_U8 ? tr_align_up(end) : tr_memory_states_begin(param, divided, end);
}

size_t tr_memory_moments_length(tr_dtype dtype, int64_t numbers) {
    return dtype == TR_U8 ? tr_code8_bytes(numbers) : (size_t)numbers;
}

const tr_mesh *tr_memory_divided(const tr_mesh *mesh, int zero) {
    return zero > 0 && tr_mesh_near(mesh) > 1 ? mesh : NULL;
}

const tr_mesh *tr_memory_factored(const tr_mesh *mesh) {
    return tr_mesh_near(mesh) < mesh->degree[TR_AXIS_DP] ? mesh : NULL;
}

bool tr_memory_in_arena(const tr_mesh *mesh, int zero) {
    return zero > 1 && tr_memory_divided(mesh, zero);
}

bool tr_memory_gathers(const tr_mesh *mesh, int zero) {
    return zero > 2 && tr_memory_divided(mesh, zero);
}

typedef struct measure {
    tr_param_memory sum;
    const tr_mesh *divided;
    bool in_arena, gathers; /* whole gradients; values */
    bool owns_none;         /* of the parameters that one data rank updates as a whole */
    tr_optim_memory optimizer;
} measure;

static measure measure_begin(const tr_mesh *divided, int zero, tr_optim_memory optimizer) {
    return (measure){.divided = divided,
                     .in_arena = divided && tr_memory_in_arena(divided, zero),
                     .gathers = divided && tr_memory_gathers(divided, zero),
                     .optimizer = optimizer};
}

static tr_status measure_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    measure *m = context;
    tr_param_memory *sum = &m->sum;
    sum->params++;
    const size_t count = (size_t)param->count;
    const bool is_others = m->owns_none && m->divided && param->whole;
    const size_t own = is_others ? 0 : (size_t)tr_param_portion(param, m->divided).extent;
    if (!m->in_arena && param->has_grad)
        sum->grads = tr_memory_params_begin(param, sum->grads) + count;
    if (m->in_arena && !param->frozen && own > 0)
        sum->grads = tr_memory_params_align(sum->grads) + own;
    if (shares) return TR_OK;
    if (!m->gathers) sum->values = tr_memory_params_begin(param, sum->values) + count;
    else if (own > 0) sum->values = tr_memory_params_align(sum->values) + own;
    if (param->frozen || own == 0) return TR_OK;
    sum->updates += (double)own;
    if (!m->optimizer.no_master)
        sum->masters = tr_memory_states_begin(param, m->divided, sum->masters) + own;
    const tr_optim_kind kind = tr_optim_kind_for(m->optimizer.kind, param);
    if (tr_optim_row_of(kind)->by_tensor) sum->directed += (double)own;
    for (int k = 0; k < tr_optim_states(kind); k++)
        sum->state[k] =
            tr_memory_moments_begin(param, m->divided, m->optimizer.moments, sum->state[k]) +
            tr_memory_moments_length(m->optimizer.moments,
                                     tr_optim_state_count(kind, param, k, (int64_t)own));
    return TR_OK;
}

/* Returns the sum, which later parameters do not follow. */
static tr_param_memory measure_end(const measure *m) {
    tr_param_memory sum = m->sum;
    sum.values = tr_memory_params_align(sum.values);
    sum.masters = tr_memory_params_align(sum.masters);
    for (int k = 0; k < TR_OPTIM_STATES; k++) sum.state[k] = tr_memory_params_align(sum.state[k]);
    sum.grads = tr_memory_params_align(sum.grads);
    sum.optimizer = m->optimizer;
    return sum;
}

static size_t layer_elements(const tr_layer *layer, bool grads) {
    size_t end = 0;
    for (int k = 0; k < layer->params_count; k++)
        if (layer->params[k].has_grad || !grads)
            end = tr_memory_params_begin(&layer->params[k], end) + (size_t)layer->params[k].count;
    return tr_memory_params_align(end);
}

size_t tr_memory_layer_grads(const tr_layer *layer) {
    return layer_elements(layer, true);
}

size_t tr_memory_layer_values(const tr_layer *layer) {
    return layer_elements(layer, false);
}

/* Returns the elements of the gradients of the layer that has most on pipeline rank pp_rank. */
static size_t largest_layer(const tr_model *model, const tr_placement *placement, int pp_rank) {
    size_t most = 0;
    for (int s = 0; s < placement->stages; s++)
        for (int i = placement->first[s]; i < placement->first[s + 1]; i++) {
            const size_t own = tr_memory_layer_grads(model->layers[i]);
            if (placement->owner[s] == pp_rank && own > most) most = own;
        }
    return most;
}

tr_param_memory tr_memory_of_params(const tr_model *model, const tr_placement *placement,
                                    int pp_rank, const tr_mesh *divided, int zero,
                                    tr_optim_memory optimizer) {
    measure m = measure_begin(divided, zero, optimizer);
    (void)tr_placement_visit(placement, model, pp_rank, measure_param, &m); /* cannot fail */
    tr_param_memory sum = measure_end(&m);
    if (tr_optim_narrow_grads(optimizer)) sum.addend = largest_layer(model, placement, pp_rank);
    return sum;
}

tr_param_memory tr_memory_of_layer(const tr_layer *layer, const tr_mesh *divided, int zero,
                                   tr_optim_memory optimizer) {
    measure m = measure_begin(divided, zero, optimizer);
    m.owns_none = true;
    for (int k = 0; k < layer->params_count; k++)
        (void)measure_param(&m, 0, &layer->params[k], layer->params[k].use > 0);
    return measure_end(&m);
}

bool tr_memory_steps_values(tr_optim_memory optimizer, tr_dtype dtype) {
    return dtype == tr_dtype_acc(dtype) || optimizer.no_master;
}

/* Returns the bytes of a master; 0 in FP32 and FP64, where the value is the master. */
static size_t master_size(tr_dtype dtype) {
    return dtype == tr_dtype_acc(dtype) ? 0 : tr_dtype_size(tr_dtype_acc(dtype));
}

size_t tr_memory_masters_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    return memory->masters * master_size(dtype);
}

size_t tr_memory_states_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    size_t numbers = 0;
    for (int k = 0; k < TR_OPTIM_STATES; k++) numbers += memory->state[k];
    return tr_align_up(numbers * tr_dtype_size(tr_optim_state_dtype(memory->optimizer, dtype)));
}

void tr_memory_params_bytes(const tr_param_memory *memory, tr_dtype dtype, size_t *values,
                            size_t *grads, size_t *states) {
    const bool offload = memory->optimizer.offload;
    *values = memory->values * tr_dtype_size(dtype) +
              (offload ? 0 : tr_memory_masters_bytes(memory, dtype));
    *grads = memory->grads * tr_dtype_size(tr_optim_grad_dtype(memory->optimizer, dtype)) +
             memory->addend * tr_dtype_size(tr_dtype_acc(dtype));
    *states = offload ? 0 : tr_memory_states_bytes(memory, dtype);
}

/* Returns the bytes of a number in a checkpoint when it has this type in memory. */
static double saved_size(tr_dtype dtype) {
    return (double)tr_dtype_size(dtype == TR_BF16 || dtype == TR_U8 ? TR_BF16 : TR_F32);
}

double tr_memory_of_checkpoint(const tr_model *model, tr_optim_memory optimizer) {
    const tr_dtype dtype = model->shape.dtype;
    double bytes = 0;
    for (int i = 0; i < model->count; i++)
        for (int j = 0; j < model->layers[i]->params_count; j++) {
            const tr_param *param = &model->layers[i]->params[j];
            const tr_optim_kind kind = tr_optim_kind_for(optimizer.kind, param);
            for (int k = 0; k < param->tensors && param->use == 0; k++) {
                bytes += saved_size(param->frozen || optimizer.no_master ? dtype : TR_F32) *
                         (double)tr_global_count(&param->tensor[k]);
                if (!param->frozen)
                    bytes += saved_size(tr_optim_state_dtype(optimizer, dtype)) *
                             (double)tr_optim_state_total(kind, &param->tensor[k]);
            }
        }
    return bytes;
}
