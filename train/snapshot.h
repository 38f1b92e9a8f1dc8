/* The checkpoint's view of a parameter store: which global tensors this rank holds, and which of
 * them it writes. */
#pragma once

#include "ckpt/ckpt.h"
#include "train/store.h"

/* weights/, adam_m/ and adam_v/ (weights/ alone of TR_STORE_VALUES) of every parameter of this
 * rank, boxes as the registry has them, in *out (malloc'd; borrows the store's memory, which is
 * device memory). `write` is set on one rank for every box: of the ranks that may save it
 * (tr_param_layout), the data rank that writes the fewest elements so far. Every rank makes the
 * same choice, in registry order. */
tr_status tr_snapshot_tensors(const tr_store *store, const tr_mesh *mesh, tr_ckpt_tensor **out,
                              int *count);
