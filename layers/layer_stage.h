/* Stages made of consecutive layers of a model.
 *
 * Memory of a stage, per micro-batch: in each block the pieces of its layers in layer order, and
 * behind a layer's pieces those of its outputs that the stage reads itself. Scratch: the largest
 * layer's, and behind it the gradients between the stage's layers. B keeps the I..W pieces of one
 * layer. */
#pragma once

#include "layers/model.h"
#include "layers/stage.h"

/* Costs and edges of all stages; stage k has layers first[k] to first[k+1] - 1 (first[stages + 1],
 * each with at least one). Costs are the layers' FLOPs. Scratch is that of the layers that are
 * prepared: of this rank's stages, when called after it. Release with tr_layer_table_free. */
tr_status tr_layer_table_make(const tr_model *model, const int *first, int stages,
                              tr_stage_table *out);
void tr_layer_table_free(tr_stage_table *table);

/* The step inputs that layers first .. end - 1 ask for, each name once, are added to
 * input[TR_STEP_INPUTS]. TR_ERR_INTERNAL when two layers ask for different shapes of one. */
enum { TR_STEP_INPUTS = 8 };
tr_status tr_layer_step_inputs(const tr_model *model, int first, int end, tr_flow *input,
                               int *inputs);

/* A step input in device memory: micro-batch k's lies at `data` + k * stride bytes. */
typedef struct tr_step_data {
    char name[TR_FLOW_NAME];
    const void *data;
    size_t stride;
} tr_step_data;

/* What a step's micro-batches read and write besides activations. */
typedef struct tr_layer_source {
    tr_device *device;
    tr_step_state *state;      /* device memory */
    const tr_step_data *input; /* [inputs]: at least those that the stage's layers ask for */
    int inputs;
    double *loss;          /* f64[2] a micro-batch, of the layer that computes it; or NULL */
    int64_t loss_stride;   /* 2 when dense */
    int64_t first_sample;  /* offset of micro-batch 0's first sample from the step's first */
    int64_t sample_stride; /* from a micro-batch's first sample to the next one's */
} tr_layer_source;

/* Stage `index` of the cut, on the rank where its layers are prepared. The model outlives the
 * stage; the source is copied. TR_ERR_INTERNAL for a step input that the source does not have.
 * Release with stage->ops->destroy. */
tr_status tr_layer_stage_create(const tr_model *model, const int *first, int stages, int index,
                                const tr_layer_source *source, tr_stage **out);
