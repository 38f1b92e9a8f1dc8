#include "train/data_options.h"

#include "data/find_tokenizer.h"

#include <stdio.h>
#include <string.h>

const char *tr_train_tokens_folder(const tr_config *config, char *text, size_t size) {
    (void)snprintf(text, size, "%s/tokens", config->log.dir);
    return text;
}

tr_status tr_train_open_data(tr_config *c, tr_tokenizer **tokenizer, tr_data **data) {
    const bool bytes = strcmp(c->data.format, "bytes") == 0; /* every byte is an id */
    *tokenizer = NULL;
    if (!bytes)
        TR_TRY(tr_data_find_tokenizer(
            c->data.tokenizer, c->data.path, tr_config_origin(c), c->model.vocab,
            !strcmp(c->data.format, "text") || !strcmp(c->data.format, "instruct"), tokenizer));
    if (*tokenizer && c->data.document_end < 0)
        c->data.document_end = tr_tokenizer_document_end(*tokenizer);
    char tokens[TR_CONFIG_PATH + 16];
    tr_data_options options = {.path = c->data.path,
                               .format = c->data.format,
                               .tokenizer = *tokenizer,
                               .tokens = tr_train_tokens_folder(c, tokens, sizeof tokens),
                               .context = c->model.context,
                               .vocab = c->model.vocab,
                               .seed = (uint64_t)c->train.seed,
                               .packed = tr_config_packed(c),
                               .document_end = tr_config_document_end(c)};
    options.validation = tr_config_validation(c, &options.validation_path);
    return tr_data_open(&options, data);
}
