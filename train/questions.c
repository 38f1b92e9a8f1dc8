#include "train/questions.h"

#include "base/memory.h"
#include "data/paths.h"

#include <stdlib.h>
#include <string.h>

static tr_status open_file(const char *path, const tr_choices_options *options,
                           tr_question_file *file) {
    TR_TRY(tr_strdup(path, &file->path));
    return tr_choices_open(path, options, &file->choices);
}

static tr_status open_files(char **path, int count, const tr_choices_options *options,
                            tr_questions *out) {
    int64_t most = 0;
    TR_TRY(tr_calloc((size_t)count, sizeof *out->file, &out->file));
    for (; out->count < count; out->count++) {
        tr_question_file *file = &out->file[out->count];
        tr_status status = open_file(path[out->count], options, file);
        if (status != TR_OK) {
            out->count++; /* it is released, too */
            return status;
        }
        out->sequences += file->choices.count;
        if (file->choices.count > most) most = file->choices.count;
    }
    return tr_calloc((size_t)most, sizeof *out->loss, &out->loss);
}

tr_status tr_questions_open(const tr_config *c, const tr_tokenizer *tokenizer, tr_questions *out) {
    const tr_choices_options options = {.tokenizer = tokenizer,
                                        .bytes = !tokenizer && strcmp(c->data.format, "bytes") == 0,
                                        .vocab = c->model.vocab,
                                        .context = c->model.context};
    tr_data_paths paths;
    char **file = NULL;
    int count = 0;
    *out = (tr_questions){0};
    if (!c->train.eval[0]) return TR_OK;
    tr_status status = tr_data_paths_parse("train.eval", c->train.eval, &paths);
    if (status == TR_OK && paths.part[0].weight)
        status = TR_FAIL(TR_ERR_CONFIG, "train.eval takes files without weights, like train.eval: "
                                        "questions.jsonl");
    if (status == TR_OK) status = tr_data_paths_expand("train.eval", &paths.part[0], &file, &count);
    if (status == TR_OK) {
        status = open_files(file, count, &options, out);
        if (status != TR_OK) status = TR_FAIL(status, "%s (train.eval)", tr_error_message());
    }
    tr_data_paths_free_files(file, count);
    tr_data_paths_free(&paths);
    return status;
}

tr_status tr_questions_answer(tr_questions *q, tr_engine *engine, const tr_config *c) {
    for (int k = 0; k < q->count; k++) {
        tr_question_file *file = &q->file[k];
        tr_sequences sequences;
        TR_TRY(tr_sequences_of_choices(&file->choices, c->model.context, &sequences));
        tr_status status = tr_evaluate(engine, &sequences, c->train.batch, NULL, q->loss);
        tr_sequences_free(&sequences);
        TR_TRY(status);
        file->score = tr_evaluate_choices(&file->choices, q->loss);
    }
    return TR_OK;
}

void tr_questions_close(tr_questions *q) {
    for (int k = 0; k < q->count; k++) {
        tr_choices_free(&q->file[k].choices);
        free(q->file[k].path);
    }
    free(q->file);
    free(q->loss);
    *q = (tr_questions){0};
}
