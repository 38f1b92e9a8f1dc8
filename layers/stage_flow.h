/* The tensors that a stage of layers makes, reads and passes on, and the places of these and of
 * their gradients. Planning and running use the same layout. Private to layers/.
 *
 * A tensor that several stages read goes from the stage that makes it to the first of them, and
 * from each to the next. Its gradient comes back the same way: every stage adds the parts of its
 * own layers, last layer first, to the gradient that it received. So the order of the sum is the
 * same under every cut. */
#pragma once

#include "layers/model.h"
#include "layers/stage.h"

/* A tensor: an output of a layer of the model. */
typedef struct tr_stage_value {
    int layer, output;
    tr_flow tensor;
    size_t bytes;          /* of the tensor */
    int in_edge, out_edge; /* in the table; -1: none */
    int readers;           /* inputs of the stage's layers that read it */
    tr_lifetime life;      /* the longest lifetime of its readers, if there are any */
    int piece;             /* the stage's piece that holds it; -1: on an edge */
    bool on_edge; /* an edge's tensor holds its gradient's sum, which is sent or received */
    /* How long its gradient's sum is kept here; scratch: between layers of one action. */
    tr_lifetime gradient_life;
    int gradient_piece; /* of the stage, F..I, F..W or I..W; -1: on an edge, or in scratch */
    size_t gradient;    /* its offset in scratch, or while B runs in the place of I..W */
} tr_stage_value;

/* An input of a layer of the stage. */
typedef struct tr_stage_input {
    int value;
    bool begins; /* begins the gradient's sum: no later layer of this stage reads the value */
    /* This input's part of the gradient, to be added to the sum: in scratch, or with f_writes_dx a
     * piece F..I. Not has_part: the layer writes it to the sum's place. */
    bool has_part, f_writes_dx;
    size_t part;
    int part_piece;
} tr_stage_input;

typedef struct tr_stage_layer {
    int inputs;  /* index of its first input among the stage's */
    int outputs; /* index of its first output among the values; the others follow */
    int piece;   /* its first piece among the stage's */
} tr_stage_layer;

typedef struct tr_stage_flow {
    const tr_model *model;
    int first, count; /* layers */
    tr_stage_layer *layer;
    tr_stage_input *input;
    tr_stage_value *value;
    int values;
    int pieces;
    size_t scratch;     /* the layers' own, and the gradients after it */
    size_t backward_iw; /* the same for the pieces I..W while B runs */
    size_t unkept;      /* the largest layer's */
} tr_stage_flow;

/* An edge between two stages of the cut first[stages + 1], and its value. */
typedef struct tr_flow_edge {
    int from, to, layer, output;
} tr_flow_edge;

/* Lists the edges in the order of the layers that read them. The caller frees the list with
 * free(). */
tr_status tr_flow_edges(const tr_model *model, const int *first, int stages, tr_flow_edge **edge,
                        int *edges);

/* Makes the flow of stage `index` of the cut. The caller releases it with tr_stage_flow_free, also
 * after a failure. */
tr_status tr_stage_flow_make(const tr_model *model, const int *first, int index,
                             const tr_flow_edge *edge, int edges, tr_stage_flow *out);
void tr_stage_flow_free(tr_stage_flow *flow);
/* Sums costs and bytes. The cost takes piece[flow->pieces]. */
void tr_stage_flow_cost(const tr_stage_flow *flow, tr_piece *piece, tr_stage_cost *cost);
