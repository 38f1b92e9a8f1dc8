#include "partition/offload.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "device/op.h"
#include "device/speed.h"
#include "partition/network.h"
#include "partition/optim_cost.h"

#include <math.h>

int64_t tr_offload_part(const tr_param_memory *memory) {
    /* 1 MiB of FP32 gradients: long enough for the rate of a GPU's link, and little to wait for
     * before the first step and after the last one. */
    return tr_min_i64((int64_t)memory->values, 1 << 18);
}

size_t tr_offload_gradient_bytes(tr_optim_memory optimizer, tr_dtype dtype, int64_t part) {
    return tr_align_up((size_t)part * tr_dtype_size(tr_optim_grad_dtype(optimizer, dtype)));
}

size_t tr_offload_value_bytes(tr_dtype dtype, int64_t part) {
    return tr_align_up((size_t)part * tr_dtype_size(dtype));
}

size_t tr_offload_direction_bytes(tr_optim_memory optimizer, tr_dtype dtype, int64_t part) {
    if (!tr_optim_row_of(optimizer.kind)->by_tensor || !tr_optim_narrow_grads(optimizer)) return 0;
    return tr_align_up((size_t)part * tr_dtype_size(tr_dtype_acc(dtype)));
}

size_t tr_offload_bytes(const tr_param_memory *memory, tr_dtype dtype) {
    const int64_t part = tr_offload_part(memory);
    if (!memory->optimizer.offload) return 0;
    return tr_memory_masters_bytes(memory, dtype) + tr_memory_states_bytes(memory, dtype) +
           TR_OFFLOAD_BUFFERS * (tr_offload_gradient_bytes(memory->optimizer, dtype, part) +
                                 tr_offload_value_bytes(dtype, part) +
                                 tr_offload_direction_bytes(memory->optimizer, dtype, part)) +
           tr_align_up(sizeof(tr_step_state));
}

void tr_offload_mark(int64_t first, int64_t stages, tr_stage_table *table) {
    for (int s = 0; s < table->stages; s++)
        table->cost[s].offload = s >= first && s - first < stages;
}

tr_offload_traffic tr_offload_traffic_of(const tr_param_memory *memory, tr_dtype dtype) {
    const tr_optim_memory optimizer = memory->optimizer;
    const double value_size = (double)tr_dtype_size(dtype);
    const double acc_size = (double)tr_dtype_size(tr_dtype_acc(dtype));
    const double value = memory->updates * value_size;
    const double grad =
        memory->updates * (double)tr_dtype_size(tr_optim_grad_dtype(optimizer, dtype));
    const bool steps_value = tr_memory_steps_values(optimizer, dtype);
    /* A direction goes to the device, and comes back with the value that is stepped, if any. */
    const double direction = memory->directed * acc_size;
    const double again = memory->directed * (steps_value ? value_size : 0);
    const double norms = steps_value ? 0 : direction; /* of masters, which are the host's */
    return (tr_offload_traffic){.down = grad + (steps_value ? value : 0) + direction + again,
                                .up = value + direction,
                                .host = tr_optim_bytes(memory, dtype) + norms};
}

double tr_offload_seconds(const tr_config *config, tr_offload_traffic t) {
    const double link = tr_network_host_bytes(config);
    return fmax(fmax(t.down, t.up) / link, t.host / tr_device_speed_of("cpu")->memory_bytes);
}
