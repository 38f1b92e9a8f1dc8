/* Multiple-choice questions: a context and several endings, one of which is right.
 *
 * JSON lines, one question a line:
 *   {"context": "The sky is", "choices": ["blue", "loud"], "label": 0}
 * "ctx", "query" or "question" may stand for "context", "endings" for "choices", and "gold" or
 * "answer" for "label", which is a number from 0, also as a string, or a letter from A. A space
 * goes between context and ending where neither has one; the two are tokenized apart.
 *
 * llm.c's evaluation files (hellaswag_val.bin): 256 int32, magic 20240522, version 1, number of
 * questions; then for each question uint16: 65535, its bytes, its index, label, number of endings,
 * and for the context and each ending the number of its tokens and the tokens. */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

/* A context with one of its endings: `length` tokens, the first `context` of which begin at
 * `first`, where the question's other choices have them, too, and the ending's at `ending`. */
typedef struct tr_choice {
    int64_t first, context, ending, length;
    int64_t bytes; /* of the ending's text as it is written; 0: only its tokens are known */
} tr_choice;

typedef struct tr_question {
    int64_t first; /* of its choices */
    int choices, label;
} tr_question;

typedef struct tr_choices {
    tr_token_list tokens;
    tr_choice *choice;
    int64_t count, longest; /* longest: inputs of a choice, one less than its tokens */
    tr_question *question;
    int64_t questions;
    size_t choice_capacity, question_capacity;
} tr_choices;

typedef struct tr_choices_options {
    const tr_tokenizer *tokenizer; /* of JSON lines; NULL: none */
    bool bytes;                    /* without a tokenizer, a text's bytes are its tokens */
    int64_t vocab, context;        /* of the model */
} tr_choices_options;

/* Returns true when the file has questions: its name ends like JSON lines, or it begins with
 * llm.c's number. */
bool tr_choices_is_file(const char *path);
/* Reads all questions. Fails with TR_ERR_NOFILE when there is no such file, with TR_ERR_DATA
 * and line or byte when it is damaged, a label is not that of a choice, or a choice is longer than
 * the context, or a line has over 16 MiB, and with TR_ERR_CONFIG when text is to be tokenized
 * without a tokenizer or a token of the file is vocab or above. The caller releases *out with
 * tr_choices_free, also after a failure. */
tr_status tr_choices_open(const char *path, const tr_choices_options *options, tr_choices *out);
/* Returns token t of a choice, below its length. */
int32_t tr_choices_token(const tr_choices *choices, const tr_choice *choice, int64_t t);
void tr_choices_free(tr_choices *choices);
