/* Word and position embeddings. */
#include "device/op_table.h"

static bool same(const tr_op_desc *x, const tr_op_desc *y) {
    const tr_embed_desc *a = &x->embed, *b = &y->embed;
    return a->rows == b->rows && a->width == b->width && a->seq == b->seq &&
           a->vocab_begin == b->vocab_begin && a->vocab == b->vocab && a->decode == b->decode &&
           a->first == b->first && a->documents == b->documents && a->dtype == b->dtype;
}

static const char *word_fault(const tr_op_desc *desc) {
    const tr_embed_desc *d = &desc->embed;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (!tr_op_sizes_fit(1, d->vocab, d->width, 1)) return "vocab must be positive";
    if (d->vocab_begin < 0 || d->vocab_begin > INT32_MAX || d->vocab > INT32_MAX)
        return "the vocabulary's range must fit 31 bits";
    return NULL;
}

static const char *position_fault(const tr_op_desc *desc) {
    const tr_embed_desc *d = &desc->embed;
    if (!tr_op_sizes_fit(1, d->rows, d->width, 1)) return "rows and width must be positive";
    if (d->decode && d->documents) return "decoding has no documents";
    if (d->first < 0 || (d->decode && d->first > 0)) return "decoding begins with the first row";
    if (d->decode && d->rows > d->decode * TR_STEP_TEXTS)
        return "more texts than the state has positions";
    return tr_op_sizes_fit(1, d->seq, d->width, 1) ? NULL : "seq must be positive";
}

static const char *position_wgrad_fault(const tr_op_desc *desc) {
    const char *fault = position_fault(desc);
    if (fault) return fault;
    if (desc->embed.decode || desc->embed.first || desc->embed.rows % desc->embed.seq)
        return "its rows must be whole sequences";
    return NULL;
}

static tr_tensor of_rows(const tr_embed_desc *d) {
    return tr_tensor_matrix(NULL, d->dtype, d->rows, d->width);
}

static void embed_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_embed_desc *d = &desc->embed;
    t[TR_EMBED_TOKENS] = tr_tensor_vector(NULL, TR_I32, d->rows);
    t[TR_EMBED_TABLE] = tr_tensor_matrix(NULL, d->dtype, d->vocab, d->width);
    t[TR_EMBED_Y] = of_rows(d);
}

const tr_op_row tr_op_row_embed = {
    .name = "embed",
    .slot = {[TR_EMBED_TOKENS] = {"tokens", TR_SLOT_IN, TR_TYPES_I32},
             [TR_EMBED_TABLE] = {"table", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_EMBED_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE}},
    .fault = word_fault,
    .same = same,
    .operands = embed_operands,
};

static void embed_wgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_embed_desc *d = &desc->embed;
    t[TR_EMBED_WGRAD_DY] = of_rows(d);
    t[TR_EMBED_WGRAD_TOKENS] = tr_tensor_vector(NULL, TR_I32, d->rows);
    t[TR_EMBED_WGRAD_DTABLE] = tr_tensor_matrix(NULL, tr_dtype_acc(d->dtype), d->vocab, d->width);
}

const tr_op_row tr_op_row_embed_wgrad = {
    .name = "embed_wgrad",
    .slot = {[TR_EMBED_WGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_EMBED_WGRAD_TOKENS] = {"tokens", TR_SLOT_IN, TR_TYPES_I32},
             [TR_EMBED_WGRAD_DTABLE] = {"dtable", TR_SLOT_GRADIENT, TR_TYPES_ACC}},
    .fault = word_fault,
    .same = same,
    .operands = embed_wgrad_operands,
};

static void position_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_embed_desc *d = &desc->embed;
    t[TR_POSITION_X] = t[TR_POSITION_Y] = of_rows(d);
    t[TR_POSITION_TABLE] = tr_tensor_matrix(NULL, d->dtype, d->seq, d->width);
    if (d->documents) t[TR_POSITION_STARTS] = tr_tensor_vector(NULL, TR_I32, d->rows);
}

const tr_op_row tr_op_row_position = {
    .name = "position",
    .slot = {[TR_POSITION_X] = {"x", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_POSITION_TABLE] = {"table", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_POSITION_Y] = {"y", TR_SLOT_OUT, TR_TYPES_STORAGE},
             [TR_POSITION_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = position_fault,
    .same = same,
    .operands = position_operands,
};

static void position_wgrad_operands(const tr_op_desc *desc, tr_tensor *t) {
    const tr_embed_desc *d = &desc->embed;
    t[TR_POSITION_WGRAD_DY] = of_rows(d);
    t[TR_POSITION_WGRAD_DTABLE] = tr_tensor_matrix(NULL, tr_dtype_acc(d->dtype), d->seq, d->width);
    if (d->documents) t[TR_POSITION_WGRAD_STARTS] = tr_tensor_vector(NULL, TR_I32, d->rows);
}

const tr_op_row tr_op_row_position_wgrad = {
    .name = "position_wgrad",
    .slot = {[TR_POSITION_WGRAD_DY] = {"dy", TR_SLOT_IN, TR_TYPES_STORAGE},
             [TR_POSITION_WGRAD_DTABLE] = {"dtable", TR_SLOT_GRADIENT, TR_TYPES_ACC},
             [TR_POSITION_WGRAD_STARTS] = {"starts", TR_SLOT_IN, TR_TYPES_I32}},
    .fault = position_wgrad_fault,
    .same = same,
    .operands = position_wgrad_operands,
};
