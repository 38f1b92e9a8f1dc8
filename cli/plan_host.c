#include "cli/plan_host.h"

#include "cli/plan_traffic.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "base/text.h"
#include "device/speed.h"
#include "partition/network.h"
#include "partition/traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double MIB = 1 << 20;

static void print_steps(const tr_config *c, const tr_layout *l) {
    const bool directs = tr_optim_row_of(l->desc.optimizer.kind)->by_tensor;
    const tr_offload_traffic most = tr_traffic_host_steps(c, l);
    char time[32];
    (void)printf(
        "         at the end of a step %.1f MiB of gradients%s and parameters go there and "
        "%.1f MiB return at %.3g GB/s, while cores move %.1f MiB at %.3g GB/s: %s stay exposed\n",
        most.down / MIB, directs ? ", directions" : "", most.up / MIB,
        tr_network_host_bytes(c) * 1e-9, most.host / MIB,
        tr_device_speed_of("cpu")->memory_bytes * 1e-9,
        cli_duration(tr_offload_seconds(c, most), time, sizeof time));
}

/* Returns true when some micro-batches of a training step are offloaded. */
static bool copies_activations(const tr_layout *l) {
    for (int r = 0; r < l->desc.mesh.degree[TR_AXIS_PP]; r++)
        if (tr_layout_host(l, r) > 0) return true;
    return false;
}

/* Prints the most that a rank, and a host, keep of a class of host memory; false: nothing. */
static bool print_kept(const tr_config *c, const tr_run_plan *p, tr_memory kind) {
    const int host = c->device.host_ranks ? (int)c->device.host_ranks : p->ranks;
    size_t most = 0, most_of_host = 0, sum = 0;
    for (int r = 0; r < p->ranks; r++) {
        const size_t bytes = p->memory[r].of[kind];
        sum = (r % host ? sum : 0) + bytes;
        most = tr_max_size(most, bytes);
        most_of_host = tr_max_size(most_of_host, sum);
    }
    if (most > 0)
        (void)printf("\n%-8s at most %.1f MiB a rank in host memory, %.1f MiB of a host%s\n",
                     tr_device_memory_name(kind), (double)most / MIB, (double)most_of_host / MIB,
                     p->memory[0].apart ? "" : " (part of the sum above)");
    return most > 0;
}

void cli_plan_host(const tr_config *c, const tr_run_plan *p) {
    const tr_layout *l = p->layout;
    (void)print_kept(c, p, TR_MEMORY_SNAPSHOT);
    const bool keeps = print_kept(c, p, TR_MEMORY_OFFLOAD);
    if (l->desc.optimizer.offload) print_steps(c, l);
    if (l->desc.offload_stages > 0 && !copies_activations(l))
        (void)printf(
            "%s no activations: in this order no micro-batch of these stages waits for its "
            "backward for more than two actions\n",
            keeps ? "        " : "\noffload ");
}

typedef struct remedies {
    const char *text[6];
    int count;
} remedies;

static void add_remedy(remedies *r, const char *text) {
    r->text[r->count++] = text;
}

/* Adds what takes less of the activations in the host's memory. */
static void add_for_activations(remedies *r, const tr_config *c, const tr_layout *l) {
    if (!copies_activations(l)) return;
    const bool several =
        l->desc.offload_stages > 1 && l->desc.schedule->stages > l->desc.offload_first + 1;
    add_remedy(r, several ? "offload fewer stages" : "offload no activations");
    if (strcmp(c->model.recompute, tr_recompute_name(TR_RECOMPUTE_FULL)) != 0)
        add_remedy(r, "set train.recompute to full");
}

static bool is_allowed(const tr_config *c) {
    const bool allowed = tr_config_check(c, 0) == TR_OK;
    tr_error_clear();
    return allowed;
}

/* Adds what takes less of the optimizer's state in the host's memory. */
static tr_status add_for_optimizer(remedies *r, const tr_config *c) {
    tr_config *changed;
    TR_TRY(tr_calloc(1, sizeof *changed, &changed));
    *changed = *c;
    (void)snprintf(changed->optim.moments, sizeof changed->optim.moments, "int8");
    if (strcmp(c->optim.moments, "int8") != 0 && is_allowed(changed))
        add_remedy(r, "set optim.moments to int8");
    *changed = *c;
    changed->parallel.zero = 1;
    if (c->parallel.zero == 0 && tr_config_near(c) > 1 && is_allowed(changed))
        add_remedy(r, "set parallel.zero to 1");
    free(changed);
    return TR_OK;
}

static void add_for_hosts(remedies *r, const tr_config *c, int ranks) {
    if (ranks == 1 || c->device.host_ranks == 1)
        add_remedy(r,
                   "divide the model among ranks on more hosts (parallel.pp, device.host_ranks)");
    else if (c->device.host_ranks == 0)
        add_remedy(r, "set device.host_ranks, if the ranks are on several hosts");
    else add_remedy(r, "put fewer ranks on a host (device.host_ranks)");
}

const char *cli_plan_keeper(const tr_config *c, char *text, size_t size) {
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check has read it */
    const bool offloads = offload.optimizer || offload.stages > 0;
    const bool copies = c->checkpoint.background;
    (void)snprintf(text, size, "%s%s%s%s keep%s", offloads ? "device.offload " : "",
                   offloads ? c->device.offload : "", offloads && copies ? " and " : "",
                   copies ? "checkpoint.background" : "", offloads && copies ? "" : "s");
    return text;
}

tr_status cli_plan_host_excess(const tr_config *c, const tr_run_plan *p, char *text, size_t size) {
    remedies r = {.count = 0};
    char keeper[192], kept[32], more[32], limit[32];
    add_for_activations(&r, c, p->layout);
    if (p->layout->desc.optimizer.offload) TR_TRY(add_for_optimizer(&r, c));
    if (c->checkpoint.background) add_remedy(&r, "set checkpoint.background to false");
    add_for_hosts(&r, c, p->ranks);
    (void)snprintf(text, size,
                   "%s %s in the memory of a host, %s more than the %s that its ranks may take "
                   "there (%s); ",
                   cli_plan_keeper(c, keeper, sizeof keeper),
                   tr_text_memory(p->host_bytes, kept, sizeof kept),
                   tr_text_memory(p->host_bytes - p->host_limit, more, sizeof more),
                   tr_text_memory(p->host_limit, limit, sizeof limit),
                   c->device.host_memory ? "device.host_memory" : "free memory");
    for (int k = 0; k < r.count; k++)
        tr_text_add(text, size, "%s%s", k == 0 ? "" : k + 1 < r.count ? ", " : ", or ", r.text[k]);
    return TR_OK;
}
