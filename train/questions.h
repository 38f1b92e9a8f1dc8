/* The files of multiple-choice questions that a run answers while it trains (train.eval). */
#pragma once

#include "train/evaluate.h"

#include "config/config.h"

typedef struct tr_question_file {
    char *path;
    tr_choices choices;
    tr_choices_score score; /* the newest; 0 questions: none yet */
} tr_question_file;

typedef struct tr_questions {
    tr_question_file *file;
    int count;
    int64_t sequences;      /* of all files */
    tr_sequence_loss *loss; /* [the most sequences of a file] */
} tr_questions;

/* Reads the files that train.eval names; none leave *out empty. tokenizer: of the run's data, NULL:
 * none. Fails like tr_data_paths_expand and tr_choices_open. The caller releases *out with
 * tr_questions_close, also after a failure. */
tr_status tr_questions_open(const tr_config *config, const tr_tokenizer *tokenizer,
                            tr_questions *out);
/* Answers all questions with the engine of the run. Collective; fails like tr_evaluate. */
tr_status tr_questions_answer(tr_questions *questions, tr_engine *engine, const tr_config *config);
void tr_questions_close(tr_questions *questions);
