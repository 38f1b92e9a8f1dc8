#include "cli/plan_offload.h"

#include "cli/plan_traffic.h"
#include "device/speed.h"
#include "partition/network.h"
#include "partition/offload.h"

#include <stdio.h>

static const double MIB = 1 << 20;

/* Prints what the steps on the host take of the rank that they take longest. */
static void print_steps(const tr_config *c, const tr_layout *l) {
    const tr_mesh *mesh = &l->desc.mesh;
    const bool directs = tr_optim_row_of(l->desc.optimizer.kind)->by_tensor;
    tr_offload_traffic most = {0};
    char time[32];
    for (int pp = 0; pp < mesh->degree[TR_AXIS_PP]; pp++)
        for (int dp = 0; dp < mesh->degree[TR_AXIS_DP]; dp++) {
            const tr_param_memory memory = tr_layout_params(l, pp, dp);
            const tr_offload_traffic own = tr_offload_traffic_of(&memory, l->desc.dtype);
            if (tr_offload_seconds(c, own) > tr_offload_seconds(c, most)) most = own;
        }
    (void)printf(
        "         at the end of a step %.1f MiB of gradients%s and parameters go there and "
        "%.1f MiB return at %.3g GB/s, while cores move %.1f MiB at %.3g GB/s: %s stay exposed\n",
        most.down / MIB, directs ? ", directions" : "", most.up / MIB,
        tr_network_bytes(c, false) * 1e-9, most.host / MIB,
        tr_device_speed_of("cpu")->memory_bytes * 1e-9,
        cli_duration(tr_offload_seconds(c, most), time, sizeof time));
}

/* Returns true when some micro-batches of a training step are offloaded. */
static bool copies_activations(const tr_layout *l) {
    for (int r = 0; r < l->desc.mesh.degree[TR_AXIS_PP]; r++)
        if (tr_layout_host(l, r) > 0) return true;
    return false;
}

void cli_plan_offload(const tr_config *c, const tr_run_plan *p) {
    const tr_layout *l = p->layout;
    size_t bytes = 0;
    for (int r = 0; r < p->ranks; r++)
        if (p->memory[r].of[TR_MEMORY_OFFLOAD] > bytes) bytes = p->memory[r].of[TR_MEMORY_OFFLOAD];
    if (bytes > 0)
        (void)printf("\noffload  at most %.1f MiB a rank in host memory, %.1f MiB of a host\n",
                     (double)bytes / MIB, (double)p->host_bytes / MIB);
    if (l->desc.optimizer.offload) print_steps(c, l);
    if (l->desc.offload_stages > 0 && !copies_activations(l))
        (void)printf(
            "%s no activations: in this order no micro-batch of these stages waits for its "
            "backward for more than two actions\n",
            bytes > 0 ? "        " : "\noffload ");
}
