/* The head: the last norm, logits through the word embedding, and cross entropy over a vocabulary
 * split over tp (Shoeybi et al. 2019, section 3): no rank holds whole rows of logits. The logits
 * are cut into parts by columns, which are multiplied one by one: one tensor of them all could be
 * as large as all else that a stage keeps, and no packing of memory comes near its live peak then.
 * R = batch * seq rows, C = width, v = this rank's part of the vocabulary. */
#include "layers/model_impl.h"
#include "layers/norm.h"

#include <stdio.h>

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
    tr_layer_op project, project_dgrad, project_wgrad, xent_max, xent_sum, xent_loss;
} logits_part;

typedef struct head {
    tr_built_layer built;
    int64_t width;
    tr_range vocab;
    tr_norm norm;
    tr_param *words; /* (v, C), shared with the embedding */
    logits_part part[MOST_PARTS];
    int parts;
    tr_layer_op cast;  /* decode: of the logits, else of dln_sum */
    tr_buffer max;     /* scratch f32 (R) */
    tr_buffer sums;    /* scratch f32 (R, 2) */
    bool sums_dln;     /* the norm's dy is summed over the parts in FP32, then rounded */
    tr_buffer dln_sum; /* scratch f32 (R, C) */
} head;

static int64_t whole_multiple(int64_t columns) {
    return (columns + PART_MULTIPLE - 1) / PART_MULTIPLE * PART_MULTIPLE;
}

/* A function of the shape alone. Parts are no larger than PART_WIDTHS asks for, as long as there
 * are at most MOST_PARTS. Decoding keeps them dense: CAST reads them. */
static void cut_logits(head *h) {
    const tr_model_shape *usage = &h->built.usage;
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
static void describe_projection(head *h, int k) {
    const tr_model_shape *usage = &h->built.usage;
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
                            .c = h->sums_dln ? tr_dtype_acc(dtype) : dtype,
                            .accumulate = k > 0};
    tr_matmul_desc wgrad = {.m = n,
                            .n = C,
                            .k = R,
                            .lda = part->ld,
                            .a = dtype,
                            .b = dtype,
                            .c = tr_dtype_acc(dtype),
                            .trans_a = true,
                            .accumulate = true};
    tr_built_op(&h->built, &part->project, TR_PHASE_F,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = forward});
    tr_built_op(&h->built, &part->project_dgrad, TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = dgrad});
    tr_built_op(&h->built, &part->project_wgrad, TR_PHASE_W,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = wgrad});
}

static void describe_part(head *h, int k) {
    const tr_model_shape *usage = &h->built.usage;
    logits_part *part = &h->part[k];
    tr_op_desc op = {.kind = TR_OP_XENT_MAX,
                     .xent = {.rows = usage->rows,
                              .vocab = part->extent,
                              .vocab_begin = h->vocab.begin + part->begin,
                              .ld = part->ld,
                              .dtype = usage->dtype,
                              .accumulate = k > 0}};
    describe_projection(h, k);
    part->logits = tr_built_place(&h->built, TR_LIFE_FW, part->ld, usage->dtype);
    if (usage->decode) return;
    tr_built_op(&h->built, &part->xent_max, TR_PHASE_F, op);
    op.kind = TR_OP_XENT_SUM;
    tr_built_op(&h->built, &part->xent_sum, TR_PHASE_F, op);
    op.kind = TR_OP_XENT_LOSS;
    tr_built_op(&h->built, &part->xent_loss, TR_PHASE_F, op);
}

static void describe_cast(head *h) {
    const tr_model_shape *usage = &h->built.usage;
    const tr_dtype acc = tr_dtype_acc(usage->dtype);
    tr_rows_desc cast = {.rows = usage->rows, .width = h->width, .dtype = acc, .to = usage->dtype};
    if (usage->decode)
        cast = (tr_rows_desc){
            .rows = usage->rows, .width = h->vocab.extent, .dtype = usage->dtype, .to = acc};
    tr_built_op(&h->built, &h->cast, usage->decode ? TR_PHASE_F : TR_PHASE_I,
                (tr_op_desc){.kind = TR_OP_CAST, .rows = cast});
}

static void describe(tr_built_layer *built) {
    head *h = (head *)built;
    const tr_model_shape *usage = &built->usage;
    const tr_dtype acc = tr_dtype_acc(usage->dtype);
    if (!usage->decode) tr_built_asks(built, TR_INPUT_LABELS);
    tr_norm_describe(&h->norm);
    cut_logits(h);
    h->sums_dln = h->parts > 1 && usage->dtype != acc;
    for (int k = 0; k < h->parts; k++) describe_part(h, k);
    if (usage->decode || h->sums_dln) describe_cast(h);
    if (!usage->decode) {
        h->max = tr_built_place(built, TR_LIFE_SCRATCH, 1, acc);
        h->sums = tr_built_place(built, TR_LIFE_SCRATCH, 2, acc);
    }
    if (h->sums_dln) h->dln_sum = tr_built_place(built, TR_LIFE_SCRATCH, h->width, acc);
    if (built->tp_size == 1) return;
    built->layer.reduce_bytes_f = (double)usage->rows * 3 * (double)tr_dtype_size(acc);
    built->layer.reduce_bytes_i = tr_built_bytes(built, h->width);
}

/* The rows of the vocabulary's table, or of its gradient, of a part's columns. */
static tr_tensor rows_of(const logits_part *part, tr_tensor table) {
    return tr_tensor_rows(table, part->begin, part->extent);
}

static tr_tensor logits_at(const tr_layer_io *io, const logits_part *part) {
    return tr_tensor_narrow(tr_buffer_at(io, part->logits), part->extent);
}

static tr_status project(const head *h, const tr_layer_io *io, const logits_part *part) {
    tr_op_args args = {.t = {[TR_MATMUL_A] = tr_buffer_at(io, h->norm.y),
                             [TR_MATMUL_B] = rows_of(part, tr_param_value(h->words)),
                             [TR_MATMUL_C] = logits_at(io, part)}};
    return tr_layer_op_run(&part->project, io, args);
}

static tr_status take_max(const head *h, const tr_layer_io *io, const logits_part *part) {
    tr_op_args args = {
        .t = {[TR_XENT_LOGITS] = logits_at(io, part), [TR_XENT_MAX] = tr_buffer_at(io, h->max)}};
    return tr_layer_op_run(&part->xent_max, io, args);
}

/* XENT_SUM or, when `loss` is there, XENT_LOSS. */
static tr_status take_sum(const head *h, const tr_layer_io *io, const logits_part *part,
                          const tr_layer_op *op, tr_tensor loss) {
    tr_op_args args = {.t = {[TR_XENT_LOGITS] = logits_at(io, part),
                             [TR_XENT_LABELS] = io->step[0],
                             [TR_XENT_MAX] = tr_buffer_at(io, h->max),
                             [TR_XENT_SUMS] = tr_buffer_at(io, h->sums),
                             [TR_XENT_LOSS] = loss}};
    return tr_layer_op_run(op, io, args);
}

/* The parts' maxima and sums are of all of this rank's columns before the group reduces them: the
 * reductions are two, however many parts there are. */
static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    const logits_part *end = h->part + h->parts;
    const int64_t R = h->built.usage.rows;
    const tr_tensor none = {0}, loss = tr_tensor_vector(io->loss, TR_F64, 2);
    void *max = tr_buffer_at(io, h->max).data, *sums = tr_buffer_at(io, h->sums).data;
    TR_TRY(tr_norm_forward(&h->norm, io, io->x[0]));
    for (const logits_part *part = h->part; part < end; part++) {
        TR_TRY(project(h, io, part));
        TR_TRY(take_max(h, io, part));
    }
    TR_TRY(tr_group_all_reduce(h->built.tp, io->stream, max, R, h->max.dtype, TR_REDUCE_MAX));
    for (const logits_part *part = h->part; part < end; part++)
        TR_TRY(take_sum(h, io, part, &part->xent_sum, none));
    TR_TRY(tr_group_all_reduce(h->built.tp, io->stream, sums, 2 * R, h->sums.dtype, TR_REDUCE_SUM));
    for (const logits_part *part = h->part; part < end; part++)
        TR_TRY(take_sum(h, io, part, &part->xent_loss, loss));
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    const tr_tensor dln = tr_buffer_at(io, h->norm.dy);
    const tr_tensor sum = h->sums_dln ? tr_buffer_at(io, h->dln_sum) : dln;
    const tr_tensor none = {0}, dx = io->dx[0];
    for (const logits_part *part = h->part; part < h->part + h->parts; part++) {
        tr_op_args args = {.t = {[TR_MATMUL_A] = logits_at(io, part),
                                 [TR_MATMUL_B] = rows_of(part, tr_param_value(h->words)),
                                 [TR_MATMUL_C] = sum}};
        TR_TRY(tr_layer_op_run(&part->project_dgrad, io, args));
    }
    tr_op_args cast = {.t = {[TR_CAST_X] = sum, [TR_CAST_Y] = dln}};
    if (h->sums_dln) TR_TRY(tr_layer_op_run(&h->cast, io, cast));
    TR_TRY(tr_built_sum(&h->built, io, dln));
    return tr_norm_grad_input(&h->norm, io, io->x[0], none, dx);
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    for (const logits_part *part = h->part; part < h->part + h->parts; part++) {
        tr_op_args args = {.t = {[TR_MATMUL_A] = logits_at(io, part),
                                 [TR_MATMUL_B] = tr_buffer_at(io, h->norm.y),
                                 [TR_MATMUL_C] = rows_of(part, tr_param_grad(h->words))}};
        TR_TRY(tr_layer_op_run(&part->project_wgrad, io, args));
    }
    return tr_norm_grad_weight(&h->norm, io, io->x[0]);
}

static tr_status decode(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    TR_TRY(tr_norm_forward(&h->norm, io, io->x[0]));
    TR_TRY(project(h, io, h->part));
    const tr_model_shape *usage = &h->built.usage;
    const tr_dtype acc = tr_dtype_acc(usage->dtype);
    tr_op_args args = {
        .t = {[TR_CAST_X] = logits_at(io, h->part),
              [TR_CAST_Y] = tr_tensor_matrix(io->logits, acc, usage->rows, h->vocab.extent)}};
    return tr_layer_op_run(&h->cast, io, args);
}

static const tr_layer_ops ops = {.kind = "head",
                                 .prepare = tr_built_prepare,
                                 .forward = forward,
                                 .grad_input = grad_input,
                                 .grad_weight = grad_weight,
                                 .decode = decode,
                                 .destroy = tr_built_destroy};

static tr_status create(head *h, const tr_model *model) {
    const tr_family *f = model->family;
    char norm[TR_NAME_SIZE], words[TR_NAME_SIZE];
    (void)snprintf(norm, sizeof norm, "%s.%s", f->root, f->norm);
    (void)snprintf(words, sizeof words, "%s.%s.weight", f->root, f->words);
    h->width = model->config.width;
    h->vocab = tr_built_part(&h->built, model->config.vocab);
    const tr_norm_desc desc = {.name = norm, .width = h->width, .eps = f->norm_eps};
    TR_TRY(tr_norm_create(&h->norm, &h->built, &desc));
    h->words = tr_built_param(&h->built);
    TR_TRY(tr_words_describe(h->words, model, words, 1));
    return tr_built_finish(&h->built);
}

tr_status tr_head_create(const tr_model *model, tr_layer **out) {
    head *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    tr_built_begin(&h->built, &ops, describe, &model->shape, "%s.head", model->family->root);
    tr_built_reads(&h->built);
    *out = &h->built.layer; /* destroyed by the model, also after a failure */
    return create(h, model);
}
