/* Sequences to evaluate: the held-out windows of a run's data, the windows of a corpus, or
 * multiple-choice questions. Labels that do not count are -1. */
#pragma once

#include "data/choices.h"
#include "data/data.h"

typedef struct tr_sequences {
    int64_t count, seq; /* inputs of each; shorter ones are filled up with labels of -1 */
    /* One of these, which the caller owns: */
    tr_data *data;
    const tr_corpus *corpus;
    const tr_choices *choices;
    bool packed;          /* of a corpus: documents end within a sequence */
    int32_t document_end; /* of a corpus that does not list ends; -1: none */
    int32_t *window;      /* [seq + 1] of a corpus */
} tr_sequences;

/* Lay sequences of at most `context` inputs: of a corpus, adjacent windows with all its tokens but
 * the first as labels. Fail with TR_ERR_DATA when a corpus has fewer than two tokens. The caller
 * releases *out with tr_sequences_free. */
tr_status tr_sequences_of_data(tr_data *data, int64_t context, tr_sequences *out);
tr_status tr_sequences_of_corpus(const tr_corpus *corpus, int64_t context, bool packed,
                                 int32_t document_end, tr_sequences *out);
/* seq: of the engine, at least choices->longest. */
tr_status tr_sequences_of_choices(const tr_choices *choices, int64_t seq, tr_sequences *out);
void tr_sequences_free(tr_sequences *sequences);

/* Is a tr_fetch_fn with a tr_sequences as context. A sequence behind the last one has no label that
 * counts. */
tr_status tr_sequences_fetch(void *context, bool validation, int64_t index, const tr_fetch *wanted,
                             int count);
