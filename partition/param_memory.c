#include "partition/param_memory.h"

#include "base/memory.h"

size_t tr_memory_params_align(size_t elements) {
    return tr_align_up(elements * sizeof(uint16_t)) / sizeof(uint16_t);
}

size_t tr_memory_params_begin(const tr_param *param, size_t end) {
    return param->joined ? end : tr_memory_params_align(end);
}

/* The parameter before a joined one is adjacent in the layer's list. */
size_t tr_memory_states_begin(const tr_param *param, size_t end) {
    return param->joined && !param[-1].frozen ? end : tr_memory_params_align(end);
}

static tr_status measure_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    tr_param_memory *sum = context;
    sum->params++;
    const size_t count = (size_t)param->count;
    if (param->has_grad) sum->grads = tr_memory_params_begin(param, sum->grads) + count;
    if (shares) return TR_OK;
    sum->values = tr_memory_params_begin(param, sum->values) + count;
    if (!param->frozen) sum->states = tr_memory_states_begin(param, sum->states) + count;
    return TR_OK;
}

tr_param_memory tr_memory_of_params(const tr_model *model, const tr_placement *placement,
                                    int pp_rank) {
    tr_param_memory sum = {0};
    (void)tr_placement_visit(placement, model, pp_rank, measure_param, &sum); /* cannot fail */
    sum.values = tr_memory_params_align(sum.values);
    sum.states = tr_memory_params_align(sum.states);
    sum.grads = tr_memory_params_align(sum.grads);
    return sum;
}

size_t tr_memory_master_size(tr_dtype dtype) {
    return dtype == tr_dtype_acc(dtype) ? 0 : tr_dtype_size(tr_dtype_acc(dtype));
}

void tr_memory_params_bytes(const tr_param_memory *memory, tr_dtype dtype, tr_optim_kind optimizer,
                            size_t *values, size_t *grads, size_t *states) {
    *values = memory->values * tr_dtype_size(dtype) + memory->states * tr_memory_master_size(dtype);
    *grads = memory->grads * tr_dtype_size(tr_dtype_acc(dtype));
    *states =
        memory->states * (size_t)tr_optim_states(optimizer) * tr_dtype_size(tr_dtype_acc(dtype));
}

double tr_memory_of_checkpoint(const tr_model *model, tr_optim_kind optimizer) {
    const double size = (double)tr_dtype_size(TR_F32);
    return size * ((double)tr_model_parameters(model) +
                   tr_optim_states(optimizer) * (double)tr_model_trained_parameters(model));
}
