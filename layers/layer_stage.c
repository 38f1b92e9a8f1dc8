#include "layers/layer_stage.h"

#include "base/memory.h"
#include "layers/rounding.h"
#include "layers/stage_flow.h"

#include <stdlib.h>
#include <string.h>

/* The place of a layer's step input. */
typedef struct step_place {
    const char *data;
    size_t stride;
} step_place;

typedef struct layer_stage {
    tr_stage stage;
    tr_stage_flow flow;
    tr_layer_source source;             /* a copy without its list of inputs */
    step_place (*step)[TR_LAYER_FLOWS]; /* [layers] */
    tr_op **add; /* [values]: adds parts of the value's gradient; NULL: not needed */
    /* By a parameter's index: adds its addend to its gradient; NULL: it has none, or is frozen */
    tr_op **round;
    bool addends; /* W writes addends, not gradients */
} layer_stage;

static const tr_stage_ops ops;
static void destroy(tr_stage *stage);

static tr_layer *layer_at(const layer_stage *s, int k) {
    return s->flow.model->layers[s->flow.first + k];
}

static tr_stage_input *input_at(const layer_stage *s, int k, int input) {
    return &s->flow.input[s->flow.layer[k].inputs + input];
}

static tr_stage_value *output_at(const layer_stage *s, int k, int output) {
    return &s->flow.value[s->flow.layer[k].outputs + output];
}

/* --- creation --------------------------------------------------------------------------------- */

static tr_status find_step_inputs(layer_stage *s, const tr_layer_source *source, int k) {
    const tr_layer *layer = layer_at(s, k);
    for (int i = 0; i < layer->step_inputs; i++) {
        const char *name = layer->step_input[i].name;
        int j = 0;
        while (j < source->inputs && strcmp(source->input[j].name, name) != 0) j++;
        if (j == source->inputs)
            return TR_FAIL(TR_ERR_INTERNAL,
                           "layer %s asks for step input \"%s\", which the data do not have",
                           layer->name, name);
        s->step[k][i] =
            (step_place){.data = source->input[j].data, .stride = source->input[j].stride};
    }
    return TR_OK;
}

/* Prepares the sums of gradients that have several parts. */
static tr_status prepare_adds(layer_stage *s) {
    for (int k = 0; k < s->flow.count; k++)
        for (int i = 0; i < layer_at(s, k)->inputs; i++) {
            const tr_stage_input *input = input_at(s, k, i);
            const tr_stage_value *value = &s->flow.value[input->value];
            if (!input->has_part || s->add[input->value]) continue;
            tr_dtype dtype = value->tensor.dtype;
            tr_op_desc add = {.kind = TR_OP_ADD,
                              .rows = {.rows = 1,
                                       .width = (int64_t)(value->bytes / tr_dtype_size(dtype)),
                                       .dtype = dtype}};
            TR_TRY(tr_op_prepare(&(tr_op_context){.device = s->source.device}, &add,
                                 &s->add[input->value]));
            if (s->add[input->value]->scratch_bytes > 0)
                return TR_FAIL(TR_ERR_INTERNAL,
                               "ADD needs scratch, which a stage does not give it");
        }
    return TR_OK;
}

/* Prepares the additions of what W writes to addends. */
static tr_status prepare_rounding(layer_stage *s) {
    const tr_model_shape *shape = &s->flow.model->shape;
    TR_TRY(tr_calloc((size_t)s->flow.model->params_count, sizeof(tr_op *), &s->round));
    for (int k = 0; k < s->flow.count; k++)
        for (int j = 0; j < layer_at(s, k)->params_count; j++) {
            const tr_param *param = &layer_at(s, k)->params[j];
            tr_op_desc desc;
            if (!param->addend) continue;
            s->addends = true;
            if (param->frozen) continue;
            const int use = tr_param_rounding_gradient(param, shape->tp_rank, shape->tp_size);
            TR_TRY(tr_param_rounding(param, use, param->count, &desc));
            TR_TRY(tr_op_prepare(&(tr_op_context){.device = s->source.device}, &desc,
                                 &s->round[param->index]));
            if (s->round[param->index]->scratch_bytes > 0)
                return TR_FAIL(TR_ERR_INTERNAL,
                               "QUANTIZE needs scratch, which a stage does not give it");
        }
    return TR_OK;
}

tr_status tr_layer_stage_create(const tr_model *model, const int *first, int stages, int index,
                                const tr_layer_source *source, tr_stage **out) {
    tr_status status = TR_OK;
    layer_stage *s = NULL;
    tr_flow_edge *edge = NULL;
    int edges = 0;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->stage = (tr_stage){.ops = &ops, .index = index};
    s->source = *source;
    s->source.input = NULL;
    TR_TRY_OUT(tr_flow_edges(model, first, stages, &edge, &edges));
    TR_TRY_OUT(tr_stage_flow_make(model, first, index, edge, edges, &s->flow));
    TR_TRY_OUT(tr_calloc((size_t)s->flow.count, sizeof *s->step, &s->step));
    TR_TRY_OUT(tr_calloc((size_t)s->flow.values, sizeof(tr_op *), &s->add));
    for (int k = 0; k < s->flow.count; k++) TR_TRY_OUT(find_step_inputs(s, source, k));
    TR_TRY_OUT(prepare_adds(s));
    TR_TRY_OUT(prepare_rounding(s));
out:
    free(edge);
    if (status == TR_OK) *out = &s->stage;
    else destroy(&s->stage);
    return status;
}

static void destroy(tr_stage *stage) {
    layer_stage *s = (layer_stage *)stage;
    for (int v = 0; s->add && v < s->flow.values; v++) tr_op_release(s->add[v]);
    for (int i = 0; s->round && i < s->flow.model->params_count; i++) tr_op_release(s->round[i]);
    tr_stage_flow_free(&s->flow);
    free(s->add);
    free(s->round);
    free(s->step);
    free(s);
}

/* --- memory of one action --------------------------------------------------------------------- */

/* Returns a value on this stage; absent when it is not alive or not read here. */
static tr_tensor value_at(const tr_stage_io *io, const tr_stage_value *value) {
    const void *data = NULL;
    if (value->in_edge >= 0) data = io->in[value->in_edge];
    else if (value->piece >= 0) data = io->piece[value->piece];
    return tr_flow_tensor(&value->tensor, data);
}

/* Returns the sum of a value's gradient, computed here or received. */
static tr_tensor gradient_of(const tr_stage_io *io, const tr_stage_value *value) {
    const void *data;
    if (value->in_edge >= 0) data = io->din[value->in_edge];
    else if (value->on_edge) data = io->dout[value->out_edge];
    else if (value->gradient_life == TR_LIFE_SCRATCH) data = io->scratch + value->gradient;
    else if (value->gradient_life == TR_LIFE_IW && io->backward)
        data = io->backward + value->gradient;
    else data = io->piece[value->gradient_piece];
    return tr_flow_tensor(&value->tensor, data);
}

/* Returns where the gradient of an input is written: its part, or the sum itself. */
static tr_tensor part_of(const layer_stage *s, const tr_stage_io *io, const tr_stage_input *input) {
    const tr_stage_value *value = &s->flow.value[input->value];
    if (!input->has_part) return gradient_of(io, value);
    if (input->f_writes_dx) return tr_flow_tensor(&value->tensor, io->piece[input->part_piece]);
    return tr_flow_tensor(&value->tensor, io->scratch + input->part);
}

/* Returns the tensors and memory that all actions of layer k use for micro-batch
 * io->micro_batch. */
static tr_layer_io layer_io(const layer_stage *s, const tr_stage_io *io, int k) {
    const tr_layer_source *source = &s->source;
    const tr_layer *layer = layer_at(s, k);
    int64_t m = io->micro_batch;
    tr_layer_io l = {.probe = source->probe,
                     .micro_batch = (int)m,
                     .stream = io->stream,
                     .state = source->state,
                     .sample = source->first_sample + m * source->sample_stride,
                     .forward_only = io->forward_only,
                     .adds = io->adds && !s->addends,
                     .piece = io->piece + s->flow.layer[k].piece,
                     .backward = io->backward,
                     .unkept = io->unkept,
                     .scratch = io->scratch};
    for (int i = 0; i < layer->inputs; i++)
        l.x[i] = value_at(io, &s->flow.value[input_at(s, k, i)->value]);
    for (int i = 0; i < layer->step_inputs; i++)
        l.step[i] = tr_flow_tensor(&layer->step_input[i],
                                   s->step[k][i].data + (size_t)m * s->step[k][i].stride);
    if (source->loss) l.loss = source->loss + m * source->loss_stride;
    return l;
}

/* Adds the addends of micro-batch io->micro_batch, which layer k has written, to its gradients. */
static tr_status add_to_sums(const layer_stage *s, const tr_stage_io *io, int k) {
    const tr_layer *layer = layer_at(s, k);
    for (int j = 0; s->addends && j < layer->params_count; j++) {
        const tr_param *param = &layer->params[j];
        const tr_op_args args = {
            .t = {[TR_QUANTIZE_X] = tr_tensor_vector(param->addend, TR_F32, param->count),
                  [TR_QUANTIZE_Y] = tr_tensor_vector(param->grad, TR_BF16, param->count)},
            .state = s->source.state,
            .sample = s->source.first_sample + io->micro_batch * s->source.sample_stride,
            .adds = io->adds};
        if (s->round[param->index]) TR_TRY(tr_op_run(s->round[param->index], io->stream, &args));
    }
    return TR_OK;
}

/* Lets the runner complete the parameters that layer k is about to read. */
static tr_status need(const layer_stage *s, const tr_stage_io *io, int k) {
    return io->need ? io->need(io->need_context, s->flow.count - 1 - k) : TR_OK;
}

/* --- F ---------------------------------------------------------------------------------------- */

/* Copies a value that is read here for the next stage that reads it. */
static tr_status pass_on(const tr_stage_io *io, const tr_stage_value *value) {
    const tr_tensor from = value_at(io, value);
    if (!from.data || value->out_edge < 0) return TR_OK;
    return tr_stream_copy(io->stream, io->out[value->out_edge], from.data, value->bytes);
}

static tr_status forward(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int v = 0; v < s->flow.values; v++)
        if (s->flow.value[v].in_edge >= 0) TR_TRY(pass_on(io, &s->flow.value[v]));
    for (int k = 0; k < s->flow.count; k++) {
        tr_layer *layer = layer_at(s, k);
        tr_layer_io l = layer_io(s, io, k);
        TR_TRY(need(s, io, k));
        for (int o = 0; o < layer->outputs; o++) {
            const tr_stage_value *value = output_at(s, k, o);
            l.y[o] = value->readers > 0 ? value_at(io, value)
                                        : tr_flow_tensor(&value->tensor, io->out[value->out_edge]);
        }
        for (int i = 0; i < layer->inputs && !io->forward_only; i++)
            if (layer->input[i].f_writes_dx) l.dx[i] = part_of(s, io, input_at(s, k, i));
        TR_TRY(layer->ops->forward(layer, &l));
        if (tr_layer_writes_in_forward(layer) && !io->forward_only) TR_TRY(add_to_sums(s, io, k));
        for (int o = 0; o < layer->outputs; o++) TR_TRY(pass_on(io, output_at(s, k, o)));
    }
    return TR_OK;
}

/* --- I and W ---------------------------------------------------------------------------------- */

/* Adds the part of an input to the gradient's sum; the first part of this stage is added to the
 * gradient that later stages sent. */
static tr_status add_part(const layer_stage *s, const tr_stage_io *io,
                          const tr_stage_input *input) {
    const tr_stage_value *value = &s->flow.value[input->value];
    tr_tensor sum = gradient_of(io, value), before = sum;
    if (input->begins) before = tr_flow_tensor(&value->tensor, io->dout[value->out_edge]);
    tr_op_args args = {
        .t = {[TR_ADD_A] = before, [TR_ADD_B] = part_of(s, io, input), [TR_ADD_Y] = sum},
        .scratch = io->scratch,
        .state = s->source.state};
    return tr_op_run(s->add[input->value], io->stream, &args);
}

/* Gives I, or B, the gradients of layer k. */
static tr_layer_io grad_io(const layer_stage *s, const tr_stage_io *io, int k) {
    const tr_layer *layer = layer_at(s, k);
    tr_layer_io l = layer_io(s, io, k);
    for (int o = 0; o < layer->outputs; o++) l.dy[o] = gradient_of(io, output_at(s, k, o));
    for (int i = 0; i < layer->inputs; i++)
        if (!layer->input[i].f_writes_dx) l.dx[i] = part_of(s, io, input_at(s, k, i));
    return l;
}

/* Adds layer k's parts of gradients that several layers compute. */
static tr_status add_parts(const layer_stage *s, const tr_stage_io *io, int k) {
    for (int i = layer_at(s, k)->inputs - 1; i >= 0; i--) {
        const tr_stage_input *input = input_at(s, k, i);
        if (input->has_part) TR_TRY(add_part(s, io, input));
    }
    return TR_OK;
}

/* Adds the addends of layer k after its W, and tells the runner that the layer's bucket is
 * complete. */
static tr_status complete(const layer_stage *s, const tr_stage_io *io, int k) {
    if (!tr_layer_writes_in_forward(layer_at(s, k))) TR_TRY(add_to_sums(s, io, k));
    return io->complete ? io->complete(io->complete_context, s->flow.count - 1 - k) : TR_OK;
}

static tr_status layer_grad_input(const layer_stage *s, const tr_stage_io *io, int k) {
    tr_layer *layer = layer_at(s, k);
    if (layer->no_backward) return TR_OK;
    const tr_layer_io l = grad_io(s, io, k);
    TR_TRY(need(s, io, k));
    TR_TRY(layer->ops->grad_input(layer, &l));
    return add_parts(s, io, k);
}

static tr_status grad_input(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->flow.count - 1; k >= 0; k--) TR_TRY(layer_grad_input(s, io, k));
    return TR_OK;
}

static tr_status layer_grad_weight(const layer_stage *s, const tr_stage_io *io, int k) {
    tr_layer *layer = layer_at(s, k);
    if (layer->no_backward) return TR_OK;
    tr_layer_io l = layer_io(s, io, k);
    for (int o = 0; o < layer->outputs; o++)
        if (layer->w_reads_dy[o]) l.dy[o] = gradient_of(io, output_at(s, k, o));
    TR_TRY(need(s, io, k));
    TR_TRY(layer->ops->grad_weight(layer, &l));
    return complete(s, io, k);
}

static tr_status grad_weight(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->flow.count - 1; k >= 0; k--) TR_TRY(layer_grad_weight(s, io, k));
    return TR_OK;
}

static tr_status layer_backward(const layer_stage *s, const tr_stage_io *io, int k) {
    tr_layer *layer = layer_at(s, k);
    if (layer->no_backward) return TR_OK;
    if (!layer->ops->backward) {
        TR_TRY(layer_grad_input(s, io, k));
        return layer_grad_weight(s, io, k);
    }
    const tr_layer_io l = grad_io(s, io, k);
    TR_TRY(need(s, io, k));
    TR_TRY(layer->ops->backward(layer, &l));
    TR_TRY(add_parts(s, io, k));
    return complete(s, io, k);
}

/* B: I and W of each layer, last layer first. The layers share one place for I..W, which also has
 * the gradients between layers. */
static tr_status backward(tr_stage *stage, const tr_stage_io *io) {
    const layer_stage *s = (const layer_stage *)stage;
    for (int k = s->flow.count - 1; k >= 0; k--) TR_TRY(layer_backward(s, io, k));
    return TR_OK;
}

static const tr_stage_ops ops = {.forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .backward = backward,
                                 .destroy = destroy};
