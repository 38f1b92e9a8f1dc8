#include "layers/linear.h"

#include "layers/tuning.h"

#include <stdio.h>

/* --- parameters ------------------------------------------------------------------------------- */

/* Makes the parameter of tensors first .. first + n - 1, which the same tensor ranks hold: of their
 * weights, or of their biases. */
static tr_status make_param(tr_built_layer *layer, const tr_linear_desc *d, int first, int n,
                            bool bias, tr_param **out) {
    tr_param *param;
    const int axis = !bias && d->conv1d; /* axis of the outputs */
    const char *what = bias ? "bias" : "weight";
    tr_slice slice[TR_LINEAR_TENSORS * TR_LINEAR_TENSORS];
    int slices = 0;
    TR_TRY(tr_built_param(layer, &param));
    for (int k = 0; k < n; k++) {
        const tr_linear_tensor *t = &d->tensor[first + k];
        int64_t shape[2] = {t->out, d->in};
        if (axis == 1) shape[0] = d->in, shape[1] = t->out;
        if (k == 0)
            TR_TRY(tr_param_describe(param, bias ? 1 : 2, shape, bias ? TR_INIT_ZERO : d->init,
                                     bias ? 0 : d->std, "%s.%s.%s", layer->layer.name, t->name,
                                     what));
        else TR_TRY(tr_param_add(param, axis, shape, "%s.%s.%s", layer->layer.name, t->name, what));
        for (int i = 0; i < t->parts; i++)
            slice[slices++] = (tr_slice){.range = t->part[i], .tensor = k};
    }
    param->init_inputs = !axis;
    param->is_linear = !bias;
    *out = param;
    if (d->split == TR_SPLIT_COLUMNS) {
        TR_TRY(tr_param_keep(param, axis, slice, slices));
        param->copies[TR_AXIS_TP] = d->tensor[first].copies;
        if (d->tensor[first].copies > 1) param->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    }
    const tr_slice inputs = {.range = d->inputs};
    if (d->split == TR_SPLIT_ROWS && !bias) TR_TRY(tr_param_keep(param, !axis, &inputs, 1));
    return TR_OK;
}

/* Returns true when tensors a and b have the same owners, and are both frozen or trained equally
 * fast, so that one parameter holds both. */
static bool alike(const tr_built_layer *layer, const tr_linear_desc *d, int a, int b, bool bias) {
    const char *what = bias ? "bias" : "weight";
    char name[2][2 * TR_NAME_SIZE];
    (void)snprintf(name[0], sizeof name[0], "%s.%s.%s", layer->layer.name, d->tensor[a].name, what);
    (void)snprintf(name[1], sizeof name[1], "%s.%s.%s", layer->layer.name, d->tensor[b].name, what);
    return d->tensor[a].copies == d->tensor[b].copies &&
           tr_tuning_alike(layer->shape.tuning, name[0], name[1]);
}

/* Makes one parameter for each run of tensors that are alike; joined, they are one local matrix. */
static tr_status make_params(tr_built_layer *layer, const tr_linear_desc *d, bool bias,
                             tr_param **first, int *count) {
    for (int k = 0, n; k < d->tensors; k += n) {
        tr_param *param;
        for (n = 1; k + n < d->tensors && alike(layer, d, k, k + n, bias);) n++;
        TR_TRY(make_param(layer, d, k, n, bias, &param));
        if (k == 0) *first = param;
        else param->joined = true;
        ++*count;
    }
    if (*count > 1 && d->conv1d && !bias)
        return TR_FAIL(TR_ERR_INTERNAL, "the columns of %s cannot be several parameters",
                       tr_param_name(*first));
    return TR_OK;
}

static tr_status make_updates(tr_linear *l, const tr_linear_desc *d) {
    int64_t at = 0;
    for (int k = 0; k < d->tensors; k++) {
        const tr_linear_tensor *t = &d->tensor[k];
        const tr_lora_place place = {.name = t->name,
                                     .in = d->in,
                                     .out = t->out,
                                     .inputs = d->inputs,
                                     .part = t->part,
                                     .parts = t->parts,
                                     .splits_inputs = d->split == TR_SPLIT_ROWS,
                                     .splits_outputs = d->split == TR_SPLIT_COLUMNS,
                                     .copies = t->copies,
                                     .at = at};
        TR_TRY(tr_lora_add(&l->lora, l->layer, &place));
        for (int i = 0; i < t->parts; i++) at += t->part[i].extent;
    }
    return TR_OK;
}

tr_status tr_linear_create(tr_linear *l, tr_built_layer *layer, const tr_linear_desc *d) {
    *l =
        (tr_linear){.layer = layer, .in = d->inputs.extent, .split = d->split, .conv1d = d->conv1d};
    for (int k = 0; k < d->tensors; k++)
        for (int i = 0; i < d->tensor[k].parts; i++) l->out += d->tensor[k].part[i].extent;
    TR_TRY(make_params(layer, d, false, &l->weight, &l->weights));
    if (d->bias) TR_TRY(make_params(layer, d, true, &l->bias, &l->biases));
    return make_updates(l, d);
}

/* --- operators -------------------------------------------------------------------------------- */

static bool fuses_bias(const tr_linear *l) {
    return l->bias && (l->split != TR_SPLIT_ROWS || l->adds_residual);
}

/* Describes the activations on both sides of the layer, which are not fused when an update comes
 * between. */
static void describe_activations(tr_linear *l) {
    const tr_model_shape *shape = &l->layer->shape;
    tr_rows_desc rows = {
        .rows = shape->rows, .width = l->out, .activation = l->activation, .dtype = shape->dtype};
    if (l->activates)
        tr_built_op(l->layer, &l->activate, TR_PHASE_F,
                    (tr_op_desc){.kind = TR_OP_ACTIVATION, .rows = rows});
    rows.width = l->in;
    if (l->activated)
        tr_built_op(l->layer, &l->activate_grad, TR_PHASE_I,
                    (tr_op_desc){.kind = TR_OP_ACTIVATION_DGRAD, .rows = rows});
}

/* Describes x' dy, or dy' x if the weight is [out, in], with the bias's gradient fused; or that
 * alone. */
static void describe_grad_weight(tr_linear *l) {
    const int64_t rows = l->layer->shape.rows;
    const tr_dtype dtype = l->layer->shape.dtype;
    l->has_dw = tr_params_grad_together(l->weight, l->weights);
    l->has_db = l->bias && tr_params_grad_together(l->bias, l->biases);
    tr_op_desc op = {
        .kind = TR_OP_MATMUL,
        .matmul = {.m = l->conv1d ? l->in : l->out,
                   .n = l->conv1d ? l->out : l->in,
                   .k = rows,
                   .a = dtype,
                   .b = dtype,
                   .c = tr_dtype_acc(dtype),
                   .trans_a = true,
                   .accumulate = true,
                   .fused = {.bias_grad = l->has_db, .bias_grad_of_a = l->has_db && !l->conv1d}}};
    if (!l->has_dw)
        op = (tr_op_desc){.kind = TR_OP_BIAS_GRAD,
                          .rows = {.rows = rows, .width = l->out, .dtype = dtype}};
    if (l->has_dw || l->has_db) tr_built_op(l->layer, &l->grad_weight, TR_PHASE_W, op);
}

void tr_linear_describe(tr_linear *l) {
    tr_built_layer *layer = l->layer;
    const int64_t rows = layer->shape.rows, in = l->in, out = l->out;
    const tr_dtype dtype = layer->shape.dtype;
    const bool fuses = l->lora.targets == 0;
    tr_matmul_desc y = {.m = rows,
                        .n = out,
                        .k = in,
                        .a = dtype,
                        .b = dtype,
                        .c = dtype,
                        .trans_b = !l->conv1d,
                        .fused = {.bias = fuses_bias(l),
                                  .residual = l->adds_residual,
                                  .activate = l->activates && fuses,
                                  .activation = l->activation}};
    tr_matmul_desc dx = {
        .m = rows,
        .n = in,
        .k = out,
        .a = dtype,
        .b = dtype,
        .c = dtype,
        .trans_b = l->conv1d,
        .fused = {.activate_grad = l->activated && fuses, .activation = l->activation}};
    tr_built_op(layer, &l->forward, TR_PHASE_F, (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = y});
    tr_built_op(layer, &l->grad_input, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = dx});
    describe_grad_weight(l);
    if (l->split == TR_SPLIT_ROWS) tr_built_slice_sums(layer, TR_LAYER_SUM_F, 1, out, 0);
    if (fuses) return;
    tr_lora_describe(&l->lora, in, out);
    describe_activations(l);
}

/* Returns the local weight, or its gradient, with the parameters joined to it. */
static tr_tensor matrix(const tr_linear *l, const void *data, tr_dtype dtype) {
    return l->conv1d ? tr_tensor_matrix(data, dtype, l->in, l->out)
                     : tr_tensor_matrix(data, dtype, l->out, l->in);
}

tr_status tr_linear_forward(const tr_linear *l, const tr_layer_io *io, tr_tensor x, tr_tensor aux,
                            tr_tensor residual, tr_tensor y) {
    const tr_dtype dtype = l->layer->shape.dtype;
    const bool apart = l->lora.targets > 0 && l->activates;
    const bool sums = l->split == TR_SPLIT_ROWS;
    const tr_tensor none = {0};
    const tr_tensor product = apart ? aux : sums ? tr_built_all(l->layer, io, l->all, y) : y;
    tr_op_args args = {.t = {[TR_MATMUL_A] = x,
                             [TR_MATMUL_B] = matrix(l, l->weight->value, dtype),
                             [TR_MATMUL_C] = product,
                             [TR_MATMUL_AUX] = apart ? none : aux}};
    if (fuses_bias(l)) args.t[TR_MATMUL_BIAS] = tr_tensor_vector(l->bias->value, dtype, l->out);
    if (l->adds_residual) args.t[TR_MATMUL_RESIDUAL] = residual;
    TR_TRY(tr_layer_op_run(&l->forward, io, args));
    TR_TRY(tr_lora_forward(&l->lora, io, x, product));
    if (apart) {
        tr_op_args activation = {.t = {[TR_ACTIVATION_X] = aux, [TR_ACTIVATION_Y] = y}};
        TR_TRY(tr_layer_op_run(&l->activate, io, activation));
    }
    return sums ? tr_built_sum_slice(l->layer, io, l->all, y) : TR_OK;
}

tr_status tr_linear_grad_input(const tr_linear *l, const tr_layer_io *io, tr_tensor dy,
                               tr_tensor aux, tr_tensor dx) {
    const bool apart = l->lora.targets > 0 && l->activated;
    const tr_tensor none = {0};
    tr_op_args args = {.t = {[TR_MATMUL_A] = dy,
                             [TR_MATMUL_B] = matrix(l, l->weight->value, l->layer->shape.dtype),
                             [TR_MATMUL_C] = dx,
                             [TR_MATMUL_AUX] = apart ? none : aux}};
    TR_TRY(tr_layer_op_run(&l->grad_input, io, args));
    TR_TRY(tr_lora_grad_input(&l->lora, io, dy, dx));
    if (apart) {
        tr_op_args slope = {.t = {[TR_ACTIVATION_DGRAD_DY] = dx,
                                  [TR_ACTIVATION_DGRAD_X] = aux,
                                  [TR_ACTIVATION_DGRAD_DX] = dx}};
        TR_TRY(tr_layer_op_run(&l->activate_grad, io, slope));
    }
    return TR_OK;
}

/* Computes the gradients of weight and bias. */
static tr_status base_grad_weight(const tr_linear *l, const tr_layer_io *io, tr_tensor x,
                                  tr_tensor dy) {
    const tr_dtype acc = tr_dtype_acc(l->layer->shape.dtype);
    if (!l->has_dw && !l->has_db) return TR_OK;
    if (!l->has_dw) {
        tr_op_args sum = {.t = {[TR_BIAS_GRAD_DY] = dy,
                                [TR_BIAS_GRAD_DBIAS] =
                                    tr_tensor_vector(tr_param_grad(l->bias).data, acc, l->out)}};
        return tr_layer_op_run(&l->grad_weight, io, sum);
    }
    const tr_tensor dw = matrix(l, tr_param_grad(l->weight).data, acc);
    tr_op_args args = {.t = {[TR_MATMUL_A] = l->conv1d ? x : dy,
                             [TR_MATMUL_B] = l->conv1d ? dy : x,
                             [TR_MATMUL_C] = dw}};
    if (l->has_db)
        args.t[TR_MATMUL_DBIAS] = tr_tensor_vector(tr_param_grad(l->bias).data, acc, l->out);
    return tr_layer_op_run(&l->grad_weight, io, args);
}

tr_status tr_linear_grad_weight(const tr_linear *l, const tr_layer_io *io, tr_tensor x,
                                tr_tensor dy) {
    TR_TRY(base_grad_weight(l, io, x, dy));
    return tr_lora_grad_weight(&l->lora, io, x, dy);
}

bool tr_linear_has_grads(const tr_linear *l) {
    return l->has_dw || l->has_db || l->lora.targets > 0;
}
