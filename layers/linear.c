/* Column- and row-parallel linear layers (Shoeybi et al. 2019, section 3). */
#include "layers/piece.h"

void tr_linear_describe(tr_linear *linear, tr_layer *layer, const tr_usage *usage, int64_t in,
                        int64_t out) {
    tr_dtype dtype = usage->dtype;
    linear->forward.desc = (tr_op_desc){
        .kind = TR_OP_MATMUL,
        .matmul = {.m = usage->rows,
                   .n = out,
                   .k = in,
                   .a = dtype,
                   .b = dtype,
                   .c = dtype,
                   .bias = linear->fused_bias,
                   .epilogue = linear->before_gelu ? TR_EPILOGUE_GELU : TR_EPILOGUE_NONE}};
    linear->grad_input.desc = (tr_op_desc){
        .kind = TR_OP_MATMUL,
        .matmul = {.m = usage->rows,
                   .n = in,
                   .k = out,
                   .a = dtype,
                   .b = dtype,
                   .c = dtype,
                   .trans_b = true,
                   .epilogue = linear->after_gelu ? TR_EPILOGUE_GELU_DGRAD : TR_EPILOGUE_NONE}};
    linear->grad_weight.desc = (tr_op_desc){.kind = TR_OP_MATMUL,
                                            .matmul = {.m = in,
                                                       .n = out,
                                                       .k = usage->rows,
                                                       .a = dtype,
                                                       .b = dtype,
                                                       .c = TR_F32,
                                                       .trans_a = true,
                                                       .accumulate = true,
                                                       .epilogue = TR_EPILOGUE_BIAS_GRAD}};
    layer->flops_f += tr_op_flops(&linear->forward.desc);
    layer->flops_i += tr_op_flops(&linear->grad_input.desc);
    layer->flops_w += tr_op_flops(&linear->grad_weight.desc);
}

tr_status tr_linear_prepare(tr_linear *linear, tr_device *device, bool decode, size_t *scratch) {
    TR_TRY(tr_plan_prepare(&linear->forward, device, scratch));
    if (decode) return TR_OK;
    TR_TRY(tr_plan_prepare(&linear->grad_input, device, scratch));
    TR_TRY(tr_plan_prepare(&linear->grad_weight, device, scratch));
    return TR_OK;
}

void tr_linear_release(tr_linear *linear) {
    tr_plan_release(&linear->forward);
    tr_plan_release(&linear->grad_input);
    tr_plan_release(&linear->grad_weight);
}

tr_status tr_linear_forward(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                            tr_tensor x, tr_tensor aux, tr_tensor y) {
    tr_op_args args = {.t = {[TR_MATMUL_A] = x,
                             [TR_MATMUL_B] = tr_param_value(linear->weight),
                             [TR_MATMUL_C] = y,
                             [TR_MATMUL_AUX] = aux}};
    if (linear->fused_bias) args.t[TR_MATMUL_BIAS] = tr_param_value(linear->bias);
    TR_TRY(tr_plan_run(&linear->forward, io, scratch, args));
    return TR_OK;
}

tr_status tr_linear_grad_input(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                               tr_tensor dy, tr_tensor aux, tr_tensor dx) {
    tr_op_args args = {.t = {[TR_MATMUL_A] = dy,
                             [TR_MATMUL_B] = tr_param_value(linear->weight),
                             [TR_MATMUL_C] = dx,
                             [TR_MATMUL_AUX] = aux}};
    TR_TRY(tr_plan_run(&linear->grad_input, io, scratch, args));
    return TR_OK;
}

tr_status tr_linear_grad_weight(const tr_linear *linear, const tr_layer_io *io, void *scratch,
                                tr_tensor x, tr_tensor dy) {
    tr_op_args args = {.t = {[TR_MATMUL_A] = x,
                             [TR_MATMUL_B] = dy,
                             [TR_MATMUL_C] = tr_param_grad(linear->weight),
                             [TR_MATMUL_DBIAS] = tr_param_grad(linear->bias)}};
    TR_TRY(tr_plan_run(&linear->grad_weight, io, scratch, args));
    return TR_OK;
}
