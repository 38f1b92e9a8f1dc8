/* Texts from a trained model, one token at a time. Each row of a decoder feeds its own prompt, and
 * then the tokens that were drawn for it. Every rank of the decoder's mesh makes the same calls and
 * gets the same tokens. */
#pragma once

#include "job/board.h"
#include "train/decoder.h"
#include "train/sampling.h"

typedef struct tr_sampler tr_sampler;

typedef struct tr_sampler_desc {
    tr_world *world; /* the ranks of the decoder */
    tr_decoder *decoder;
    const tr_model *model; /* with it the decoder was made */
    tr_sampling draw;
    uint64_t first_row; /* among all texts of a command, for tr_sampling_draw */
    tr_board *board;    /* shows requests to stop, and what this rank does; NULL: there is none */
} tr_sampler_desc;

/* What desc points to must outlive the sampler, except desc itself. */
tr_status tr_sampler_create(const tr_sampler_desc *desc, tr_sampler **out);
void tr_sampler_destroy(tr_sampler *sampler);

/* Appends tokens[count] to the text of `row`, after its prompt and the tokens drawn so far. A row
 * without text is idle. Fails with TR_ERR_CONFIG when a token is not in the vocabulary. */
tr_status tr_sampler_append(tr_sampler *sampler, int row, const int32_t *tokens, int64_t count);
/* Returns how many tokens of the beginning of a row's text are no longer in the context. */
int64_t tr_sampler_forgotten(const tr_sampler *sampler, int row);
/* Ends the text of `row`: no more tokens are drawn for it. */
void tr_sampler_end(tr_sampler *sampler, int row);

/* Feeds every text to its end and draws its next token: drawn[row], which is appended to the text,
 * or -1 for a row that is idle or has ended. When the context is full, the newer half of it is fed
 * again from position 0. Collective; every rank returns the same status. Fails with TR_ERR_STOPPED
 * after a request to stop, and with TR_ERR_DATA when the model gives a logit that is not finite. */
tr_status tr_sampler_next(tr_sampler *sampler, int32_t *drawn);
