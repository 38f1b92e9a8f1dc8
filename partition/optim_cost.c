#include "partition/optim_cost.h"

#include "device/speed.h"
#include "layers/param_layout.h"
#include "partition/muon.h"
#include "partition/network.h"

#include <math.h>

/* Returns the bytes of what is stepped along directions: masters, or values. */
static double stepped_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    const bool steps_value = tr_memory_steps_values(memory->optimizer, dtype);
    return memory->directed * (double)tr_dtype_size(steps_value ? dtype : tr_dtype_acc(dtype));
}

double tr_optim_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    const double value_size = (double)tr_dtype_size(dtype);
    const double acc_size = (double)tr_dtype_size(tr_dtype_acc(dtype));
    const double grad =
        memory->updates * (double)tr_dtype_size(tr_optim_grad_dtype(memory->optimizer, dtype));
    const double kept =
        (double)(tr_memory_masters_bytes(memory, dtype) + tr_memory_states_bytes(memory, dtype));
    const bool steps_value = tr_memory_steps_values(memory->optimizer, dtype);
    /* A direction is written, and read with what is stepped, which is then read twice. */
    const double direction = memory->directed * acc_size;
    return grad + 2 * kept + (steps_value ? 2 : 1) * memory->updates * value_size + 2 * direction +
           stepped_bytes(memory, dtype);
}

/* Returns the bytes that the device reads for norms: of gradients, of directions, and of what is
 * stepped along them, unless the host has it. */
static double norms_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    const tr_optim_memory optimizer = memory->optimizer;
    const bool by_host = optimizer.offload && !tr_memory_steps_values(optimizer, dtype);
    return memory->updates * (double)tr_dtype_size(tr_optim_grad_dtype(optimizer, dtype)) +
           memory->directed * (double)tr_dtype_size(tr_dtype_acc(dtype)) +
           (by_host ? 0 : stepped_bytes(memory, dtype));
}

typedef struct products {
    const tr_mesh *mesh, *divided;
    tr_optim_kind optimizer;
    tr_muon_room matrices;
    tr_optim_cost all; /* without bytes and turns */
} products;

static tr_status add_products(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    products *sum = context;
    tr_param_layout layout;
    tr_muon muon;
    if (shares || param->frozen || tr_param_portion(param, sum->divided).extent == 0 ||
        tr_optim_kind_for(sum->optimizer, param) != TR_OPTIM_MUON)
        return TR_OK;
    TR_TRY(tr_param_layout_make(param, sum->mesh, &layout));
    TR_TRY(tr_muon_make(param, &layout, &muon));
    const tr_op_desc step[] = {tr_muon_product(&muon, 0), tr_muon_square(&muon),
                               tr_muon_apply(&muon)};
    for (size_t k = 0; k < sizeof step / sizeof *step; k++)
        sum->all.flops += TR_MUON_STEPS * tr_op_flops(&step[k]);
    tr_muon_room_add(&sum->matrices, &muon);
    if (!muon.sums) return TR_OK;
    sum->all.sums += TR_MUON_STEPS;
    sum->all.sum_bytes +=
        TR_MUON_STEPS * (double)(muon.side * muon.side) * (double)tr_dtype_size(muon.dtype);
    return TR_OK;
}

tr_optim_cost tr_optim_cost_of(const tr_model *model, const tr_placement *placement,
                               const tr_mesh *mesh, int zero, tr_optim_memory optimizer) {
    const int pp_rank = mesh->index[TR_AXIS_PP];
    const tr_dtype dtype = model->shape.dtype;
    products sum = {
        .mesh = mesh, .divided = tr_memory_divided(mesh, zero), .optimizer = optimizer.kind};
    const tr_param_memory memory =
        tr_memory_of_params(model, placement, pp_rank, sum.divided, zero, optimizer);
    /* Fails for no parameter of a model that training accepts. */
    (void)tr_placement_visit(placement, model, pp_rank, add_products, &sum);
    const double step = optimizer.offload ? 0 : tr_optim_bytes(&memory, dtype);
    sum.all.bytes = norms_bytes(&memory, dtype) + step;
    sum.all.turns = tr_muon_room_turns(&sum.matrices);
    return sum.all;
}

double tr_optim_time(const tr_config *c, tr_optim_cost cost, double flops_per_s) {
    return cost.flops + cost.bytes / tr_device_speed_of(c->device.name)->memory_bytes *
                            tr_network_flops(c, flops_per_s);
}

tr_optim_sums tr_optim_sums_of(const tr_config *c, const tr_mesh *mesh, tr_optim_cost cost,
                               double flops_per_s) {
    const tr_link link = tr_network_sum(c, mesh, TR_AXIS_TP, flops_per_s);
    const double moving = cost.sums * link.latency + link.per_byte * cost.sum_bytes;
    if (cost.sums <= 0 || cost.turns == 1) return (tr_optim_sums){moving, moving};
    const double last = moving / cost.sums;
    return (tr_optim_sums){moving, fmax(moving - cost.flops, last)};
}
