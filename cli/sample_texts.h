/* The texts of `trireme sample`: prompts to tokens, tokens to text. */
#pragma once

#include "text/tokenizer.h"
#include "train/decode_session.h"
#include "train/drawing.h"

#include <stdio.h>

typedef struct cli_texts {
    const char **prompt; /* [prompts], none of them empty */
    int prompts;
    int rows;       /* of the decoder: texts that are made together */
    int64_t tokens; /* the most that are drawn for a text */
    const char *const *stop;
    int stops;
    bool json;       /* a line {"prompt":...,"text":...} for each prompt; else one prompt's text */
    bool no_special; /* a special token's text in a prompt is ordinary text */
    tr_draw_options draw;
    tr_board *board;               /* shows requests to stop */
    const tr_tokenizer *tokenizer; /* NULL: the bytes of a text are its tokens */
    FILE *out;                     /* NULL: another rank writes */
} cli_texts;

/* Returns a prompt's tokens in *list, which the caller frees, with those that the tokenizer puts
 * before a text. Fails with TR_ERR_DATA when there are none. */
tr_status cli_prompt_tokens(const cli_texts *texts, const char *prompt, tr_token_list *list);
/* Appends the bytes of a token that follows others. */
tr_status cli_token_text(const tr_tokenizer *tokenizer, int32_t token, tr_byte_list *bytes);
/* Returns true when the token ends a text. */
bool cli_token_ends(const tr_tokenizer *tokenizer, int32_t token);

/* Makes and writes the texts. Collective over the session's world; every rank passes the same
 * texts. Fails with TR_ERR_IO when they cannot be written. */
tr_status cli_sample_texts(tr_decode_session *session, const cli_texts *texts);
