/* The links between ranks, as device.link, device.network and device.host_ranks describe them:
 * messages, sums of gradients and sums over tensor ranks take their times. Times are in the FLOPs
 * that a rank computes meanwhile at flops_per_s; 0: at the device's usual rate. */
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "pipeline/program/simulate.h"

/* Returns true when some ranks along this axis, or some neighbouring stages of a pipeline, are on
 * different hosts. */
bool tr_network_is_far(const tr_config *config, const tr_mesh *mesh, tr_axis axis);
/* Returns true when some data ranks of one run (tr_mesh.near) are on different hosts. */
bool tr_network_near_is_far(const tr_config *config, const tr_mesh *mesh);
/* Returns the bytes a second of a rank's link. */
double tr_network_bytes(const tr_config *config, bool far);
/* Returns true when some of this many ranks have a link without a key that says its bytes a second:
 * tr_network_bytes then returns the device's usual ones. */
bool tr_network_is_assumed(const tr_config *config, int ranks);
/* Returns flops_per_s, or the device's usual rate if it is 0. */
double tr_network_flops(const tr_config *config, double flops_per_s);
/* Returns the bytes a second between a rank's device and its host's memory, each way: those of
 * device.host_link; without it those of the link to other ranks, which may be faster than any link
 * to a host's memory, so at most those of the device's usual link. */
double tr_network_host_bytes(const tr_config *config);
tr_link tr_network_message(const tr_config *config, bool far, double flops_per_s);
/* Returns the link of copies between a rank's device and its host's memory. */
tr_link tr_network_host(const tr_config *config, double flops_per_s);
/* Returns the link over which all ranks of an axis sum: of the n values of an element a rank sends
 * and receives 2 (n - 1) / n times its own, in two rounds. */
tr_link tr_network_sum(const tr_config *config, const tr_mesh *mesh, tr_axis axis,
                       double flops_per_s);
/* Returns the link over which near data ranks (tr_mesh.near) sum and gather. */
tr_link tr_network_near(const tr_config *config, const tr_mesh *mesh, double flops_per_s);
/* Returns the link over which the data ranks sum gradients, for a byte of a message. When they
 * divide the updates (parallel.zero), each gets the sums of its portion: half the bytes, in one
 * round. With two factors near ranks sum, and then each its portion across. Without data ranks: the
 * link over which tensor ranks sum gradients that each computes in part. */
tr_link tr_network_reduce(const tr_config *config, const tr_mesh *mesh, double flops_per_s);
/* Returns the links of a step: those of messages, of sums of gradients, of gathers and of copies
 * to hosts. */
tr_simulated_links tr_network_links(const tr_config *config, const tr_mesh *mesh,
                                    double flops_per_s);
