/* Sums in rank order over NCCL: the members exchange summands (all-to-all), each adds those of its
 * part with ADD_ROWS, and rounds once. An element's bits are those of host transports, for every
 * number of members, size and place. Private to comm/. */
#pragma once

#include "comm/nccl_impl.h"

typedef struct tr_nccl_sums tr_nccl_sums;

/* Makes the sums of a group with an open communicator, with a landing buffer of `bytes`
 * (tr_group_landing_bytes), and connects its members to each other. All members call it at the same
 * time. The caller closes *out, also after a failure, when it has closed the communicator. */
tr_status tr_nccl_sums_open(tr_nccl_comm *comm, tr_device *device, int n, int rank, size_t bytes,
                            tr_nccl_sums **out);
void tr_nccl_sums_close(tr_nccl_sums *sums);

/* Enqueue a sum on the communicator's stream, between tr_nccl_enter and tr_nccl_leave: those of
 * tr_group_start, tr_group_scatter_ranges and tr_group_scatter. */
tr_status tr_nccl_sums_reduce(tr_nccl_sums *sums, void *buffer, int64_t count, tr_dtype dtype,
                              tr_reduce op);
tr_status tr_nccl_sums_ranges(tr_nccl_sums *sums, const tr_scatter_range *range, int count,
                              tr_dtype dtype, tr_reduce op);
tr_status tr_nccl_sums_scatter(tr_nccl_sums *sums, void *whole, void *part, int64_t count,
                               tr_dtype dtype);
/* Enqueues in the same way a gather of FP32 elements that travel in BF16 (tr_group_gather_sums). */
tr_status tr_nccl_sums_gather(tr_nccl_sums *sums, const tr_gather_range *range, int count);
/* Returns NCCL's type (ncclDataType_t) of an element. */
int tr_nccl_type(tr_dtype dtype);
