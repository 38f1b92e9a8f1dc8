/* Translates a config into the engine's terms. */
#pragma once

#include "comm/comm.h"
#include "config/batches.h"
#include "layers/model.h"
#include "partition/layout.h"
#include "pipeline/orders/check.h"

/* Returns true when parallel.schedule is auto. Its order takes long to make. */
bool tr_request_is_auto(const tr_config *config);
/* Opens and checks the order of a step on one data rank; tr_order_make makes those that depend on
 * the model. Fails like tr_schedule_open, tr_schedule_check and tr_config_check_offload_stages. The
 * caller releases *out with tr_schedule_destroy. */
tr_status tr_request_schedule(const tr_config *config, tr_schedule **out,
                              tr_schedule_report *report);
/* The orders of a run's training steps: of train.batch, and of the smaller batches of
 * train.batch_warmup, on the same stages. */
typedef struct tr_orders {
    tr_schedule *schedule; /* of train.batch */
    tr_smaller_batch smaller[TR_CONFIG_WARMUPS];
    int smaller_count;
} tr_orders;

/* Opens and checks the orders of all batches. *report is that of the first order with sums that do
 * not ascend, else that of train.batch. Fails like tr_request_schedule. The caller releases *out
 * with tr_orders_close. */
tr_status tr_request_orders(const tr_config *config, tr_orders *out, tr_schedule_report *report);
void tr_orders_close(tr_orders *orders);
/* Writes what train.precision and train.deterministic cost to text[size]: on a GPU, unless they are
 * BF16 and false; on a CPU what FP16 is there, and BF16 without fast BF16 instructions; otherwise
 * "". */
void tr_request_costs(const tr_config *config, char *text, size_t size);
/* Returns the mesh as its first rank sees it. */
tr_mesh tr_request_mesh(const tr_config *config);
/* Returns the layout of the rank at mesh->index, which uses the orders. */
tr_layout_desc tr_request_layout(const tr_config *config, const tr_orders *orders,
                                 const tr_mesh *mesh);
/* Returns how ranks sum gradients: parallel.reduce. */
tr_reduce tr_request_reduce(const tr_config *config);
/* Returns which sums NCCL's groups must add by themselves. */
tr_own_sums tr_request_own_sums(const tr_config *config);
/* Returns what parallel.transport asks for. */
tr_plane tr_request_plane(const tr_config *config);
/* Computes the bytes that a rank may plan: device.memory, or an equal part of the free memory of
 * the device, which `sharers` ranks share. */
tr_status tr_request_memory(const tr_config *config, tr_device *device, int sharers, size_t *out);
/* Computes the bytes of a host's memory that the offloads of its ranks may take:
 * device.host_memory, or what is free on this one. SIZE_MAX: not known, because `device` only
 * stands for a GPU of another machine. */
tr_status tr_request_host_memory(const tr_config *config, tr_device *device, size_t *out);
