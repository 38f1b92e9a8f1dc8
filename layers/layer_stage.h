/* Stages made of consecutive layers of a model.
 *
 * Memory of a stage, per micro-batch: in each block the pieces of its layers in layer order, and in
 * front of a layer's first piece the layer's input, in the block of its input_life. Scratch: the
 * largest layer's, and behind it two gradients of boundaries that take turns. B keeps the I..W
 * pieces of one layer. */
#pragma once

#include "layers/model.h"
#include "layers/stage.h"

/* Costs and edges of all stages; stage k has layers first[k] to first[k+1] - 1 (first[stages + 1],
 * each with at least one). Costs are the layers' FLOPs. Scratch is that of the layers that are
 * prepared: of this rank's stages, when called after it. Release with tr_layer_table_free. */
tr_status tr_layer_table_make(const tr_model *model, const int *first, int stages,
                              tr_stage_table *out);
void tr_layer_table_free(tr_stage_table *table);

/* What a step's micro-batches read and write beside activations. Tensors of micro-batch k lie at
 * `tokens + k * token_stride`, and so on; strides in elements. Pointers that the stage does not use
 * may be NULL. */
typedef struct tr_layer_source {
    tr_step_state *state;  /* device memory */
    const int32_t *tokens; /* (batch, seq) a micro-batch: first stage */
    const int32_t *labels; /* (batch, seq) a micro-batch: last stage */
    int64_t token_stride;  /* of tokens and labels */
    double *loss;          /* f64[2] a micro-batch: last stage */
    int64_t loss_stride;   /* 2 when dense */
    int64_t first_sample;  /* offset of micro-batch 0's first sample from the step's first */
    int64_t sample_stride; /* from a micro-batch's first sample to the next one's */
} tr_layer_source;

/* Stage `index` of the cut, on the rank where its layers are prepared. The model outlives the
 * stage; the source is copied. Release with stage->ops->destroy. */
tr_status tr_layer_stage_create(const tr_model *model, const int *first, int stages, int index,
                                const tr_layer_source *source, tr_stage **out);
