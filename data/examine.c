#include "base/memory.h"
#include "data/data.h"

#include <math.h>
#include <stdlib.h>

enum { BYTES = 256, PIECE = 1 << 14 };

/* Counts of each token in a part of the corpus, and of each pair of adjacent tokens. */
typedef struct counts {
    int64_t single[BYTES], pair[BYTES][BYTES]; /* pair: (first, second) */
} counts;

typedef struct pass {
    const tr_corpus *corpus;
    int32_t document_end; /* -1: none, or the corpus lists them */
    bool *seen;           /* [vocab] */
    int64_t distinct, documents;
    int32_t last; /* the last token read; -1: none */
} pass;

/* Counts the tokens from..to-1, and the pairs within them that are an input and its label. */
static tr_status count_tokens(pass *p, int64_t from, int64_t to, counts *c) {
    int32_t piece[PIECE];
    int32_t last = -1;
    const bool pairs = p->corpus->width == 1;
    for (int64_t at = from, n; at < to; at += n) {
        n = to - at < PIECE ? to - at : PIECE;
        TR_TRY(tr_corpus_read(p->corpus, at, n, piece));
        for (int64_t i = 0; i < n; i++) {
            const int32_t token = piece[i] & ~TR_TOKEN_GIVEN;
            p->distinct += !p->seen[token];
            p->seen[token] = true;
            p->documents += token == p->document_end;
            if (pairs) {
                c->single[token]++;
                if (last >= 0 && last != p->document_end) c->pair[last][token]++;
            }
            last = token;
        }
    }
    if (last >= 0) p->last = last;
    return TR_OK;
}

/* Computes the header's formula over the counted pairs. */
static double bigram_nats(const counts *train, const counts *held, int64_t tokens, double alpha) {
    double sum = 0, pairs = 0;
    for (int a = 0; a < BYTES; a++) {
        int64_t from = 0; /* n(a): occurrences with a next token */
        for (int b = 0; b < BYTES; b++) from += train->pair[a][b];
        for (int b = 0; b < BYTES; b++) {
            double n = (double)held->pair[a][b];
            double p = ((double)train->single[b] + 1) / ((double)(tokens + BYTES));
            if (n > 0)
                sum -= n * log(((double)train->pair[a][b] + alpha * p) / ((double)from + alpha));
            pairs += n;
        }
    }
    return pairs > 0 ? sum / pairs : NAN;
}

tr_status tr_data_examine(const tr_data *data, int index, double alpha, tr_data_facts *out) {
    const tr_corpus *corpus = tr_data_corpus(data, index);
    const int64_t train = tr_data_train_tokens(data, index);
    pass p = {.corpus = corpus, .last = -1};
    p.document_end = corpus->lists_ends ? -1 : tr_data_document_end(data);
    tr_status status = TR_OK;
    counts *part; /* training, held out */
    TR_TRY(tr_calloc(2, sizeof *part, &part));
    *out = (tr_data_facts){.bigram_nats = NAN};
    TR_TRY_OUT(tr_calloc((size_t)corpus->source[0].vocab, sizeof *p.seen, &p.seen));
    TR_TRY_OUT(count_tokens(&p, 0, train, &part[0]));
    TR_TRY_OUT(count_tokens(&p, train, corpus->tokens, &part[1]));
    out->distinct = p.distinct;
    out->documents = p.documents + (p.last != p.document_end);
    if (corpus->lists_ends) out->documents = 0;
    for (int i = 0; i < corpus->count; i++) out->answers += corpus->source[i].answers;
    for (int i = 0; corpus->lists_ends && i < corpus->count; i++)
        out->documents += corpus->source[i].documents;
    if (corpus->width == 1) out->bigram_nats = bigram_nats(&part[0], &part[1], train, alpha);
out:
    free(p.seen);
    free(part);
    return status;
}
