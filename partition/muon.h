/* Muon's direction of a matrix (Jordan et al. 2024): five Newton-Schulz steps take the momentum,
 * divided by its norm, to nearly the nearest matrix with orthonormal rows or columns. The part of a
 * tensor rank is stepped from the left or from the right, on the side that the ranks do not divide,
 * so that they exchange only sums of its products with itself. */
#pragma once

#include "device/op.h"
#include "layers/param_layout.h"

enum { TR_MUON_STEPS = 5, TR_MUON_TURNS = 2 };

typedef struct tr_muon {
    int64_t rows, cols; /* of this rank's part */
    int64_t side;       /* the products of rows, or of columns, with each other are [side, side] */
    bool left;          /* of rows */
    bool sums;          /* the tensor ranks sum them */
    double length;      /* of the step: the direction's factor */
    tr_dtype direction; /* its type: f32, in f64 models f64 */
    tr_dtype dtype;     /* of the steps: bf16 in models of 16 bits, else the direction's */
} tr_muon;

/* Fails like tr_param_matrix_make. */
tr_status tr_muon_make(const tr_param *param, const tr_param_layout *layout, tr_muon *out);

/* The memory in which a rank's matrices are stepped (train/newton_schulz.h). */
typedef struct tr_muon_room {
    size_t part, square;      /* bytes of the largest part, and of the largest product, aligned */
    int64_t matrices, summed; /* summed: those of which tensor ranks sum the products */
} tr_muon_room;

void tr_muon_room_add(tr_muon_room *room, const tr_muon *muon);
/* Returns how many matrices are stepped in turn: two, so that one's sum travels while the other is
 * computed, or one where there are no sums, or no second matrix. */
int tr_muon_room_turns(const tr_muon_room *room);
/* Returns the bytes of a part and a product for each turn, and of those with which a step ends. */
size_t tr_muon_room_bytes(const tr_muon_room *room);

/* Describe the division of the direction by the norm of the whole matrix, in its memory; its cast
 * to the steps' type and memory; and the cast back. */
tr_op_desc tr_muon_rescale(const tr_muon *muon, int parts);
tr_op_desc tr_muon_load(const tr_muon *muon);
tr_op_desc tr_muon_store(const tr_muon *muon);
/* With X = a^k Z, the step X = a X + (b A + c A^2) X, A = X X', is Z = Z + (P + S) Z. Describe P,
 * the product of Z and itself in step k from 0; S, that of P and itself; P + S; and the new Z. From
 * the right, A is X' X, and X comes first in each product. */
tr_op_desc tr_muon_product(const tr_muon *muon, int k);
tr_op_desc tr_muon_square(const tr_muon *muon);
tr_op_desc tr_muon_sum(const tr_muon *muon);
tr_op_desc tr_muon_apply(const tr_muon *muon);
