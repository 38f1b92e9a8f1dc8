/* GPT-2's head: the last LayerNorm, logits through the tied word embedding, and cross entropy over
 * a vocabulary split over tp (Shoeybi et al. 2019, section 3): no rank holds whole rows of logits.
 * The logits are cut into parts by columns, which are multiplied one by one: one tensor of them all
 * could be as large as all else that a stage keeps, and no packing of memory comes near its live
 * peak then. R = batch * seq rows, C = width, v = this rank's part of the vocabulary. */
#include "layers/model_impl.h"
#include "layers/param_impl.h"
#include "layers/piece.h"

#include <stdio.h>
#include <stdlib.h>

enum { LN_F_WEIGHT, LN_F_BIAS, TIED_WTE, HEAD_PARAMS };

enum {
    MOST_PARTS = 16,
    PART_WIDTHS = 8, /* columns of a part, in widths of the model: twice a block's largest tensor */
    /* Of columns, so that every row of a part, and of its part of the embedding, begins aligned: a
     * GPU's fast products need that. */
    PART_MULTIPLE = 64
};

/* Columns [begin, begin + extent) of this rank's logits. */
typedef struct logits_part {
    int64_t begin, extent;
    int64_t ld;       /* elements from row to row: no fewer than extent */
    tr_buffer logits; /* F..W (R, ld): logits, from the end of F their gradient */
    tr_plan project, project_dgrad, project_wgrad, xent_max, xent_sum, xent_loss;
} logits_part;

typedef struct head {
    tr_layer layer;
    tr_param params[HEAD_PARAMS];
    tr_usage created, usage;
    int64_t width;
    tr_range vocab;
    bool split;
    tr_group *tp;
    tr_norm ln_f;
    logits_part part[MOST_PARTS];
    int parts;
    tr_plan cast;        /* decode: of the logits, else of dln_sum */
    tr_buffer max;       /* scratch f32 (R) */
    tr_buffer sums;      /* scratch f32 (R, 2) */
    bool sums_dln;       /* the norm's dy is summed over the parts in FP32, then rounded */
    tr_buffer dln_sum;   /* scratch f32 (R, C) */
    size_t operators_at; /* scratch of operators begins here */
} head;

static void *scratch_of(const head *h, const tr_layer_io *io) {
    return io->scratch + h->operators_at;
}

static int64_t whole_multiple(int64_t columns) {
    return (columns + PART_MULTIPLE - 1) / PART_MULTIPLE * PART_MULTIPLE;
}

/* A function of the shape alone. Parts are no larger than PART_WIDTHS asks for, as long as there
 * are at most MOST_PARTS. Decoding keeps them dense: CAST reads them. */
static void cut_logits(head *h, const tr_usage *usage) {
    int64_t v = h->vocab.extent, most = PART_WIDTHS * h->width;
    int64_t parts = usage->decode ? 1 : (v + most - 1) / most;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    int64_t extent = (v + parts - 1) / parts;
    if (parts > 1) extent = whole_multiple(extent);
    h->parts = 0;
    for (int64_t begin = 0; begin < v; begin += extent) {
        logits_part *part = &h->part[h->parts++];
        part->begin = begin;
        part->extent = extent < v - begin ? extent : v - begin;
        part->ld = usage->decode ? part->extent : whole_multiple(part->extent);
    }
}

/* logits[R, n] = ln[R, C] wte[n, C]^T of n columns, and its two gradients: of ln summed over the
 * parts. */
static void describe_projection(head *h, const tr_usage *usage, int k) {
    logits_part *part = &h->part[k];
    tr_dtype dtype = usage->dtype;
    int64_t R = usage->rows, C = h->width, n = part->extent;
    tr_matmul_desc forward = {.m = R,
                              .n = n,
                              .k = C,
                              .ldc = part->ld,
                              .a = dtype,
                              .b = dtype,
                              .c = dtype,
                              .trans_b = true};
    tr_matmul_desc dgrad = {.m = R,
                            .n = C,
                            .k = n,
                            .lda = part->ld,
                            .a = dtype,
                            .b = dtype,
                            .c = h->sums_dln ? TR_F32 : dtype,
                            .accumulate = k > 0};
    tr_matmul_desc wgrad = {.m = n,
                            .n = C,
                            .k = R,
                            .lda = part->ld,
                            .a = dtype,
                            .b = dtype,
                            .c = TR_F32,
                            .trans_a = true,
                            .accumulate = true};
    part->project.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = forward};
    part->project_dgrad.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = dgrad};
    part->project_wgrad.desc = (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = wgrad};
    h->layer.flops_f += tr_op_flops(&part->project.desc);
    h->layer.flops_i += tr_op_flops(&part->project_dgrad.desc);
    h->layer.flops_w += tr_op_flops(&part->project_wgrad.desc);
}

static void describe_part(head *h, const tr_usage *usage, int k) {
    logits_part *part = &h->part[k];
    tr_xent_desc xent = {.rows = usage->rows,
                         .vocab = part->extent,
                         .vocab_begin = h->vocab.begin + part->begin,
                         .ld = part->ld,
                         .dtype = usage->dtype,
                         .accumulate = k > 0};
    describe_projection(h, usage, k);
    part->xent_max.desc = (tr_op_desc){.kind = TR_OP_XENT_MAX, .xent = xent};
    part->xent_sum.desc = (tr_op_desc){.kind = TR_OP_XENT_SUM, .xent = xent};
    part->xent_loss.desc = (tr_op_desc){.kind = TR_OP_XENT_LOSS, .xent = xent};
    part->logits = tr_buffer_place(&h->layer, usage, TR_LIFE_FW, part->ld, usage->dtype);
}

static tr_status describe_params(head *h, const tr_model_config *config,
                                 const tr_model_shape *shape) {
    TR_TRY(tr_param_describe(&h->params[LN_F_WEIGHT], 1, &config->width, TR_INIT_ONE, 0,
                             "transformer.ln_f.weight"));
    TR_TRY(tr_param_describe(&h->params[LN_F_BIAS], 1, &config->width, TR_INIT_ZERO, 0,
                             "transformer.ln_f.bias"));
    return tr_gpt2_describe_wte(&h->params[TIED_WTE], config, shape, 1);
}

static void describe(head *h, const tr_usage *usage) {
    tr_layer *layer = &h->layer;
    tr_dtype dtype = usage->dtype;
    h->usage = *usage;
    tr_layer_reset(layer);
    layer->step_inputs = usage->decode ? 0 : 1;
    layer->step_input[0] = tr_usage_tokens(usage, TR_INPUT_LABELS);
    tr_norm_describe(&h->ln_f, layer, usage, h->width);
    cut_logits(h, usage);
    h->sums_dln = h->parts > 1 && dtype != TR_F32;
    for (int k = 0; k < h->parts; k++) describe_part(h, usage, k);
    tr_rows_desc cast = {.rows = usage->rows, .width = h->width, .dtype = TR_F32, .to = dtype};
    if (usage->decode)
        cast = (tr_rows_desc){
            .rows = usage->rows, .width = h->vocab.extent, .dtype = dtype, .to = TR_F32};
    h->cast.desc = (tr_op_desc){.kind = TR_OP_CAST, .rows = cast};

    if (!usage->decode) {
        h->max = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, 1, TR_F32);
        h->sums = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, 2, TR_F32);
    }
    if (h->sums_dln) h->dln_sum = tr_buffer_place(layer, usage, TR_LIFE_SCRATCH, h->width, TR_F32);
    h->operators_at = layer->bytes[TR_LIFE_SCRATCH];
    if (h->split) {
        double rows = (double)usage->rows;
        layer->reduce_bytes_f = rows * 3 * (double)sizeof(float);
        layer->reduce_bytes_i = rows * (double)h->width * (double)tr_dtype_size(dtype);
    }
}

static tr_status prepare(tr_layer *layer, const tr_layer_env *env) {
    head *h = (head *)layer;
    TR_TRY(tr_layer_check(layer, &h->created, env));
    tr_usage usage = tr_usage_env(env);
    describe(h, &usage);
    h->tp = env->tp;
    size_t scratch = 0;
    TR_TRY(tr_norm_prepare(&h->ln_f, env->device, env->decode, &scratch));
    if (env->decode || h->sums_dln) TR_TRY(tr_plan_prepare(&h->cast, env->device, &scratch));
    for (int k = 0; k < h->parts; k++) {
        logits_part *part = &h->part[k];
        TR_TRY(tr_plan_prepare(&part->project, env->device, &scratch));
        if (env->decode) continue;
        TR_TRY(tr_plan_prepare(&part->project_dgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&part->project_wgrad, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&part->xent_max, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&part->xent_sum, env->device, &scratch));
        TR_TRY(tr_plan_prepare(&part->xent_loss, env->device, &scratch));
    }
    layer->bytes[TR_LIFE_SCRATCH] = h->operators_at + tr_align_up(scratch);
    return TR_OK;
}

/* The word embedding's rows of a part's columns, in the values or in the gradients. */
static tr_tensor rows_of(const logits_part *part, tr_tensor table) {
    return tr_tensor_rows(table, part->begin, part->extent);
}

static tr_tensor wte_rows(const head *h, const logits_part *part) {
    return rows_of(part, tr_param_value(&h->params[TIED_WTE]));
}

static tr_tensor logits_at(const tr_layer_io *io, const logits_part *part) {
    return tr_tensor_narrow(tr_buffer_at(io, part->logits), part->extent);
}

static tr_tensor input_of(const head *h, const tr_layer_io *io) {
    return tr_usage_tensor(&h->usage, io->x[0], h->width);
}

static tr_status project(const head *h, const tr_layer_io *io, const logits_part *part) {
    tr_op_args args = {.t = {[TR_MATMUL_A] = tr_buffer_at(io, h->ln_f.y),
                             [TR_MATMUL_B] = wte_rows(h, part),
                             [TR_MATMUL_C] = logits_at(io, part)}};
    TR_TRY(tr_plan_run(&part->project, io, scratch_of(h, io), args));
    return TR_OK;
}

static tr_status take_max(const head *h, const tr_layer_io *io, const logits_part *part) {
    tr_op_args args = {
        .t = {[TR_XENT_LOGITS] = logits_at(io, part), [TR_XENT_MAX] = tr_buffer_at(io, h->max)}};
    TR_TRY(tr_plan_run(&part->xent_max, io, scratch_of(h, io), args));
    return TR_OK;
}

/* XENT_SUM or, when `loss` is there, XENT_LOSS. */
static tr_status take_sum(const head *h, const tr_layer_io *io, const logits_part *part,
                          const tr_plan *plan, tr_tensor loss) {
    tr_op_args args = {
        .t = {[TR_XENT_LOGITS] = logits_at(io, part),
              [TR_XENT_LABELS] = tr_flow_tensor(&h->layer.step_input[0], io->step[0]),
              [TR_XENT_MAX] = tr_buffer_at(io, h->max),
              [TR_XENT_SUMS] = tr_buffer_at(io, h->sums),
              [TR_XENT_LOSS] = loss}};
    TR_TRY(tr_plan_run(plan, io, scratch_of(h, io), args));
    return TR_OK;
}

/* The parts' maxima and sums are of all of this rank's columns before the group reduces them: the
 * reductions are two, however many parts there are. */
static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    const logits_part *end = h->part + h->parts;
    const tr_tensor none = {0}, loss = tr_tensor_vector(io->loss, TR_F64, 2);
    void *max = tr_buffer_at(io, h->max).data, *sums = tr_buffer_at(io, h->sums).data;
    int64_t R = h->usage.rows;
    TR_TRY(tr_norm_forward(&h->ln_f, io, scratch_of(h, io), input_of(h, io)));
    for (const logits_part *part = h->part; part < end; part++) {
        TR_TRY(project(h, io, part));
        TR_TRY(take_max(h, io, part));
    }
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, max, R, TR_F32, TR_REDUCE_MAX));
    for (const logits_part *part = h->part; part < end; part++)
        TR_TRY(take_sum(h, io, part, &part->xent_sum, none));
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, sums, 2 * R, TR_F32, TR_REDUCE_SUM));
    for (const logits_part *part = h->part; part < end; part++)
        TR_TRY(take_sum(h, io, part, &part->xent_loss, loss));
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io);
    const tr_tensor dln = tr_buffer_at(io, h->ln_f.dy);
    const tr_tensor sum = h->sums_dln ? tr_buffer_at(io, h->dln_sum) : dln;
    const tr_tensor none = {0}, dx = tr_usage_tensor(&h->usage, io->dx[0], h->width);
    for (const logits_part *part = h->part; part < h->part + h->parts; part++) {
        tr_op_args args = {.t = {[TR_MATMUL_A] = logits_at(io, part),
                                 [TR_MATMUL_B] = wte_rows(h, part),
                                 [TR_MATMUL_C] = sum}};
        TR_TRY(tr_plan_run(&part->project_dgrad, io, scratch, args));
    }
    tr_op_args cast = {.t = {[TR_CAST_X] = sum, [TR_CAST_Y] = dln}};
    if (h->sums_dln) TR_TRY(tr_plan_run(&h->cast, io, scratch, cast));
    TR_TRY(tr_group_all_reduce(h->tp, io->stream, dln.data, tr_tensor_count(&dln), dln.dtype,
                               TR_REDUCE_SUM));
    TR_TRY(tr_norm_grad_input(&h->ln_f, io, scratch, input_of(h, io), none, dx));
    return TR_OK;
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io);
    const tr_tensor dwte = tr_param_grad(&h->params[TIED_WTE]);
    for (const logits_part *part = h->part; part < h->part + h->parts; part++) {
        tr_op_args args = {.t = {[TR_MATMUL_A] = logits_at(io, part),
                                 [TR_MATMUL_B] = tr_buffer_at(io, h->ln_f.y),
                                 [TR_MATMUL_C] = rows_of(part, dwte)}};
        TR_TRY(tr_plan_run(&part->project_wgrad, io, scratch, args));
    }
    TR_TRY(tr_norm_grad_weight(&h->ln_f, io, scratch, input_of(h, io)));
    return TR_OK;
}

static tr_status decode(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    void *scratch = scratch_of(h, io);
    TR_TRY(tr_norm_forward(&h->ln_f, io, scratch, input_of(h, io)));
    TR_TRY(project(h, io, h->part));
    tr_op_args args = {
        .t = {[TR_CAST_X] = logits_at(io, h->part),
              [TR_CAST_Y] = tr_tensor_matrix(io->logits, TR_F32, h->usage.rows, h->vocab.extent)}};
    TR_TRY(tr_plan_run(&h->cast, io, scratch, args));
    return TR_OK;
}

static void destroy(tr_layer *layer) {
    head *h = (head *)layer;
    tr_norm_release(&h->ln_f);
    for (int k = 0; k < MOST_PARTS; k++) {
        logits_part *part = &h->part[k];
        tr_plan *plans[] = {&part->project,  &part->project_dgrad, &part->project_wgrad,
                            &part->xent_max, &part->xent_sum,      &part->xent_loss};
        for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) tr_plan_release(plans[i]);
    }
    tr_plan_release(&h->cast);
    tr_params_release(h->params, HEAD_PARAMS);
    tr_layer_free(&h->layer);
}

static const tr_layer_ops ops = {.kind = "head",
                                 .prepare = prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = decode,
                                 .destroy = destroy};

tr_status tr_head_create(const tr_model_config *config, const tr_model_shape *shape,
                         tr_layer **out) {
    head *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    tr_layer *layer = &h->layer;
    layer->ops = &ops;
    layer->params = h->params;
    layer->params_count = HEAD_PARAMS;
    layer->inputs = 1;
    /* ln_f's weight gradient reads it. */
    layer->input[0] = (tr_layer_input){.layer = TR_LAYER_BEFORE, .life = TR_LIFE_FW};
    (void)snprintf(layer->name, sizeof layer->name, "transformer.head");
    h->width = config->width;
    h->vocab = tr_range_part(config->vocab, shape->tp_size, shape->tp_rank);
    h->split = shape->tp_size > 1;
    tr_status status = describe_params(h, config, shape);
    if (status != TR_OK) {
        destroy(layer);
        return status;
    }
    h->ln_f.gamma = &h->params[LN_F_WEIGHT];
    h->ln_f.beta = &h->params[LN_F_BIAS];
    h->created = tr_usage_train(shape);
    describe(h, &h->created);
    *out = layer;
    return TR_OK;
}
