/* The checkpoint's view of a parameter store: which global tensors this rank holds, and which of
 * them it writes. */
#pragma once

#include "ckpt/ckpt.h"
#include "train/store.h"

/* Lists weights/ and the groups of the optimizer's states (tr_optim_row.state; none of a store
 * without gradients) of every parameter of this rank, with the registry's boxes, in *out (malloc'd;
 * it refers to the store's device memory). Of masters and states that data ranks divide, a rank
 * lists the boxes of its own elements. Sets `write` on one rank for every box (tr_written_make). */
tr_status tr_store_list_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                                int *count);
/* Lists what ranks that hold the same parameters must have in common, for tr_ckpt_compare_replicas:
 * the masters, or where data ranks divide them, the values. */
tr_status tr_store_list_replicas(const tr_store *store, tr_ckpt_tensor **out, int *count);
