/* Stages made of consecutive layers of a model.
 *
 * Each block of a stage's micro-batch has the pieces of its layers in layer order, and after a
 * layer's pieces those of its outputs that the stage itself reads. Scratch is the largest layer's,
 * followed by the gradients between the stage's layers. B keeps the I..W pieces of one layer. */
#pragma once

#include "layers/model.h"
#include "layers/stage.h"

/* Makes the costs and edges of all stages; stage k has layers first[k] to first[k+1] - 1
 * (first[stages + 1], each with at least one). Costs are the layers' FLOPs. Scratch counts only
 * prepared layers, that is this rank's stages after they are prepared. The caller releases *out
 * with tr_stage_table_free. */
tr_status tr_layer_table_make(const tr_model *model, const int *first, int stages,
                              tr_stage_table *out);

/* Adds the step inputs that layers first .. end - 1 ask for, each name once, to
 * input[TR_STEP_INPUTS]. Fails with TR_ERR_INTERNAL when two layers ask for different shapes of
 * one. */
enum { TR_STEP_INPUTS = 8 };
tr_status tr_layer_step_inputs(const tr_model *model, int first, int end, tr_flow *input,
                               int *inputs);

/* A step input in device memory: micro-batch k's is at `data` + k * stride bytes. */
typedef struct tr_step_data {
    char name[TR_FLOW_NAME];
    const void *data;
    size_t stride;
} tr_step_data;

/* Data that a step's micro-batches read and write in addition to activations. */
typedef struct tr_layer_source {
    tr_device *device;
    tr_step_state *state;      /* device memory */
    const tr_step_data *input; /* [inputs]: includes all that the stage's layers ask for */
    int inputs;
    double *loss;         /* for each micro-batch, from the layer that computes the loss; or NULL */
    int64_t loss_stride;  /* to the next micro-batch's */
    int64_t first_sample; /* offset of micro-batch 0's first sample from the step's first */
    int64_t sample_stride;       /* from a micro-batch's first sample to the next one's */
    const tr_layer_probe *probe; /* of the layers' operators; NULL: none */
} tr_layer_source;

/* Creates stage `index` of the cut, on the rank where its layers are prepared. The model must
 * outlive the stage; the source is copied. Fails with TR_ERR_INTERNAL when the source lacks a step
 * input. The caller releases it with stage->ops->destroy. */
tr_status tr_layer_stage_create(const tr_model *model, const int *first, int stages, int index,
                                const tr_layer_source *source, tr_stage **out);
