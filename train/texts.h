/* Texts that a model makes: prompts to tokens, tokens to text. */
#pragma once

#include "text/tokenizer.h"
#include "train/sampler.h"

#include <stdio.h>

/* Prompts that a user gave. */
typedef struct tr_prompts {
    char *text;        /* of the file, cut into lines */
    const char **line; /* [count], none of them empty */
    int *number;       /* [count]: of the line in the file, from 1 */
    int count;
} tr_prompts;

/* Reads a file with a prompt a line; passes over empty lines and a byte order mark. Fails with
 * TR_ERR_NOFILE like tr_input_load, and with TR_ERR_DATA when it is not UTF-8 text or has no
 * prompt. The caller frees *out with tr_prompts_free, also after a failure. */
tr_status tr_prompts_read(const char *path, tr_prompts *out);
void tr_prompts_free(tr_prompts *prompts);

typedef struct tr_texts {
    tr_sampler_desc sampler;       /* how tokens are drawn; first_row: of the first prompt */
    const tr_tokenizer *tokenizer; /* NULL: the bytes of a text are its tokens */
    const char *const *prompt;     /* [prompts], none of them empty */
    int prompts;
    int64_t tokens; /* the most that are drawn for a text */
    const char *const *stop;
    int stops;
    bool no_special; /* a special token's text in a prompt is ordinary text */
    /* Gets prompt and text as they come, and the end of a line: for one prompt. NULL: nothing. */
    FILE *stream;
    bool *full; /* becomes true when a text has filled the context; NULL: not asked for */
    /* Receives each whole text, without its prompt, in the order of the prompts. NULL: no text is
     * kept. */
    tr_status (*made)(void *context, int prompt, const char *text, size_t length);
    void *context;
} tr_texts;

/* Returns what texts have without a user's choice. */
tr_texts tr_texts_default(void);

/* Returns a prompt's tokens in *list, which the caller frees, with those that the tokenizer puts
 * before a text. Fails with TR_ERR_DATA when there are none. */
tr_status tr_texts_encode(const tr_texts *texts, const char *prompt, tr_token_list *list);
/* Fails with `failure` when a prompt has more tokens than `context`, because the model would not
 * read its beginning. The message names its line in the file of `prompts`, after the word `key`. */
tr_status tr_texts_check(const tr_texts *texts, const tr_prompts *prompts, const char *key,
                         const char *file, int64_t context, tr_status failure);
/* Appends the bytes of a token that follows others. */
tr_status tr_texts_decode(const tr_tokenizer *tokenizer, int32_t token, tr_byte_list *bytes);
/* Returns true when the token ends a text. */
bool tr_texts_token_ends(const tr_tokenizer *tokenizer, int32_t token);

/* Makes the texts, as many together as the decoder has rows. Collective over the sampler's world;
 * every rank passes the same texts, except stream, made and context. Fails like tr_sampler_next,
 * with TR_ERR_IO when the stream cannot be written, and like `made`. */
tr_status tr_texts_make(const tr_texts *texts);

/* Writes the line {"step":..,"prompt":..,"text":..}, without the step when it is negative. */
void tr_texts_record(FILE *out, int64_t step, const char *prompt, const char *text, size_t length);
