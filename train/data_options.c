#include "train/data_options.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *tr_train_tokens_folder(const tr_config *config, char *text, size_t size) {
    (void)snprintf(text, size, "%s/tokens", config->log.dir);
    return text;
}

/* Returns the folder of the tokenizer that came with the weights: model.init_from, or what a run
 * that has saved keeps in log.dir. An imported run has no model.init_from, and the folder may be
 * gone when a run is continued. */
static const char *find_origin(const tr_config *c, char *folder, size_t size) {
    const char *origin = tr_config_origin(c);
    if (*origin && tr_tokenizer_in(origin)) return origin;
    (void)snprintf(folder, size, "%s/ckpt", c->log.dir);
    const bool saved = access(folder, F_OK) == 0;
    (void)snprintf(folder, size, "%s/tokenizer", c->log.dir);
    return saved && tr_tokenizer_in(folder) ? folder : "";
}

/* Of data.format bytes, where every byte is an id. */
static tr_status use_none(const tr_config *c, const char *origin, char note[TR_DATA_NOTE]) {
    if (c->data.tokenizer[0])
        return TR_FAIL(TR_ERR_CONFIG,
                       "data.tokenizer is set, but data.format bytes makes every byte a token: set "
                       "data.format to text, or leave data.tokenizer out");
    if (*origin)
        (void)snprintf(note, TR_DATA_NOTE,
                       "with data.format bytes every byte is a token, although '%.512s' has a "
                       "tokenizer: data.format=text uses it",
                       origin);
    return TR_OK;
}

tr_status tr_train_find_tokenizer(const tr_config *c, char note[TR_DATA_NOTE],
                                  tr_tokenizer **tokenizer) {
    const char *format = c->data.format;
    char folder[TR_CONFIG_PATH + 16];
    *tokenizer = NULL;
    note[0] = '\0';
    const char *origin = find_origin(c, folder, sizeof folder);
    if (strcmp(format, "bytes") == 0) return use_none(c, origin, note);
    const bool text = !strcmp(format, "text") || !strcmp(format, "instruct");
    const bool ends = tr_config_packed(c) && c->data.document_end < 0; /* it knows them */
    return tr_data_find_tokenizer(c->data.tokenizer, c->data.path, origin, c->model.vocab,
                                  text || (ends && strcmp(format, "megatron") != 0), note,
                                  tokenizer);
}

tr_status tr_train_open_data(tr_config *c, char note[TR_DATA_NOTE], tr_tokenizer **tokenizer,
                             tr_data **data) {
    TR_TRY(tr_train_find_tokenizer(c, note, tokenizer));
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
    TR_TRY(tr_data_open(&options, data));
    if (tr_config_packed(c)) c->data.document_end = tr_data_document_end(*data);
    else if (*tokenizer && c->data.document_end < 0)
        c->data.document_end = tr_tokenizer_document_end(*tokenizer);
    return TR_OK;
}
