/* Low-rank updates of linear layers (Hu et al. 2021, "LoRA"): y += alpha / rank * x A' B', with A
 * [rank, in] and B [out, rank] for each global tensor of a linear layer that model.lora.targets
 * names. Names and initial values are those of PEFT. Private to layers/.
 *
 * The factor is in t = alpha / rank * x A', so that A and B have PEFT's values, and in dt, the
 * gradient of x A'. Outputs split over the tensor ranks split B's rows, and every rank holds A
 * whole; inputs split over them split A's columns, and every rank holds B whole. A matrix that
 * every rank holds whole has a part of its gradient on each. */
#pragma once

#include "layers/part.h"

enum { TR_LORA_TARGETS = 3 }; /* the most of a linear layer */

/* Where a target is in its linear layer. */
typedef struct tr_lora_place {
    const char *name;     /* of the global tensor, after the layer's name */
    int64_t in, out;      /* of the whole tensor */
    tr_range inputs;      /* of this rank */
    const tr_range *part; /* outputs of this rank */
    int parts;
    bool splits_inputs, splits_outputs; /* over the tensor ranks */
    int copies;                         /* neighbouring tensor ranks with the same outputs */
    int64_t at;                         /* first column in the layer's local output */
} tr_lora_place;

typedef struct tr_lora_target {
    tr_param *a, *b; /* local [rank, in] and [out, rank] */
    int64_t at, out; /* columns of the linear layer's local output */
    tr_buffer t;     /* F..W (R, rank) */
    tr_buffer dt;    /* I..W (R, rank) */
    tr_layer_op down, up, grad_t, grad_x, grad_a, grad_b;
} tr_lora_target;

typedef struct tr_lora {
    tr_built_layer *layer;
    int64_t rank, in, out; /* in, out: local, of the linear layer */
    int targets;           /* 0: the layer has no update */
    tr_lora_target target[TR_LORA_TARGETS];
} tr_lora;

/* Adds the update of the tensor at `place` if layer->lora names it. */
tr_status tr_lora_add(tr_lora *lora, tr_built_layer *layer, const tr_lora_place *place);
void tr_lora_describe(tr_lora *lora, int64_t in, int64_t out);
/* Adds the update of x[rows, in] to y[rows, out], the linear layer's local product. */
tr_status tr_lora_forward(const tr_lora *lora, const tr_layer_io *io, tr_tensor x, tr_tensor y);
/* Fills t again, which W reads, from x[rows, in]: for a product that is not computed again. */
tr_status tr_lora_rebuild(const tr_lora *lora, const tr_layer_io *io, tr_tensor x);
/* Returns the FLOPs of that, after tr_lora_describe. */
double tr_lora_rebuild_flops(const tr_lora *lora);
/* Adds the update's part of the input gradient to dx[rows, in]. */
tr_status tr_lora_grad_input(const tr_lora *lora, const tr_layer_io *io, tr_tensor dy,
                             tr_tensor dx);
/* Writes the gradients of A and B, or adds to them (io->adds). */
tr_status tr_lora_grad_weight(const tr_lora *lora, const tr_layer_io *io, tr_tensor x,
                              tr_tensor dy);
