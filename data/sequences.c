#include "data/sequences.h"

#include "base/memory.h"
#include "layers/layer.h"

#include <stdlib.h>

tr_status tr_sequences_of_data(tr_data *data, int64_t context, tr_sequences *out) {
    *out = (tr_sequences){.count = tr_data_validation_windows(data), .seq = context, .data = data};
    return TR_OK;
}

tr_status tr_sequences_of_corpus(const tr_corpus *corpus, int64_t context, bool packed,
                                 int32_t document_end, tr_sequences *out) {
    const int64_t labels = corpus->tokens - 1;
    *out = (tr_sequences){.corpus = corpus, .packed = packed, .document_end = document_end};
    if (labels < 1)
        return TR_FAIL(TR_ERR_DATA, "'%s' has one token: a loss needs two", corpus->name);
    out->seq = labels < context ? labels : context;
    out->count = (labels + out->seq - 1) / out->seq;
    return tr_calloc((size_t)out->seq + 1, sizeof *out->window, &out->window);
}

tr_status tr_sequences_of_choices(const tr_choices *choices, int64_t seq, tr_sequences *out) {
    *out = (tr_sequences){.count = choices->count, .seq = seq, .choices = choices};
    return TR_OK;
}

void tr_sequences_free(tr_sequences *s) {
    free(s->window);
    *s = (tr_sequences){0};
}

/* The step inputs that are wanted of a sequence; NULL: not wanted. */
typedef struct places {
    int32_t *tokens, *labels, *starts;
} places;

static void put_token(const places *to, int64_t t, int32_t token) {
    if (to->tokens) to->tokens[t] = token;
}

static void put_label(const places *to, int64_t t, int32_t label) {
    if (to->labels) to->labels[t] = label;
}

/* Returns true when a document ends behind token t of the window, which begins at `first`. */
static bool ends_at(const tr_sequences *s, int64_t first, int64_t t, int64_t *next) {
    if (!s->packed) return false;
    if (!s->corpus->lists_ends) return s->window[t] == s->document_end;
    if (*next <= first + t) *next = tr_corpus_next_end(s->corpus, first + t);
    return *next == first + t + 1;
}

static tr_status fill_window(const tr_sequences *s, int64_t index, const places *to) {
    const int64_t first = index * s->seq, left = s->corpus->tokens - 1 - first;
    const int64_t labels = left < s->seq ? left : s->seq;
    int64_t next = 0;
    int32_t start = 0;
    TR_TRY(tr_corpus_read(s->corpus, first, labels + 1, s->window));
    for (int64_t t = 0; t < labels; t++) {
        const bool ends = ends_at(s, first, t, &next);
        put_token(to, t, s->window[t]);
        put_label(to, t, ends ? -1 : s->window[t + 1]);
        if (to->starts) to->starts[t] = start;
        if (ends) start = (int32_t)t + 1;
    }
    return TR_OK;
}

static void fill_choice(const tr_sequences *s, int64_t index, const places *to) {
    const tr_choice *c = &s->choices->choice[index];
    for (int64_t t = 0; t + 1 < c->length; t++) {
        put_token(to, t, tr_choices_token(s->choices, c, t));
        if (t + 1 >= c->context) put_label(to, t, tr_choices_token(s->choices, c, t + 1));
    }
}

tr_status tr_sequences_fetch(void *context, bool validation, int64_t index, const tr_fetch *wanted,
                             int count) {
    const tr_sequences *s = context;
    (void)validation;
    if (s->data) return tr_data_validation_sample(s->data, index, wanted, count);
    const places to = {.tokens = tr_fetch_place(wanted, count, TR_STEP_INPUT_TOKENS),
                       .labels = tr_fetch_place(wanted, count, TR_STEP_INPUT_LABELS),
                       .starts = tr_fetch_place(wanted, count, TR_STEP_INPUT_DOCUMENT_STARTS)};
    for (int k = 0; k < count; k++)
        if (wanted[k].to != to.tokens && wanted[k].to != to.labels && wanted[k].to != to.starts)
            return TR_FAIL(TR_ERR_CONFIG, "the model asks for \"%s\", which texts do not have",
                           wanted[k].input->name);
    for (int64_t t = 0; t < s->seq; t++) {
        put_token(&to, t, 0);
        put_label(&to, t, -1);
        if (to.starts) to.starts[t] = 0;
    }
    if (index >= s->count) return TR_OK;
    if (s->corpus) return fill_window(s, index, &to);
    fill_choice(s, index, &to);
    return TR_OK;
}
