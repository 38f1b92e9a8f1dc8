/* Evaluation with an engine: the loss of sequences, and answers to multiple-choice questions. */
#pragma once

#include "data/sequences.h"
#include "train/engine.h"

/* Computes the loss of every sequence, in out[count], which all ranks get. The engine's sequences
 * have sequences->seq tokens; `batch` is the engine's. Collective. Fails with TR_ERR_DATA when a
 * loss is not finite, with TR_ERR_STOPPED when a rank was asked to stop, and like a fetch. Shows
 * the batches on `board`, which may be NULL. */
tr_status tr_evaluate(tr_engine *engine, tr_sequences *sequences, int64_t batch, tr_board *board,
                      tr_sequence_loss *out);

/* The loss of a text. */
typedef struct tr_loss_score {
    int64_t tokens; /* labels that counted */
    double nats;    /* the sum of their losses */
    int64_t bytes;  /* of the text that they stand for; 0: not known */
} tr_loss_score;
/* Adds up the losses of sequences. bytes[vocab]: of each token's text; NULL: not known. Reads the
 * labels again for the bytes. */
tr_status tr_evaluate_text(tr_sequences *sequences, const tr_sequence_loss *loss,
                           const int32_t *bytes, tr_loss_score *out);
/* Returns in *out the bytes of each token's text: bytes[vocab]; special tokens have none, and
 * without a tokenizer each token is a byte. The caller frees it. */
tr_status tr_evaluate_token_bytes(const tr_tokenizer *tokenizer, int64_t vocab, int32_t **out);

/* The share of questions with the right answer, and its standard error (NAN with one question). */
typedef struct tr_proportion {
    double share, error;
} tr_proportion;

typedef struct tr_choices_score {
    int64_t questions;
    tr_proportion accuracy; /* the answer has the largest log probability */
    /* The answer has the largest log probability divided by its length: in bytes of its text where
     * they are known (per_byte), else in tokens. */
    tr_proportion normalised;
    bool per_byte;
} tr_choices_score;
/* Answers the questions by the losses of their choices; among equals the first is the answer. */
tr_choices_score tr_evaluate_choices(const tr_choices *choices, const tr_sequence_loss *loss);
