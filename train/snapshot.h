/* The checkpoint's view of a parameter store: which global tensors this rank holds, and which of
 * them it writes. */
#pragma once

#include "ckpt/ckpt.h"
#include "train/store.h"

/* weights/, adam_m/ and adam_v/ (weights/ alone of TR_STORE_VALUES) of every parameter of this
 * rank, boxes as the registry has them, in *out (malloc'd; borrows the store's memory, which is
 * host memory). `write` is set on one rank for every box: replicas over tp are written by tensor
 * rank 0, replicas over dp by the data rank that has the fewest bytes so far (the same choice on
 * every rank, made in registry order). */
tr_status tr_snapshot_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                              int *count);
