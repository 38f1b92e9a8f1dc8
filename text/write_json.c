#include "text/write_json.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static tr_status add_words(tr_byte_list *out, const char *text) {
    return tr_bytes_add(out, text, strlen(text));
}

static tr_status add_number(tr_byte_list *out, int32_t number) {
    char text[16];
    (void)snprintf(text, sizeof text, "%" PRId32, number);
    return add_words(out, text);
}

tr_status tr_write_string(tr_byte_list *out, const char *text, size_t length) {
    TR_TRY(tr_bytes_add(out, "\"", 1));
    for (size_t i = 0; i < length; i++) {
        char escape[8];
        uint8_t c = (uint8_t)text[i];
        if (c == '"' || c == '\\') (void)snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < 0x20) (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        else escape[0] = (char)c, escape[1] = '\0';
        TR_TRY(tr_bytes_add(out, escape, strlen(escape)));
    }
    return tr_bytes_add(out, "\"", 1);
}

tr_status tr_write_token(tr_byte_list *out, bool more, int32_t id, const char *content,
                         size_t length) {
    TR_TRY(add_words(out, more ? ",\n{\"id\": " : "\n{\"id\": "));
    TR_TRY(add_number(out, id));
    TR_TRY(add_words(out, ", \"content\": "));
    TR_TRY(tr_write_string(out, content, length));
    return add_words(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                          "\"normalized\": false, \"special\": true}");
}

tr_status tr_write_byte_level(tr_byte_list *out, tr_pattern pattern) {
    if (pattern == TR_PATTERN_GPT2) {
        TR_TRY(add_words(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                              "\"trim_offsets\": true, \"use_regex\": true}"));
    } else {
        const char *regex = tr_pattern_regex(pattern);
        TR_TRY(add_words(out, "{\"type\": \"Sequence\", \"pretokenizers\": [\n"
                              "{\"type\": \"Split\", \"pattern\": {\"Regex\": "));
        TR_TRY(tr_write_string(out, regex, strlen(regex)));
        TR_TRY(add_words(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n"
                              "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                              "\"trim_offsets\": true, \"use_regex\": false}]}"));
    }
    return add_words(out, ",\n\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                          "\"trim_offsets\": true, \"use_regex\": true}");
}

/* Appends the post-processor: the token before each text, and the offsets that only other programs
 * use. */
static tr_status add_post_processor(tr_byte_list *out, const tr_special_text *begin) {
    static const char offsets[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                                  "\"trim_offsets\": false, \"use_regex\": true}";
    TR_TRY(add_words(out, ",\n\"post_processor\": "));
    if (!begin) return add_words(out, offsets);
    TR_TRY(add_words(out, "{\"type\": \"Sequence\", \"processors\": [\n"));
    TR_TRY(add_words(out, offsets));
    TR_TRY(add_words(out, ",\n{\"type\": \"TemplateProcessing\", \"single\": ["
                          "{\"SpecialToken\": {\"id\": "));
    TR_TRY(tr_write_string(out, begin->text, strlen(begin->text)));
    TR_TRY(add_words(out, ", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n"
                          "\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
                          "{\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}],\n"
                          "\"special_tokens\": {"));
    TR_TRY(tr_write_string(out, begin->text, strlen(begin->text)));
    TR_TRY(add_words(out, ": {\"id\": "));
    TR_TRY(tr_write_string(out, begin->text, strlen(begin->text)));
    TR_TRY(add_words(out, ", \"ids\": ["));
    TR_TRY(add_number(out, begin->id));
    TR_TRY(add_words(out, "], \"tokens\": ["));
    TR_TRY(tr_write_string(out, begin->text, strlen(begin->text)));
    return add_words(out, "]}}}]}");
}

/* Appends the characters of a token's bytes as a JSON string. */
static tr_status add_token_name(tr_byte_list *out, const tr_bpe *bpe, int32_t id) {
    size_t length;
    const char *bytes = tr_bpe_token(bpe, id, &length);
    /* At most two bytes for each: a character below U+0800, or an escape. */
    TR_TRY(tr_grow(&out->byte, &out->capacity, out->count + 2 * length + 2, 1));
    uint8_t *to = (uint8_t *)out->byte + out->count;
    *to++ = '"';
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\') *to++ = '\\';
        to += tr_byte_char((uint8_t)bytes[i], to);
    }
    *to++ = '"';
    out->count = (size_t)(to - (uint8_t *)out->byte);
    return TR_OK;
}

typedef struct merge_writer {
    tr_byte_list *out;
    const tr_bpe *bpe;
    bool more;
} merge_writer;

static tr_status add_merge(void *context, int32_t left, int32_t right) {
    merge_writer *w = context;
    TR_TRY(add_words(w->out, w->more ? ",\n[" : "\n["));
    w->more = true;
    TR_TRY(add_token_name(w->out, w->bpe, left));
    TR_TRY(add_words(w->out, ", "));
    TR_TRY(add_token_name(w->out, w->bpe, right));
    return add_words(w->out, "]");
}

/* Appends the vocabulary by the names of bytes, and the special tokens by their text: where ids
 * have gaps, the reference numbers added tokens itself unless the vocabulary has them. */
static tr_status add_vocab(tr_byte_list *out, const tr_bpe *bpe, const tr_tokenizer_form *form) {
    bool more = false;
    for (int32_t id = 0; id < tr_bpe_size(bpe); id++) {
        size_t length;
        const char *bytes = tr_bpe_token(bpe, id, &length);
        if (!bytes || tr_bpe_find(bpe, bytes, length) != id) continue;
        TR_TRY(add_words(out, more ? ",\n" : "\n"));
        more = true;
        TR_TRY(add_token_name(out, bpe, id));
        TR_TRY(add_words(out, ": "));
        TR_TRY(add_number(out, id));
    }
    for (size_t i = 0; i < form->special_count; i++) {
        const char *text = form->special[i].text;
        if (tr_bpe_find(bpe, text, strlen(text)) >= 0) continue;
        TR_TRY(add_words(out, more ? ",\n" : "\n"));
        more = true;
        TR_TRY(tr_write_string(out, text, strlen(text)));
        TR_TRY(add_words(out, ": "));
        TR_TRY(add_number(out, form->special[i].id));
    }
    return TR_OK;
}

tr_status tr_write_tokenizer(tr_byte_list *out, const tr_bpe *bpe, const tr_tokenizer_form *form) {
    TR_TRY(add_words(out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                          "\"added_tokens\": ["));
    for (size_t i = 0; i < form->special_count; i++)
        TR_TRY(tr_write_token(out, i > 0, form->special[i].id, form->special[i].text,
                              strlen(form->special[i].text)));
    TR_TRY(add_words(out, "],\n\"normalizer\": "));
    TR_TRY(add_words(out, form->nfc ? "{\"type\": \"NFC\"}" : "null"));
    TR_TRY(add_words(out, ",\n\"pre_tokenizer\": "));
    TR_TRY(tr_write_byte_level(out, form->pattern));
    TR_TRY(add_post_processor(out, form->begin));
    TR_TRY(add_words(out,
                     ",\n\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,\n"
                     "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
                     "\"fuse_unk\": false,\n\"byte_fallback\": false, \"ignore_merges\": "));
    TR_TRY(add_words(out, tr_bpe_rules_of(bpe)->ignore_merges ? "true" : "false"));
    TR_TRY(add_words(out, ",\n\"vocab\": {"));
    if (!form->no_model) TR_TRY(add_vocab(out, bpe, form));
    TR_TRY(add_words(out, "},\n\"merges\": ["));
    merge_writer writer = {.out = out, .bpe = bpe};
    if (!form->no_model) TR_TRY(tr_bpe_each_merge(bpe, add_merge, &writer));
    return add_words(out, "]}}\n");
}
