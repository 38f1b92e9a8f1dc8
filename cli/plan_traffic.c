#include "cli/plan_traffic.h"

#include "device/speed.h"
#include "partition/network.h"

#include <math.h>
#include <stdio.h>

static const double MIB = 1 << 20;

const char *cli_duration(double seconds, char *text, size_t size) {
    const struct {
        double below, unit;
        const char *format;
    } scale[] = {{1, 1e-3, "%.3g ms"},
                 {600, 1, "%.3g s"},
                 {7200, 60, "%.0f min"},
                 {172800, 3600, "%.1f h"},
                 {INFINITY, 86400, "%.0f days"}};
    size_t i = 0;
    while (seconds >= scale[i].below) i++;
    (void)snprintf(text, size, scale[i].format, seconds / scale[i].unit);
    return text;
}

void cli_plan_links(const tr_config *c, int ranks) {
    if (!tr_network_is_assumed(c, ranks)) return;
    (void)printf("links    %.3g GB/s between ranks is assumed: set device.link, and for links "
                 "between hosts device.network (docs/layout.md)\n",
                 tr_network_bytes(c, false) * 1e-9);
}

static double bytes_of(const tr_config *c, tr_reach over) {
    return over == TR_REACH_TO_HOST ? tr_network_host_bytes(c)
                                    : tr_network_bytes(c, over != TR_REACH_INSIDE_HOSTS);
}

/* Prints a line about one kind of traffic: what it takes, without its end. */
static void print_moving(const tr_config *c, const char *name, const tr_traffic *t,
                         const char *what, double rate) {
    char time[32], first[32] = "";
    if (t->over == TR_REACH_BOTH)
        (void)snprintf(first, sizeof first, "%.3g and ", tr_network_bytes(c, false) * 1e-9);
    (void)printf("%-8s %.1f MiB of %s take %s at %s%.3g GB/s, ", name, t->bytes / MIB, what,
                 cli_duration(t->moving / rate, time, sizeof time), first,
                 bytes_of(c, t->over) * 1e-9);
}

/* Prints a line about one kind of traffic for which a rank waits. */
static void print_exposed(const tr_config *c, const char *name, const tr_traffic *t,
                          const char *what, double rate) {
    char time[32];
    print_moving(c, name, t, what, rate);
    (void)printf("of which %s stay exposed\n", cli_duration(t->exposed / rate, time, sizeof time));
}

static void print_messages(const tr_config *c, const tr_traffic *t, double rate) {
    char what[64], longer[32];
    if (t->count == 0) return;
    (void)snprintf(what, sizeof what, "activations and gradients in %lld messages",
                   (long long)t->count);
    print_moving(c, "messages", t, what, rate);
    (void)printf("and make the step %s longer\n",
                 cli_duration(t->exposed / rate, longer, sizeof longer));
}

static void print_sums(const tr_config *c, const tr_layout *l, const tr_traffic *t, double rate) {
    const tr_dtype dtype = tr_optim_grad_dtype(l->desc.optimizer, l->desc.dtype);
    char what[64];
    if (t->count == 0) return;
    (void)snprintf(what, sizeof what, "%sgradients in %lld bucket%s",
                   tr_reduce_wire(l->desc.reduce, dtype) == TR_BF16 ? "bf16 " : "",
                   (long long)t->count, t->count == 1 ? "" : "s");
    print_exposed(c, "reduce", t, what, rate);
}

static void print_ties(const tr_config *c, const tr_traffic *t, double rate) {
    if (t->count > 0) print_exposed(c, "tied", t, "gradients of a tied table", rate);
}

static void print_gathers(const tr_config *c, const tr_layout *l, const tr_traffic *t,
                          double rate) {
    char what[64];
    if (t->count == 0) return;
    (void)snprintf(what, sizeof what, "%sparameters in %lld gather%s",
                   l->desc.zero < 3 ? "updated " : "", (long long)t->count,
                   t->count == 1 ? "" : "s");
    print_exposed(c, "gather", t, what, rate);
}

static void print_tensor_sums(const tr_config *c, const tr_layout *l, const tr_traffic *t,
                              double rate) {
    char what[64];
    if (l->desc.mesh.degree[TR_AXIS_TP] == 1) return;
    (void)snprintf(what, sizeof what, "activations and gradients in %lld %s", (long long)t->count,
                   l->model->shape.sequence ? "collectives" : "sums");
    print_exposed(c, "tensor", t, what, rate);
}

static void print_update(const tr_config *c, const tr_step_traffic *t, double rate) {
    char time[32];
    const tr_optim_config optimizer = tr_optim_of(c);
    const bool directs = tr_optim_row_of(optimizer.kind)->by_tensor;
    (void)printf("update   %.1f MiB of gradients%s%s take %s at %.4g GB/s of memory\n",
                 t->update.bytes / MIB,
                 !optimizer.offload ? ", optimizer state and parameters"
                 : directs          ? " and directions for their norms"
                                    : " for their norms",
                 t->update.flops > 0 ? ", and muon's products," : "",
                 cli_duration(t->updating / rate, time, sizeof time),
                 tr_device_speed_of(c->device.name)->memory_bytes * 1e-9);
}

static void print_products(const tr_config *c, const tr_traffic *t, double rate) {
    char what[64];
    if (t->count == 0) return;
    (void)snprintf(what, sizeof what, "muon's products in %lld sums over tensor ranks",
                   (long long)t->count);
    print_exposed(c, "products", t, what, rate);
}

tr_status cli_plan_traffic(const tr_config *c, const tr_run_plan *p, double rate,
                           tr_step_traffic *out) {
    const tr_layout *l = p->layout;
    TR_TRY(tr_traffic_of(c, l, rate, out));
    cli_plan_links(c, p->ranks);
    print_messages(c, &out->of[TR_TRAFFIC_MESSAGES], rate);
    print_sums(c, l, &out->of[TR_TRAFFIC_SUMS], rate);
    print_ties(c, &out->of[TR_TRAFFIC_TIES], rate);
    print_gathers(c, l, &out->of[TR_TRAFFIC_GATHERS], rate);
    print_tensor_sums(c, l, &out->of[TR_TRAFFIC_TENSOR], rate);
    if (out->of[TR_TRAFFIC_COPIES].bytes > 0)
        print_exposed(c, "copies", &out->of[TR_TRAFFIC_COPIES], "activations to the host and back",
                      rate);
    print_update(c, out, rate);
    print_products(c, &out->of[TR_TRAFFIC_PRODUCTS], rate);
    return TR_OK;
}
