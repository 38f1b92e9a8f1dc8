/* The head: the last norm, logits through a table of the vocabulary, and cross entropy over a
 * vocabulary that is split over tp (Shoeybi et al. 2019, section 3), so that no rank holds whole
 * rows of logits.
 *
 * F contains I and W, in chunks of rows. For each chunk it computes the logits, their loss, their
 * gradient, and the gradients of the norm's output and of the table; then the next chunk's logits
 * use the same memory. So the logits of a large vocabulary are never all alive, and none outlive F.
 * That works because the start of backward, state->loss_scale, is known in F. F also computes the
 * norm's own gradients, of all rows at once, and sets the gradient of the input. I and W do
 * nothing. R = batch * seq rows, r = a chunk's rows, C = width, v = this rank's part of the
 * vocabulary. With sequence parallelism the norm works on this rank's slice of the rows; its
 * output is gathered, and the gradient of that is summed to the slice. */
#include "layers/model_impl.h"
#include "layers/norm.h"

#include <stdio.h>

enum {
    /* The most bytes of a chunk's logits: few compared with such a head's parameters and their
     * optimizer state. */
    CHUNK_BYTES = 256 << 20,
    /* The most rows of a chunk. They are enough: every chunk reads and writes the table's gradient,
     * 8 bytes an element, which takes less time than the chunk's 6 r FLOPs an element. */
    CHUNK_ROWS = 2048,
    /* Rows of chunks, and elements from one row of logits to the next, are multiples of this: rows
     * that begin unaligned make a GPU's products several times slower. */
    MULTIPLE = 64
};

/* The operators of a chunk of `rows` rows. */
typedef struct chunk {
    int64_t rows; /* 0: the chunk does not exist */
    tr_layer_op project, project_dgrad, project_wgrad;
    tr_layer_op max, sum;
    tr_layer_op dgrad; /* of the logits; with one tensor rank XENT, which takes max and sums too */
} chunk;

typedef struct head {
    tr_built_layer built;
    int64_t width;
    tr_range vocab;
    int64_t largest_part; /* the largest part of the vocabulary on any tensor rank */
    int64_t ld;           /* elements from one row of logits to the next, at least v */
    tr_norm norm;
    tr_param *words;         /* (v, C) */
    chunk whole, rest;       /* all chunks except the last one, which may have fewer rows */
    tr_layer_op loss;        /* of all rows */
    tr_layer_op loss_of_one; /* of one sequence */
    tr_layer_op cast;        /* decode: of the logits */
    tr_buffer logits;        /* scratch (r, ld): logits, then their gradient */
    tr_buffer max;           /* scratch acc (r) */
    tr_buffer sums;          /* scratch acc (R, 2) */
    /* With sequence parallelism, scratch (R, C): the norm's output, and this rank's part of its
     * gradient. */
    tr_buffer y, dy;
} head;

/* --- description ------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n) {
    return (n + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
}

/* Cuts the rows into chunks of about equal size. Depends only on rows, vocabulary, its split and
 * the storage type, because the cut decides the order in which gradients are summed. The same on
 * every tensor rank, because they reduce chunk by chunk. */
static void cut_rows(head *h) {
    const tr_model_shape *shape = &h->built.shape;
    int64_t row_bytes = h->ld * (int64_t)tr_dtype_size(shape->dtype);
    int64_t most = CHUNK_BYTES / row_bytes / MULTIPLE * MULTIPLE;
    if (most > CHUNK_ROWS) most = CHUNK_ROWS;
    if (most < MULTIPLE) most = MULTIPLE;
    int64_t chunks = (shape->rows + most - 1) / most;
    h->whole.rows = shape->rows;
    if (chunks > 1) h->whole.rows = round_up((shape->rows + chunks - 1) / chunks);
    h->rest.rows = shape->rows % h->whole.rows;
}

/* logits[r, v] = y[r, C] words[v, C]^T. */
static void describe_projection(head *h, chunk *c) {
    const tr_dtype dtype = h->built.shape.dtype;
    const tr_matmul_desc product = {.m = c->rows,
                                    .n = h->vocab.extent,
                                    .k = h->width,
                                    .ldc = h->ld,
                                    .a = dtype,
                                    .b = dtype,
                                    .c = dtype,
                                    .trans_b = true};
    tr_built_op(&h->built, &c->project, TR_PHASE_F,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = product});
}

static void describe_gradients(head *h, chunk *c) {
    const tr_dtype dtype = h->built.shape.dtype;
    const tr_matmul_desc dgrad = {.m = c->rows,
                                  .n = h->width,
                                  .k = h->vocab.extent,
                                  .lda = h->ld,
                                  .a = dtype,
                                  .b = dtype,
                                  .c = dtype};
    const tr_matmul_desc wgrad = {.m = h->vocab.extent,
                                  .n = h->width,
                                  .k = c->rows,
                                  .lda = h->ld,
                                  .a = dtype,
                                  .b = dtype,
                                  .c = tr_dtype_acc(dtype),
                                  .trans_a = true,
                                  .accumulate = true};
    tr_built_op(&h->built, &c->project_dgrad, TR_PHASE_F,
                (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = dgrad});
    if (h->words->has_grad)
        tr_built_op(&h->built, &c->project_wgrad, TR_PHASE_F,
                    (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = wgrad});
}

static void describe_xent(head *h, tr_layer_op *op, tr_op_kind kind, int64_t rows) {
    tr_built_op(&h->built, op, TR_PHASE_F,
                (tr_op_desc){.kind = kind,
                             .xent = {.rows = rows,
                                      .vocab = h->vocab.extent,
                                      .vocab_begin = h->vocab.begin,
                                      .ld = h->ld,
                                      .dtype = h->built.shape.dtype}});
}

static void describe_chunk(head *h, chunk *c) {
    if (c->rows == 0) return;
    const bool alone = h->built.shape.tp_size == 1;
    describe_projection(h, c);
    describe_gradients(h, c);
    describe_xent(h, &c->max, TR_OP_XENT_MAX, c->rows);
    describe_xent(h, &c->sum, TR_OP_XENT_SUM, c->rows);
    describe_xent(h, &c->dgrad, alone ? TR_OP_XENT : TR_OP_XENT_DGRAD, c->rows);
}

/* Declares the sums over tensor ranks: maximum and sums of every chunk's rows, and the gradient of
 * the norm's output. */
static void describe_sums(head *h) {
    const tr_model_shape *shape = &h->built.shape;
    const tr_dtype acc = tr_dtype_acc(shape->dtype);
    const int chunks = (int)(shape->rows / h->whole.rows);
    tr_built_sums_in_f(&h->built, chunks, h->whole.rows, 1, acc);
    tr_built_sums_in_f(&h->built, chunks, h->whole.rows, 2, acc);
    tr_built_sums_in_f(&h->built, 1, h->rest.rows, 1, acc);
    tr_built_sums_in_f(&h->built, 1, h->rest.rows, 2, acc);
    tr_built_slice_sums(&h->built, TR_LAYER_SUM_F, 1, h->width, 0);
    tr_built_slice_gathers(&h->built, TR_LAYER_SUM_F, 1, h->width, 0);
}

/* Counts the FLOPs: F has the products of all chunks, and of the gradients. */
static void count_flops(head *h) {
    tr_op_desc product = h->whole.project.desc;
    product.matmul.m = h->built.shape.rows;
    h->built.layer.flops_f = (h->words->has_grad ? 3 : 2) * tr_op_flops(&product);
}

static void describe_training(head *h) {
    tr_built_layer *built = &h->built;
    const tr_model_shape *shape = &built->shape;
    const tr_dtype acc = tr_dtype_acc(shape->dtype);
    tr_built_asks(built, TR_STEP_INPUT_LABELS);
    h->ld = round_up(h->largest_part);
    cut_rows(h);
    describe_chunk(h, &h->whole);
    describe_chunk(h, &h->rest);
    describe_sums(h);
    describe_xent(h, &h->loss, TR_OP_XENT_LOSS, shape->rows);
    describe_xent(h, &h->loss_of_one, TR_OP_XENT_LOSS, shape->seq);
    count_flops(h);
    h->y = tr_built_place_all(built, h->width);
    h->dy = tr_built_place_all(built, h->width);
    h->logits = tr_built_place_rows(built, TR_LIFE_SCRATCH, h->whole.rows, h->ld, shape->dtype);
    h->max = tr_built_place_rows(built, TR_LIFE_SCRATCH, h->whole.rows, 1, acc);
    h->sums = tr_built_place(built, TR_LIFE_SCRATCH, 2, acc);
}

/* Describes decoding: one row for each sequence in one chunk, dense because CAST needs it. */
static void describe_decoding(head *h) {
    tr_built_layer *built = &h->built;
    const tr_model_shape *shape = &built->shape;
    const tr_rows_desc cast = {.rows = shape->rows,
                               .width = h->vocab.extent,
                               .dtype = shape->dtype,
                               .to = tr_dtype_acc(shape->dtype)};
    h->ld = h->vocab.extent;
    h->whole.rows = shape->rows;
    h->rest.rows = 0;
    describe_projection(h, &h->whole);
    tr_built_op(built, &h->cast, TR_PHASE_F, (tr_op_desc){.kind = TR_OP_CAST, .rows = cast});
    h->logits = tr_built_place(built, TR_LIFE_SCRATCH, h->ld, shape->dtype);
}

static void describe(tr_built_layer *built) {
    head *h = (head *)built;
    tr_norm_describe(&h->norm);
    if (built->shape.decode) describe_decoding(h);
    else describe_training(h);
}

/* --- F ---------------------------------------------------------------------------------------- */

/* The tensors of a chunk that begins at row `begin`. */
typedef struct chunk_tensors {
    tr_tensor y, dy, logits, labels, max, sums;
    bool adds; /* an earlier chunk of this F has written the table's gradient (tr_layer_op_run
                  adds what io->adds says) */
} chunk_tensors;

static tr_tensor logits_of(const head *h, const tr_layer_io *io, const chunk *c) {
    return tr_tensor_rows(tr_tensor_narrow(tr_buffer_at(io, h->logits), h->vocab.extent), 0,
                          c->rows);
}

/* Return the norm's output of all rows, and where this rank's part of its gradient goes. */
static tr_tensor y_of(const head *h, const tr_layer_io *io) {
    return tr_built_all(&h->built, io, h->y, tr_buffer_at(io, h->norm.y));
}

static tr_tensor dy_of(const head *h, const tr_layer_io *io) {
    return tr_built_all(&h->built, io, h->dy, tr_buffer_at(io, h->norm.dy));
}

static chunk_tensors tensors_of(const head *h, const tr_layer_io *io, const chunk *c,
                                int64_t begin) {
    return (chunk_tensors){
        .y = tr_tensor_rows(y_of(h, io), begin, c->rows),
        .dy = tr_tensor_rows(dy_of(h, io), begin, c->rows),
        .logits = logits_of(h, io, c),
        .labels =
            tr_tensor_rows(tr_tensor_reshape(io->step[0], 1, &h->built.shape.rows), begin, c->rows),
        .max = tr_tensor_vector(tr_buffer_at(io, h->max).data, h->max.dtype, c->rows),
        .sums = tr_tensor_rows(tr_buffer_at(io, h->sums), begin, c->rows),
        .adds = begin > 0};
}

static tr_status project(const head *h, const tr_layer_io *io, const chunk *c, tr_tensor y,
                         tr_tensor logits) {
    tr_op_args args = {
        .t = {[TR_MATMUL_A] = y, [TR_MATMUL_B] = tr_param_value(h->words), [TR_MATMUL_C] = logits}};
    return tr_layer_op_run(&c->project, io, args);
}

/* Computes MAX and SUMS of the chunk's rows over the whole vocabulary. */
static tr_status take_sums(const head *h, const tr_layer_io *io, const chunk *c,
                           const chunk_tensors *t) {
    tr_group *tp = h->built.tp;
    tr_op_args max = {.t = {[TR_XENT_LOGITS] = t->logits, [TR_XENT_MAX] = t->max}};
    tr_op_args sum = {.t = {[TR_XENT_LOGITS] = t->logits,
                            [TR_XENT_LABELS] = t->labels,
                            [TR_XENT_MAX] = t->max,
                            [TR_XENT_SUMS] = t->sums}};
    TR_TRY(tr_layer_op_run(&c->max, io, max));
    TR_TRY(tr_group_all_reduce(tp, io->stream, t->max.data, c->rows, t->max.dtype, TR_REDUCE_MAX));
    TR_TRY(tr_layer_op_run(&c->sum, io, sum));
    return tr_built_sum(&h->built, io, t->sums);
}

/* Computes the gradients of the logits, of the norm's output and of the table. */
static tr_status take_gradients(const head *h, const tr_layer_io *io, const chunk *c,
                                const chunk_tensors *t) {
    tr_op_args xent = {.t = {[TR_XENT_LOGITS] = t->logits,
                             [TR_XENT_LABELS] = t->labels,
                             [TR_XENT_MAX] = t->max,
                             [TR_XENT_SUMS] = t->sums}};
    tr_op_args dgrad = {.t = {[TR_MATMUL_A] = t->logits,
                              [TR_MATMUL_B] = tr_param_value(h->words),
                              [TR_MATMUL_C] = t->dy}};
    tr_op_args wgrad = {.t = {[TR_MATMUL_A] = t->logits,
                              [TR_MATMUL_B] = t->y,
                              [TR_MATMUL_C] = tr_param_grad(h->words)},
                        .adds = t->adds};
    TR_TRY(tr_layer_op_run(&c->dgrad, io, xent));
    TR_TRY(tr_layer_op_run(&c->project_dgrad, io, dgrad));
    return h->words->has_grad ? tr_layer_op_run(&c->project_wgrad, io, wgrad) : TR_OK;
}

/* Computes the loss of `rows` rows from row `begin` on. */
static tr_status take_loss(const head *h, const tr_layer_io *io, const tr_layer_op *op,
                           int64_t begin, int64_t rows, double *loss) {
    const tr_tensor labels = tr_tensor_reshape(io->step[0], 1, &h->built.shape.rows);
    tr_op_args args = {
        .t = {[TR_XENT_LABELS] = tr_tensor_rows(labels, begin, rows),
              [TR_XENT_SUMS] = tr_tensor_rows(tr_buffer_at(io, h->sums), begin, rows),
              [TR_XENT_LOSS] = tr_tensor_vector(loss, TR_F64, 2)}};
    return tr_layer_op_run(op, io, args);
}

static tr_status take_losses(const head *h, const tr_layer_io *io) {
    const tr_model_shape *shape = &h->built.shape;
    if (!io->forward_only) return take_loss(h, io, &h->loss, 0, shape->rows, io->loss);
    for (int64_t s = 0; s < shape->batch; s++)
        TR_TRY(take_loss(h, io, &h->loss_of_one, s * shape->seq, shape->seq, io->loss + 2 * s));
    return TR_OK;
}

/* Computes the norm's gradients from that of its output. */
static tr_status norm_gradients(const head *h, const tr_layer_io *io) {
    const tr_tensor none = {0};
    TR_TRY(tr_built_sum_slice(&h->built, io, h->dy, tr_buffer_at(io, h->norm.dy)));
    TR_TRY(tr_norm_grad_input(&h->norm, io, io->x[0], none, io->dx[0]));
    return tr_norm_grad_weight(&h->norm, io, io->x[0]);
}

static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    const int64_t R = h->built.shape.rows;
    TR_TRY(tr_norm_forward(&h->norm, io, io->x[0]));
    TR_TRY(tr_built_gather(&h->built, io, h->y, tr_buffer_at(io, h->norm.y)));
    for (int64_t begin = 0; begin < R; begin += h->whole.rows) {
        const chunk *c = begin + h->whole.rows <= R ? &h->whole : &h->rest;
        const chunk_tensors t = tensors_of(h, io, c, begin);
        TR_TRY(project(h, io, c, t.y, t.logits));
        if (io->forward_only || h->built.shape.tp_size > 1) TR_TRY(take_sums(h, io, c, &t));
        if (!io->forward_only) TR_TRY(take_gradients(h, io, c, &t));
    }
    TR_TRY(take_losses(h, io));
    return io->forward_only ? TR_OK : norm_gradients(h, io);
}

/* --- I, W and decoding ------------------------------------------------------------------------ */

/* F has computed all gradients. */
static tr_status do_nothing(tr_layer *layer, const tr_layer_io *io) {
    (void)layer;
    (void)io;
    return TR_OK;
}

static tr_status decode(tr_layer *layer, const tr_layer_io *io) {
    const head *h = (const head *)layer;
    const tr_tensor logits = logits_of(h, io, &h->whole);
    TR_TRY(tr_norm_forward(&h->norm, io, io->x[0]));
    TR_TRY(project(h, io, &h->whole, tr_buffer_at(io, h->norm.y), logits));
    tr_op_args args = {.t = {[TR_CAST_X] = logits,
                             [TR_CAST_Y] = tr_tensor_matrix(io->logits, h->cast.desc.rows.to,
                                                            h->built.shape.rows, h->vocab.extent)}};
    return tr_layer_op_run(&h->cast, io, args);
}

static const tr_layer_ops ops = {.kind = "head",
                                 .prepare = tr_built_prepare,
                                 .forward = forward,
                                 .grad_input = do_nothing,
                                 .grad_weight = do_nothing,
                                 .decode = decode,
                                 .destroy = tr_built_destroy};

static tr_status create(head *h, const tr_model *model) {
    const tr_family *f = model->family;
    const bool tied = model->config.tie == TR_YES;
    char norm[TR_NAME_SIZE], words[TR_NAME_SIZE];
    (void)snprintf(norm, sizeof norm, "%s.%s", f->root, f->norm);
    (void)snprintf(words, sizeof words, "%s.%s.weight", f->root, f->words);
    h->width = model->config.width;
    h->vocab = tr_built_part(&h->built, model->config.vocab);
    h->largest_part = tr_range_part(model->config.vocab, h->built.shape.tp_size, 0).extent;
    const tr_norm_desc desc = {.name = norm,
                               .width = h->width,
                               .eps = model->config.norm_eps,
                               .rms = f->rms,
                               .in_forward = true};
    TR_TRY(tr_norm_create(&h->norm, &h->built, &desc));
    TR_TRY(tr_built_param(&h->built, &h->words));
    TR_TRY(tr_words_describe(h->words, model, tied ? words : f->head, tied));
    return tr_built_finish(&h->built);
}

tr_status tr_head_create(const tr_model *model, tr_layer **out) {
    head *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    tr_built_begin(&h->built, &ops, describe, &model->shape, "%s.head", model->family->root);
    tr_built_reads(&h->built, TR_LIFE_FI);
    h->built.layer.input[0].f_writes_dx = true;
    *out = &h->built.layer; /* the model destroys it, also after a failure */
    return create(h, model);
}
