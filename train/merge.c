#include "train/merge.h"

#include "base/memory.h"
#include "base/text.h"
#include "layers/lora_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A matrix that is read, transposed if asked. */
typedef struct matrix {
    float *to;
    int64_t rows, columns; /* as saved */
    bool transposed;
} matrix;

static tr_status take(void *context, int64_t at, int64_t count, const float *values) {
    const matrix *m = context;
    if (!m->transposed) memcpy(m->to + at, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; m->transposed && i < count; i++)
        m->to[(at + i) % m->columns * m->rows + (at + i) / m->columns] = values[i];
    return TR_OK;
}

static const tr_ckpt_weight *find(const tr_merge *m, const char *weight, const char *end) {
    char name[2 * TR_NAME_SIZE];
    const size_t stem = strlen(weight) - strlen("weight");
    (void)snprintf(name, sizeof name, "%.*s%s", (int)stem, weight, end);
    return tr_ckpt_weight_find(m->tensor, m->count, name);
}

static tr_status read_matrix(const tr_merge *m, const tr_ckpt_weight *from, bool transposed,
                             float **out) {
    const int64_t rows = from->shape[0], columns = from->shape[1];
    TR_TRY(tr_calloc((size_t)(rows * columns), sizeof **out, out));
    matrix to = {.to = *out, .rows = rows, .columns = columns, .transposed = transposed};
    return tr_ckpt_reader_read(m->reader, from, take, &to);
}

static bool has_shape(const tr_ckpt_weight *t, int64_t rows, int64_t columns) {
    return t && t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns;
}

tr_status tr_merge_begin(tr_merge *m, const tr_ckpt_weight *weight) {
    const bool conv1d = tr_model_is_conv1d(m->model);
    m->left = m->right = NULL;
    if (!tr_text_ends(weight->name, ".weight") || weight->rank != 2) return TR_OK;
    const tr_ckpt_weight *a = find(m, weight->name, TR_LORA_A);
    const tr_ckpt_weight *b = find(m, weight->name, TR_LORA_B);
    const int64_t rank = m->model->lora.rank;
    const int64_t out = weight->shape[conv1d], in = weight->shape[!conv1d];
    if (!a && !b) return TR_OK;
    if (!has_shape(a, rank, in) || !has_shape(b, out, rank))
        return TR_FAIL(TR_ERR_DATA,
                       "the checkpoint's update of %s is not a pair of matrices of rank %" PRId64,
                       weight->name, rank);
    TR_TRY(read_matrix(m, conv1d ? a : b, conv1d, &m->left));
    TR_TRY(read_matrix(m, conv1d ? b : a, conv1d, &m->right));
    m->update = (tr_low_rank){.left = m->left,
                              .right = m->right,
                              .rank = rank,
                              .columns = weight->shape[1],
                              .factor = tr_lora_factor(&m->model->lora)};
    return TR_OK;
}

void tr_merge_add(const tr_merge *m, int64_t first, int64_t count, float *values) {
    tr_low_rank_add(&m->update, first, count, values);
}

void tr_merge_end(tr_merge *m) {
    free(m->left);
    free(m->right);
    m->left = m->right = NULL;
}
