/* The weights of a checkpoint as whole tensors, one after the other, for export. */
#pragma once

#include "ckpt/ckpt.h"

typedef struct tr_ckpt_reader tr_ckpt_reader;

/* Opens a step (-1: the newest valid one). Fails with TR_ERR_NOFILE when there is no such step,
 * like tr_ckpt_none when there is none at all, and with TR_ERR_DATA when it is not valid. Not
 * collective. */
tr_status tr_ckpt_reader_open(const char *root, int64_t step, tr_ckpt_reader **out);
void tr_ckpt_reader_close(tr_ckpt_reader *reader);
const tr_ckpt_state *tr_ckpt_reader_state(const tr_ckpt_reader *reader);

/* A tensor of the group "weights/", under its own name. */
typedef struct tr_ckpt_weight {
    const char *name;
    int rank;
    int64_t shape[TR_PARAM_RANK];
    int64_t first_part; /* for tr_ckpt_reader_read */
} tr_ckpt_weight;

/* Lists them, ascending by name, in *out (malloc'd; the names are the reader's). */
tr_status tr_ckpt_reader_list(const tr_ckpt_reader *reader, tr_ckpt_weight **out, int64_t *count);

/* Returns the tensor of a name in weight[count], which is ascending by name, or NULL. */
const tr_ckpt_weight *tr_ckpt_weight_find(const tr_ckpt_weight *weight, int64_t count,
                                          const char *name);

/* Reads and verifies a tensor of the list, and passes it to `take` in runs of elements:
 * values[count] are those from the row-major number `at` on. Together the runs are the tensor;
 * their order depends on the layout that saved it. Stops at the first failure of `take`. */
tr_status tr_ckpt_reader_read(tr_ckpt_reader *reader, const tr_ckpt_weight *weight,
                              tr_status (*take)(void *context, int64_t at, int64_t count,
                                                const float *values),
                              void *context);
