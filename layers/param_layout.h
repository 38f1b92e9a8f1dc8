/* The ownership of a parameter. The store, the optimizer, the norm, ties and checkpoints use this
 * struct, and do not look at rank numbers.
 *
 * The ranks of a stage hold different parts (boxes) of a parameter, and each part has one or more
 * replicas. */
#pragma once

#include "layers/param.h"

typedef struct tr_param_layout {
    tr_mesh_part replicas; /* the ranks that hold the same part as this one */
    tr_mesh_part sum;      /* the replicas that sum their gradients: each computes a part */
    /* With data ranks in two factors: the replicas that then sum these sums. */
    tr_mesh_part across;
    tr_mesh_part owners; /* the data ranks among the replicas that may divide optimizer state */
    tr_mesh_part savers; /* the replicas that may write it to a checkpoint: data ranks take turns */
    int parts, part;     /* the number of parts, and this rank's part, in rank order */
    bool counted;        /* this rank computes the squared norm of its part */
    bool counted_in_tp;  /* does so for a norm that only tensor ranks sum, on every data rank */
    bool saves;          /* this rank is one of the savers */
    bool saves_portion;  /* and one of the first owners, if the state is divided */
} tr_param_layout;

/* Makes the layout of a parameter of the rank mesh->index. Another use of a tied parameter is
 * counted and saved by the ranks of use 0. Fails with TR_ERR_INTERNAL when `copies` do not divide
 * an axis. */
tr_status tr_param_layout_make(const tr_param *param, const tr_mesh *mesh, tr_param_layout *out);

/* A parameter that is one matrix. */
typedef struct tr_param_matrix {
    int64_t rows, cols;          /* of the whole matrix */
    bool rows_whole, cols_whole; /* this rank's part has all of them: of at least one of the two */
} tr_param_matrix;

/* Fails with TR_ERR_INTERNAL when the parameter is not one matrix that is divided along one
 * axis. */
tr_status tr_param_matrix_make(const tr_param *param, tr_param_matrix *out);

/* A portion begins at a multiple of this from its parameter's first element: the blocks of the
 * gradient's norm (device/elementwise.h). */
enum { TR_PARAM_BLOCK = 4096 };

/* Return the portion of the parameter's local elements that this rank, and that the owner at
 * `place`, updates with its optimizer state when its owners divide it (parallel.zero). Portions are
 * runs of whole blocks, except at the parameter's end, and differ by at most one block; parameters
 * take turns in which owners have one more. Of a parameter that is `whole` one owner has all
 * elements. All uses of a tied parameter have equal portions. A portion may be empty. With mesh
 * NULL nothing is divided: returns all elements. */
tr_range tr_param_portion(const tr_param *param, const tr_mesh *mesh);
tr_range tr_param_portion_of(const tr_param *param, const tr_mesh *mesh, int place);
/* Lists the places of the owners with a portion that is larger or smaller than that of the owner
 * before; it may list others, too. The owner before the first one is the last one. Returns the
 * number of places. */
enum { TR_PORTION_STEPS = 3 };
int tr_param_portion_steps(const tr_param *param, const tr_mesh *mesh, int place[TR_PORTION_STEPS]);
/* Returns true when this rank writes the next `count` elements: of the savers that are data ranks
 * the one with the fewest in load[dp] so far, the lowest of equals. All data ranks compute the same
 * turns. */
bool tr_param_layout_takes_turn(const tr_param_layout *layout, const tr_mesh *mesh, int64_t count,
                                int64_t *load);
