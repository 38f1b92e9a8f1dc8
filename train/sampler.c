#include "train/sampler.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct text {
    int32_t *token; /* prompt and drawn tokens */
    size_t capacity;
    int64_t count;
    int64_t start, fed; /* the cache holds tokens start..fed-1 */
    bool ended;
    uint64_t drawn;
} text;

/* What the drawing rank tells the others, after the tokens. */
enum { GOES_ON, STOPPED, NOT_FINITE };

struct tr_sampler {
    tr_sampler_desc desc;
    int64_t vocab, context, chunk;
    int rows;
    text *row;                /* [rows] */
    int32_t *feeding;         /* [rows], or [rows][chunk] */
    int64_t *position;        /* [rows]: of the first of them */
    int32_t *drawn;           /* [rows + 1]: the last one is of the enum above */
    double *logits, *scratch; /* [rows][vocab], [vocab]; on the rank that draws */
};

tr_status tr_sampler_create(const tr_sampler_desc *desc, tr_sampler **out) {
    tr_status status = TR_OK;
    tr_sampler *s = NULL;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    s->desc = *desc;
    s->vocab = desc->model->config.vocab;
    s->context = desc->model->shape.seq;
    s->rows = (int)tr_decoder_rows(desc->decoder);
    s->chunk = tr_decoder_chunk(desc->decoder);
    const size_t rows = (size_t)s->rows;
    const bool draws = tr_world_rank(desc->world) == tr_decoder_logits_rank(desc->decoder);
    TR_TRY_OUT(tr_calloc(rows, sizeof *s->row, &s->row));
    TR_TRY_OUT(tr_calloc(rows * (size_t)s->chunk, sizeof *s->feeding, &s->feeding));
    TR_TRY_OUT(tr_calloc(rows, sizeof *s->position, &s->position));
    TR_TRY_OUT(tr_calloc(rows + 1, sizeof *s->drawn, &s->drawn));
    if (draws) TR_TRY_OUT(tr_calloc(rows * (size_t)s->vocab, sizeof *s->logits, &s->logits));
    if (draws) TR_TRY_OUT(tr_calloc((size_t)s->vocab, sizeof *s->scratch, &s->scratch));
out:
    if (status != TR_OK) tr_sampler_destroy(s);
    else *out = s;
    return status;
}

void tr_sampler_destroy(tr_sampler *s) {
    if (!s) return;
    for (int r = 0; s->row && r < s->rows; r++) free(s->row[r].token);
    free(s->row);
    free(s->feeding);
    free(s->position);
    free(s->drawn);
    free(s->logits);
    free(s->scratch);
    free(s);
}

tr_status tr_sampler_append(tr_sampler *s, int row, const int32_t *tokens, int64_t count) {
    text *t = &s->row[row];
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= s->vocab)
            return TR_FAIL(TR_ERR_CONFIG,
                           "token %d of the text is not in the model's vocabulary of %lld: use the "
                           "tokenizer with which the model was trained",
                           (int)tokens[i], (long long)s->vocab);
    TR_TRY(tr_grow(&t->token, &t->capacity, (size_t)(t->count + count), sizeof *t->token));
    memcpy(t->token + t->count, tokens, (size_t)count * sizeof *tokens);
    t->count += count;
    return TR_OK;
}

int64_t tr_sampler_forgotten(const tr_sampler *s, int row) {
    return s->row[row].start;
}

void tr_sampler_end(tr_sampler *s, int row) {
    s->row[row].ended = true;
}

static bool is_live(const text *t) {
    return t->count > 0 && !t->ended;
}

/* Returns token `at` of a text; any token after its end. */
static int32_t token_at(const text *t, int64_t at) {
    return at < t->count ? t->token[at] : 0;
}

/* Makes room for a text's tokens: when they do not fit, the context keeps its newer half. */
static void make_room(const tr_sampler *s, text *t) {
    while (t->count > t->start + s->context) {
        t->start += s->context - s->context / 2;
        t->fed = t->start;
    }
}

/* Feeds a chunk of every text, from the first token that its cache does not have on. It is filled
 * with later tokens, or begins earlier when the cache ends: what it writes after the text is
 * written again before it is read, and what it writes again differs only by rounding. A row that is
 * not live feeds any tokens. */
static tr_status feed_chunk(tr_sampler *s) {
    for (int r = 0; r < s->rows; r++) {
        text *t = &s->row[r];
        const int64_t from = is_live(t) ? t->fed : t->start;
        const int64_t last = t->start + s->context - s->chunk, begin = from < last ? from : last;
        const int64_t end = begin + s->chunk;
        for (int64_t i = 0; i < s->chunk; i++)
            s->feeding[r * s->chunk + i] = token_at(t, begin + i);
        s->position[r] = begin - t->start;
        if (is_live(t)) t->fed = end < t->count ? end : t->count - 1;
    }
    return tr_decoder_prefill(s->desc.decoder, s->feeding, s->position);
}

static bool needs_chunk(const tr_sampler *s) {
    for (int r = 0; r < s->rows; r++)
        if (is_live(&s->row[r]) && s->row[r].fed < s->row[r].count - 1) return true;
    return false;
}

/* Feeds every text to its end, the last token alone, for its logits. */
static tr_status feed(tr_sampler *s) {
    for (int r = 0; r < s->rows; r++) make_room(s, &s->row[r]);
    while (needs_chunk(s)) TR_TRY(feed_chunk(s));
    for (int r = 0; r < s->rows; r++) {
        text *t = &s->row[r];
        const int64_t last = is_live(t) ? t->count - 1 : t->start;
        s->feeding[r] = token_at(t, last);
        s->position[r] = last - t->start;
        if (is_live(t)) t->fed = t->count;
    }
    return tr_decoder_step(s->desc.decoder, s->feeding, s->position);
}

/* Draws the next token of every text. */
static tr_status draw(tr_sampler *s) {
    int32_t *event = &s->drawn[s->rows];
    *event = tr_board_stop_requested(s->desc.board) ? STOPPED : GOES_ON;
    TR_TRY(tr_decoder_logits(s->desc.decoder, s->logits));
    for (int r = 0; r < s->rows; r++) {
        text *t = &s->row[r];
        s->drawn[r] = -1;
        if (!is_live(t)) continue;
        s->drawn[r] =
            tr_sampling_draw(&s->desc.draw, s->logits + r * s->vocab, s->scratch, s->vocab,
                             t->token, t->count, s->desc.first_row + (uint64_t)r, t->drawn);
        if (s->drawn[r] < 0) *event = NOT_FINITE;
    }
    return TR_OK;
}

/* Fails, on all ranks alike, as the drawing rank said. */
static tr_status check_event(const tr_sampler *s) {
    tr_status status = TR_OK;
    if (s->drawn[s->rows] == STOPPED)
        status = TR_FAIL(TR_ERR_STOPPED, "stopped before the end of the text");
    if (s->drawn[s->rows] == NOT_FINITE)
        status =
            TR_FAIL(TR_ERR_DATA,
                    "the model's logits are not finite: its parameters are "
                    "damaged; choose an earlier checkpoint (--step), or another copy of the model");
    if (status != TR_OK) tr_error_set_agreed();
    return status;
}

static bool has_live(const tr_sampler *s) {
    for (int r = 0; r < s->rows; r++)
        if (is_live(&s->row[r])) return true;
    return false;
}

tr_status tr_sampler_next(tr_sampler *s, int32_t *drawn) {
    const int root = tr_decoder_logits_rank(s->desc.decoder);
    const size_t bytes = (size_t)(s->rows + 1) * sizeof *s->drawn;
    if (!has_live(s)) return TR_FAIL(TR_ERR_INTERNAL, "no text waits for its next token");
    tr_board_set_action(s->desc.board, -1, -1, 'T');
    TR_TRY(feed(s));
    if (s->logits) TR_TRY(draw(s));
    TR_TRY(tr_world_broadcast(s->desc.world, root, s->drawn, bytes));
    TR_TRY(check_event(s));
    for (int r = 0; r < s->rows; r++) {
        drawn[r] = s->drawn[r];
        if (drawn[r] < 0) continue;
        TR_TRY(tr_sampler_append(s, r, &drawn[r], 1));
        s->row[r].drawn++;
    }
    return TR_OK;
}
