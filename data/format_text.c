/* Text. Its tokens are those that the run keeps in a folder; without them it is tokenized when it
 * is opened, and the tokens are kept in memory. */
#include "base/memory.h"
#include "data/format_impl.h"
#include "data/kept_tokens.h"
#include "data/textparts.h"

#include <stdlib.h>

/* Opens the tokens in a folder. Documents end with a token, as those in memory do. */
static tr_status open_kept(const char *stem, const tr_source_options *options, tr_source *source) {
    tr_source_options plain = *options;
    plain.documents = false;
    TR_TRY(tr_format_open_megatron(stem, &plain, source));
    source->lists_ends = false;
    source->documents = 0;
    return TR_OK;
}

/* Encodes a text part by part. */
static tr_status encode(const char *path, tr_encoder *encoder, tr_token_list *tokens) {
    tr_textparts parts = {0};
    unsigned flags = 0, next;
    tr_status status = tr_textparts_open(path, &parts);
    for (size_t bytes; status == TR_OK && !tr_textparts_at_end(&parts); flags = next) {
        status = tr_textparts_find(&parts, encoder, 0, &bytes, &next);
        if (status == TR_OK)
            status = tr_textparts_failed(
                tr_encoder_add(encoder, parts.rest.byte, bytes, flags, tokens), path, 0);
        if (status == TR_OK) tr_textparts_take(&parts, bytes);
    }
    tr_textparts_close(&parts);
    return status;
}

tr_status tr_format_open_text(const char *path, const tr_source_options *options,
                              tr_source *source) {
    tr_token_list tokens = {0};
    tr_encoder *encoder = NULL;
    tr_status status = TR_OK;
    if (!options->tokenizer)
        return TR_FAIL(TR_ERR_CONFIG, "data.format text needs data.tokenizer: name a "
                                      "tokenizer.json, a tiktoken file, or a folder with one");
    if (tr_textfile_is_json_lines(path))
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' holds lines of JSON, which data.format text does not read: make token "
                       "files with `trireme data tokenize`, and set data.format megatron",
                       path);
    char stem[PATH_MAX];
    if (tr_kept_tokens_find(options, path, stem))
        return tr_kept_tokens_opened(options, open_kept(stem, options, source));
    TR_TRY(tr_format_open_file(path, source));
    TR_TRY_OUT(tr_encoder_open(options->tokenizer, &encoder));
    TR_TRY_OUT(encode(path, encoder, &tokens));
    const int32_t end = tr_tokenizer_document_end(options->tokenizer);
    if (end >= 0) {
        TR_TRY_OUT(tr_grow(&tokens.id, &tokens.capacity, tokens.count + 1, sizeof *tokens.id));
        tokens.id[tokens.count++] = end;
    }
    source->width = sizeof *tokens.id;
    source->memory = tokens.id;
    source->tokens = (int64_t)tokens.count;
    tokens.id = NULL;
out:
    tr_encoder_close(encoder);
    free(tokens.id);
    return status;
}
