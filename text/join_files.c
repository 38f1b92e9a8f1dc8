/* GPT-2's first form: vocab.json and merges.txt, made into one tokenizer.json. */
#include "base/input.h"
#include "base/utf8.h"
#include "text/setting.h"
#include "text/tokenizer_impl.h"
#include "text/write_json.h"

#include <stdlib.h>
#include <string.h>

static const tr_input_limit file_limit = {.mib = 256, .failure = TR_ERR_DATA};

static tr_status add_words(tr_byte_list *out, const char *text) {
    return tr_bytes_add(out, text, strlen(text));
}

/* Appends the special tokens that the vocabulary has. */
static tr_status add_specials(const cJSON *vocab, tr_byte_list *out) {
    static const char *const names[] = {"<|endoftext|>", "<s>",    "</s>",   "<pad>",
                                        "<unk>",         "<mask>", "<|pad|>"};
    bool any = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *id = tr_json_get(vocab, names[i]);
        if (!id || !cJSON_IsNumber(id)) continue;
        TR_TRY(tr_write_token(out, any, id->valueint, names[i], strlen(names[i])));
        any = true;
    }
    return TR_OK;
}

/* Appends the lines of merges.txt, without "#version" in the first, as JSON strings. Fails with
 * TR_ERR_DATA at one that is not two tokens with a space between them. */
static tr_status add_merge_lines(const char *path, const char *text, size_t length,
                                 tr_byte_list *out) {
    const size_t valid = tr_utf8_valid((const uint8_t *)text, length);
    const char *end = text + length, *line = text;
    bool any = false;
    if (valid < length)
        return TR_FAIL(TR_ERR_DATA, "the list of merges '%s': byte %zu is not UTF-8", path, valid);
    for (size_t number = 1; line < end; number++) {
        const char *next = memchr(line, '\n', (size_t)(end - line)), *stop = next ? next : end;
        size_t bytes = (size_t)(stop - line);
        if (bytes && line[bytes - 1] == '\r') bytes--;
        bool header = line == text && bytes >= 8 && !memcmp(line, "#version", 8);
        if (bytes && !header) {
            const char *space = memchr(line, ' ', bytes);
            if (!space || memchr(space + 1, ' ', bytes - (size_t)(space + 1 - line)))
                return TR_FAIL(TR_ERR_DATA,
                               "the list of merges '%s', line %zu: a line is two tokens with a "
                               "space between them",
                               path, number);
            if (any) TR_TRY(add_words(out, ",\n"));
            TR_TRY(tr_write_string(out, line, bytes));
            any = true;
        }
        line = stop + 1;
    }
    return TR_OK;
}

static tr_status join(tr_tokenizer *t, const char *vocab_path, const char *vocab, size_t length,
                      const char *merges_path, const char *merges, size_t merges_length) {
    cJSON *json;
    tr_byte_list out = {0};
    const size_t mark = tr_utf8_mark(vocab, length);
    const size_t merges_mark = tr_utf8_mark(merges, merges_length);
    TR_TRY(tr_setting_parse(vocab_path, vocab, length, &json));
    tr_status status;
    TR_TRY_OUT(add_words(&out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                               "\"added_tokens\": ["));
    TR_TRY_OUT(add_specials(json, &out));
    TR_TRY_OUT(add_words(&out, "],\n\"normalizer\": null,\n\"pre_tokenizer\": "));
    TR_TRY_OUT(tr_write_byte_level(&out, TR_PATTERN_GPT2));
    TR_TRY_OUT(add_words(&out,
                         ",\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": "
                         "null,\n\"continuing_subword_prefix\": null, "
                         "\"end_of_word_suffix\": null, \"fuse_unk\": false,\n"
                         "\"byte_fallback\": false, \"ignore_merges\": false,\n\"vocab\": "));
    TR_TRY_OUT(tr_bytes_add(&out, vocab + mark, length - mark));
    TR_TRY_OUT(add_words(&out, ",\n\"merges\": ["));
    TR_TRY_OUT(
        add_merge_lines(merges_path, merges + merges_mark, merges_length - merges_mark, &out));
    TR_TRY_OUT(add_words(&out, "]}}\n"));
    t->file = out.byte;
    t->file_length = out.count;
    out = (tr_byte_list){0};
out:
    free(out.byte);
    cJSON_Delete(json);
    return status;
}

tr_status tr_tokenizer_join_files(tr_tokenizer *t, const char *vocab_path,
                                  const char *merges_path) {
    char *vocab, *merges = NULL;
    size_t length, merges_length;
    TR_TRY(tr_input_load("the vocabulary", vocab_path, file_limit, &vocab, &length));
    tr_status status =
        tr_input_load("the list of merges", merges_path, file_limit, &merges, &merges_length);
    if (status == TR_OK)
        status = join(t, vocab_path, vocab, length, merges_path, merges, merges_length);
    free(vocab);
    free(merges);
    return status;
}
