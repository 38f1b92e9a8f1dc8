#include "partition/network.h"

#include "device/speed.h"

#include <math.h>

/* Returns the distance between neighbours of an axis in the world. */
static int64_t stride_of(const tr_mesh *mesh, tr_axis axis) {
    int64_t stride = 1;
    for (int inner = (int)axis + 1; inner < TR_AXIS_COUNT; inner++) stride *= mesh->degree[inner];
    return stride;
}

/* Returns true when some groups of n ranks that fill blocks of `block` neighbours are on different
 * hosts. A host's border inside a block is between two members of some group; there is none when a
 * host has whole blocks. */
static bool crosses(const tr_config *c, const tr_mesh *mesh, int64_t n, int64_t block) {
    const int64_t world = (int64_t)mesh->degree[0] * stride_of(mesh, (tr_axis)0);
    const int64_t host = c->device.host_ranks;
    return n > 1 && host > 0 && host < world && host % block != 0;
}

bool tr_network_is_far(const tr_config *c, const tr_mesh *mesh, tr_axis axis) {
    const int64_t n = mesh->degree[axis];
    return crosses(c, mesh, n, n * stride_of(mesh, axis));
}

bool tr_network_near_is_far(const tr_config *c, const tr_mesh *mesh) {
    const int64_t n = tr_mesh_near(mesh);
    return crosses(c, mesh, n, n * stride_of(mesh, TR_AXIS_DP));
}

double tr_network_bytes(const tr_config *c, bool far) {
    if (far && c->device.network > 0) return c->device.network * 1e9;
    if (c->device.link > 0) return c->device.link * 1e9;
    return tr_device_speed_of(c->device.name)->link_bytes;
}

bool tr_network_is_assumed(const tr_config *c, int ranks) {
    const bool only_far = c->device.host_ranks == 1 && c->device.network > 0;
    return ranks > 1 && c->device.link <= 0 && !only_far;
}

double tr_network_host_bytes(const tr_config *c) {
    const double usual = tr_device_speed_of(c->device.name)->link_bytes;
    return c->device.host_link > 0 ? c->device.host_link * 1e9
                                   : fmin(tr_network_bytes(c, false), usual);
}

double tr_network_flops(const tr_config *c, double flops_per_s) {
    return flops_per_s > 0 ? flops_per_s : tr_device_speed_of(c->device.name)->flops_per_s;
}

tr_link tr_network_message(const tr_config *c, bool far, double flops_per_s) {
    const double rate = tr_network_flops(c, flops_per_s);
    const bool own = far && c->device.network_latency > 0;
    const double latency = own ? c->device.network_latency : c->device.link_latency;
    return (tr_link){.latency = latency * 1e-6 * rate, .per_byte = rate / tr_network_bytes(c, far)};
}

tr_link tr_network_host(const tr_config *c, double flops_per_s) {
    tr_link link = tr_network_message(c, false, flops_per_s);
    link.per_byte = tr_network_flops(c, flops_per_s) / tr_network_host_bytes(c);
    return link;
}

/* Returns the link over which n ranks sum. */
static tr_link sum_of(const tr_config *c, int64_t n, bool far, double flops_per_s) {
    const tr_link one = tr_network_message(c, far, flops_per_s);
    if (n == 1) return (tr_link){0};
    return (tr_link){.latency = 2 * one.latency,
                     .per_byte = 2 * (double)(n - 1) / (double)n * one.per_byte};
}

tr_link tr_network_sum(const tr_config *c, const tr_mesh *mesh, tr_axis axis, double flops_per_s) {
    return sum_of(c, mesh->degree[axis], tr_network_is_far(c, mesh, axis), flops_per_s);
}

tr_link tr_network_near(const tr_config *c, const tr_mesh *mesh, double flops_per_s) {
    return sum_of(c, tr_mesh_near(mesh), tr_network_near_is_far(c, mesh), flops_per_s);
}

tr_link tr_network_reduce(const tr_config *c, const tr_mesh *mesh, double flops_per_s) {
    if (mesh->degree[TR_AXIS_DP] == 1) return tr_network_sum(c, mesh, TR_AXIS_TP, flops_per_s);
    const int64_t near = tr_mesh_near(mesh), runs = mesh->degree[TR_AXIS_DP] / near;
    const double rounds = c->parallel.zero > 0 ? 0.5 : 1;
    const tr_link first = tr_network_near(c, mesh, flops_per_s);
    const tr_link across = sum_of(c, runs, tr_network_is_far(c, mesh, TR_AXIS_DP), flops_per_s);
    return (tr_link){.latency = rounds * first.latency + across.latency,
                     .per_byte = rounds * first.per_byte + across.per_byte / (double)near};
}

/* Returns the link over which the data ranks gather values: the second half of a sum. */
static tr_link gather_of(const tr_config *c, const tr_mesh *mesh, double flops_per_s) {
    const tr_link sum = tr_network_near(c, mesh, flops_per_s);
    return (tr_link){.latency = sum.latency / 2, .per_byte = sum.per_byte / 2};
}

tr_simulated_links tr_network_links(const tr_config *c, const tr_mesh *mesh, double flops_per_s) {
    return (tr_simulated_links){.near = tr_network_message(c, false, flops_per_s),
                                .far = tr_network_message(c, true, flops_per_s),
                                .line = (int)stride_of(mesh, TR_AXIS_PP),
                                .host = (int)c->device.host_ranks,
                                .sum = tr_network_reduce(c, mesh, flops_per_s),
                                .gather = gather_of(c, mesh, flops_per_s),
                                .copy = tr_network_host(c, flops_per_s)};
}
