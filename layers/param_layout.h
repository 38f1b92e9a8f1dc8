/* Who owns a parameter: the one answer. The store, the optimizer, the norm, ties and checkpoints
 * read it; none of them asks which rank it is.
 *
 * The ranks of a stage hold different parts of a parameter (boxes of their own), and of each part
 * one or more replicas. */
#pragma once

#include "layers/param.h"

typedef struct tr_param_layout {
    tr_mesh_part replicas; /* the ranks that hold the same part as this one */
    tr_mesh_part sum;      /* the replicas whose gradients are summed: each computes a part of it */
    tr_mesh_part savers; /* the replicas that may write it to a checkpoint: data ranks take turns */
    int parts, part;     /* how many parts there are, and which one is here, in rank order */
    bool counted;        /* this rank takes the squared norm of its part */
    bool saves;          /* this rank is one of the savers */
} tr_param_layout;

/* The layout of a parameter that lives on the rank mesh->index. A further use of a tied parameter
 * is counted and saved where use 0 lives. TR_ERR_INTERNAL when `copies` do not divide an axis. */
tr_status tr_param_layout_make(const tr_param *param, const tr_mesh *mesh, tr_param_layout *out);
