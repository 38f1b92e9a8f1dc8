#include "layers/lora.h"

#include "layers/lora_config.h"

#include <math.h>

/* --- parameters ------------------------------------------------------------------------------- */

/* A is drawn as torch.nn.Linear draws its weight: uniform within 1 / sqrt(in). */
static tr_status make_a(tr_lora *l, const tr_lora_place *p, tr_param **out) {
    const int64_t shape[] = {l->rank, p->in};
    TR_TRY(tr_built_param(l->layer, out));
    tr_param *a = *out;
    TR_TRY(tr_param_describe(a, 2, shape, TR_INIT_UNIFORM, 1 / sqrtf((float)p->in),
                             "%s.%s." TR_LORA_A, l->layer->layer.name, p->name));
    const tr_slice inputs = {.range = p->inputs};
    if (p->splits_inputs) return tr_param_keep(a, 1, &inputs, 1);
    if (p->splits_outputs) a->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    return TR_OK;
}

static tr_status make_b(tr_lora *l, const tr_lora_place *p, tr_param **out) {
    const int64_t shape[] = {p->out, l->rank};
    tr_slice slice[TR_LORA_TARGETS];
    TR_TRY(tr_built_param(l->layer, out));
    tr_param *b = *out;
    TR_TRY(tr_param_describe(b, 2, shape, TR_INIT_ZERO, 0, "%s.%s." TR_LORA_B, l->layer->layer.name,
                             p->name));
    if (p->splits_inputs) b->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    if (!p->splits_outputs) return TR_OK;
    for (int i = 0; i < p->parts; i++) slice[i] = (tr_slice){.range = p->part[i]};
    TR_TRY(tr_param_keep(b, 0, slice, p->parts));
    b->copies[TR_AXIS_TP] = p->copies;
    if (p->copies > 1) b->partial |= TR_AXIS_BIT(TR_AXIS_TP);
    return TR_OK;
}

tr_status tr_lora_add(tr_lora *l, tr_built_layer *layer, const tr_lora_place *p) {
    if (!layer->lora || !tr_lora_names(layer->lora, layer->layer.name, p->name)) return TR_OK;
    tr_lora_target *t = &l->target[l->targets++];
    l->layer = layer;
    l->rank = layer->lora->rank;
    t->at = p->at;
    for (int i = 0; i < p->parts; i++) t->out += p->part[i].extent;
    TR_TRY(make_a(l, p, &t->a));
    return make_b(l, p, &t->b);
}

/* --- description ------------------------------------------------------------------------------ */

/* Returns the largest power of two of bytes that divides the address of the target's columns. */
static int64_t alignment(const tr_lora *l, const tr_lora_target *t) {
    const int64_t size = (int64_t)tr_dtype_size(l->layer->shape.dtype);
    const int64_t bytes = (t->at | l->out) * size, lowest = bytes & -bytes;
    return l->out == t->out || lowest >= TR_ALIGN ? 0 : lowest;
}

static void describe_op(tr_lora *l, tr_layer_op *op, tr_phase phase, tr_matmul_desc desc) {
    desc.a = desc.b = l->layer->shape.dtype;
    desc.c = phase == TR_PHASE_W ? tr_dtype_acc(desc.a) : desc.a;
    tr_built_op(l->layer, op, phase, (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = desc});
}

static void describe_target(tr_lora *l, tr_lora_target *t) {
    tr_built_layer *layer = l->layer;
    const int64_t rows = layer->shape.rows, r = l->rank, align = alignment(l, t);
    const double factor = tr_lora_factor(layer->lora), scale = factor == 1 ? 0 : factor;
    describe_op(l, &t->down, TR_PHASE_F,
                (tr_matmul_desc){.m = rows, .n = r, .k = l->in, .scale = scale, .trans_b = true});
    describe_op(l, &t->up, TR_PHASE_F,
                (tr_matmul_desc){.m = rows,
                                 .n = t->out,
                                 .k = r,
                                 .ldc = l->out,
                                 .align = align,
                                 .trans_b = true,
                                 .accumulate = true});
    t->t = tr_built_save(layer, TR_LIFE_FW, TR_RECOMPUTE_FULL, TR_LIFE_IW, r, layer->shape.dtype);
    if (layer->shape.decode) return;
    t->dt = tr_built_place(layer, TR_LIFE_IW, r, layer->shape.dtype);
    describe_op(l, &t->grad_t, TR_PHASE_I,
                (tr_matmul_desc){
                    .m = rows, .n = r, .k = t->out, .lda = l->out, .scale = scale, .align = align});
    describe_op(l, &t->grad_x, TR_PHASE_I,
                (tr_matmul_desc){.m = rows, .n = l->in, .k = r, .accumulate = true});
    if (t->a->has_grad)
        describe_op(
            l, &t->grad_a, TR_PHASE_W,
            (tr_matmul_desc){.m = r, .n = l->in, .k = rows, .trans_a = true, .accumulate = true});
    if (t->b->has_grad)
        describe_op(l, &t->grad_b, TR_PHASE_W,
                    (tr_matmul_desc){.m = t->out,
                                     .n = r,
                                     .k = rows,
                                     .lda = l->out,
                                     .align = align,
                                     .trans_a = true,
                                     .accumulate = true});
}

void tr_lora_describe(tr_lora *l, int64_t in, int64_t out) {
    l->in = in;
    l->out = out;
    for (int i = 0; i < l->targets; i++) describe_target(l, &l->target[i]);
}

double tr_lora_rebuild_flops(const tr_lora *l) {
    double sum = 0;
    for (int i = 0; i < l->targets; i++) sum += tr_op_flops(&l->target[i].down.desc);
    return sum;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Returns the target's columns of the linear layer's output, or of its gradient. */
static tr_tensor columns(const tr_lora_target *t, tr_tensor y) {
    y.data = (char *)y.data + (size_t)t->at * tr_dtype_size(y.dtype);
    return tr_tensor_narrow(y, t->out);
}

static tr_status multiply(const tr_layer_op *op, const tr_layer_io *io, tr_tensor a, tr_tensor b,
                          tr_tensor c, bool adds) {
    const tr_op_args args = {.t = {[TR_MATMUL_A] = a, [TR_MATMUL_B] = b, [TR_MATMUL_C] = c},
                             .adds = adds};
    return tr_layer_op_run(op, io, args);
}

static tr_status make_t(const tr_lora_target *t, const tr_layer_io *io, tr_tensor x) {
    return multiply(&t->down, io, x, tr_param_value(t->a), tr_buffer_at(io, t->t), false);
}

tr_status tr_lora_rebuild(const tr_lora *l, const tr_layer_io *io, tr_tensor x) {
    for (int i = 0; i < l->targets; i++) TR_TRY(make_t(&l->target[i], io, x));
    return TR_OK;
}

tr_status tr_lora_forward(const tr_lora *l, const tr_layer_io *io, tr_tensor x, tr_tensor y) {
    for (int i = 0; i < l->targets; i++) {
        const tr_lora_target *t = &l->target[i];
        const tr_tensor low = tr_buffer_at(io, t->t);
        TR_TRY(make_t(t, io, x));
        TR_TRY(multiply(&t->up, io, low, tr_param_value(t->b), columns(t, y), true));
    }
    return TR_OK;
}

tr_status tr_lora_grad_input(const tr_lora *l, const tr_layer_io *io, tr_tensor dy, tr_tensor dx) {
    for (int i = 0; i < l->targets; i++) {
        const tr_lora_target *t = &l->target[i];
        const tr_tensor low = tr_buffer_at(io, t->dt);
        TR_TRY(multiply(&t->grad_t, io, columns(t, dy), tr_param_value(t->b), low, false));
        TR_TRY(multiply(&t->grad_x, io, low, tr_param_value(t->a), dx, true));
    }
    return TR_OK;
}

tr_status tr_lora_grad_weight(const tr_lora *l, const tr_layer_io *io, tr_tensor x, tr_tensor dy) {
    for (int i = 0; i < l->targets; i++) {
        const tr_lora_target *t = &l->target[i];
        if (t->a->has_grad)
            TR_TRY(
                multiply(&t->grad_a, io, tr_buffer_at(io, t->dt), x, tr_param_grad(t->a), false));
        if (t->b->has_grad)
            TR_TRY(multiply(&t->grad_b, io, columns(t, dy), tr_buffer_at(io, t->t),
                            tr_param_grad(t->b), false));
    }
    return TR_OK;
}
