/* tokenizer.json: the post-processor, and the decoder as one text for each token. */
#include "base/memory.h"
#include "text/setting.h"
#include "text/tokenizer_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN = 60,
    FRAME_MAX = 256,     /* parts of a template, and ids before or after a text */
    MOST_TEXT = 1 << 28, /* bytes of what all tokens decode to */
};

/* --- post-processor --------------------------------------------------------------------------- */

static tr_status add_id(const tr_tokenizer *t, const char *where, const cJSON *number,
                        tr_token_list *list) {
    int32_t id;
    TR_TRY(tr_setting_id(t->path, where, number, &id));
    if (id >= t->size)
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': the post_processor adds id %" PRId32
                       ", but the largest id is %" PRId32,
                       t->path, id, t->size - 1);
    if (list->count == FRAME_MAX)
        return TR_FAIL(
            TR_ERR_DATA,
            "the tokenizer '%s': the post_processor adds more than %d ids before or after "
            "a text",
            t->path, FRAME_MAX);
    return tr_tokens_add(list, &id, 1);
}

/* Appends the ids of a special token of a template. */
static tr_status add_special(const tr_tokenizer *t, const cJSON *template_, const cJSON *special,
                             tr_token_list *list) {
    const char *name = NULL;
    TR_TRY(tr_setting_string(t->path, "post_processor", special, "id", &name));
    const cJSON *tokens = tr_json_get(template_, "special_tokens"), *id;
    const cJSON *token = tokens && name ? tr_json_get(tokens, name) : NULL;
    const cJSON *ids = token ? tr_json_get(token, "ids") : NULL;
    if (!ids || !cJSON_IsArray(ids))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': post_processor.special_tokens has no ids of '%.*s'",
                       t->path, SHOWN, name ? name : "");
    cJSON_ArrayForEach(id, ids) {
        TR_TRY(add_id(t, "post_processor.special_tokens", id, list));
    }
    return TR_OK;
}

static tr_status read_template(tr_tokenizer *t, const cJSON *json) {
    const cJSON *single = tr_json_get(json, "single"), *item;
    bool after = false;
    int parts = 0;
    if (!single || !cJSON_IsArray(single))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': post_processor.single must be an array",
                       t->path);
    cJSON_ArrayForEach(item, single) {
        if (parts++ == FRAME_MAX) /* the name of each is searched in special_tokens */
            return TR_FAIL(TR_ERR_DATA,
                           "the tokenizer '%s': post_processor.single has more than %d parts",
                           t->path, FRAME_MAX);
        const cJSON *special = tr_json_get(item, "SpecialToken");
        if (special) TR_TRY(add_special(t, json, special, after ? &t->suffix : &t->prefix));
        else after = true;
    }
    return TR_OK;
}

/* RobertaProcessing and BertProcessing: "cls" before the text, "sep" after it, each [text, id]. */
static tr_status read_frame(tr_tokenizer *t, const cJSON *json) {
    for (int after = 0; after < 2; after++) {
        const cJSON *pair = tr_json_get(json, after ? "sep" : "cls");
        const cJSON *id = pair && pair->child ? pair->child->next : NULL;
        TR_TRY(add_id(t, after ? "post_processor.sep[1]" : "post_processor.cls[1]", id,
                      after ? &t->suffix : &t->prefix));
    }
    return TR_OK;
}

static tr_status read_processor(tr_tokenizer *t, const cJSON *json, int depth) {
    if (!json) return TR_OK;
    const char *type = tr_setting_type(json);
    if (!strcmp(type, "ByteLevel")) return TR_OK; /* only moves offsets */
    if (!strcmp(type, "TemplateProcessing")) return read_template(t, json);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing"))
        return read_frame(t, json);
    if (!strcmp(type, "Sequence") && depth < 8) {
        const cJSON *step;
        cJSON_ArrayForEach(step, tr_json_get(json, "processors")) {
            TR_TRY(read_processor(t, step, depth + 1));
        }
        return TR_OK;
    }
    return TR_FAIL(
        TR_ERR_DATA,
        "the tokenizer '%s' has a post_processor '%.*s'; Trireme reads ByteLevel, "
        "TemplateProcessing, BertProcessing and RobertaProcessing, and Sequences of them",
        t->path, SHOWN, type);
}

tr_status tr_read_post_processor(tr_tokenizer *t, const cJSON *json) {
    return read_processor(t, json, 0);
}

/* --- decoder ---------------------------------------------------------------------------------- */

typedef struct replacement {
    const char *from, *to;
} replacement;

/* What the decoder does with the text of a token. */
typedef struct decoder {
    bool bytes; /* <0x00> to <0xFF> are bytes */
    replacement replace[TR_STEPS_MAX];
    int replaces;
} decoder;

static tr_status unknown_decoder(const tr_tokenizer *t, const char *type) {
    return TR_FAIL(
        TR_ERR_DATA,
        "the tokenizer '%s' has a decoder '%.*s'; Trireme reads ByteLevel, Metaspace, "
        "Replace of a string, ByteFallback, Fuse and a Strip of spaces at the start, and "
        "Sequences of them",
        t->path, SHOWN, type);
}

static tr_status add_replacement(tr_tokenizer *t, decoder *d, const char *from, const char *to) {
    if (!from || !*from || !to || d->replaces == TR_STEPS_MAX)
        return unknown_decoder(t, "Replace of an expression");
    d->replace[d->replaces++] = (replacement){from, to};
    return TR_OK;
}

static tr_status read_strip(tr_tokenizer *t, const cJSON *json) {
    const cJSON *start = tr_json_get(json, "start"), *stop = tr_json_get(json, "stop");
    const char *content;
    TR_TRY(tr_setting_string(t->path, "decoder", json, "content", &content));
    double spaces = start && cJSON_IsNumber(start) ? start->valuedouble : -1;
    if (!content || strcmp(content, " ") || !(spaces >= 0 && spaces <= 100) ||
        (stop && stop->valuedouble > 0))
        return unknown_decoder(t, "Strip of anything else");
    t->strip = (size_t)spaces;
    return TR_OK;
}

static tr_status read_decoder(tr_tokenizer *t, const cJSON *json, decoder *d, int depth) {
    const char *type = tr_setting_type(json), *text, *other;
    if (!strcmp(type, "ByteLevel") || !strcmp(type, "Fuse")) return TR_OK;
    if (!strcmp(type, "ByteFallback")) {
        d->bytes = true;
        return TR_OK;
    }
    if (!strcmp(type, "Strip")) return read_strip(t, json);
    if (!strcmp(type, "Replace")) {
        const cJSON *pattern = tr_json_get(json, "pattern");
        TR_TRY(tr_setting_string(t->path, "decoder", pattern, "String", &text));
        TR_TRY(tr_setting_string(t->path, "decoder", json, "content", &other));
        return add_replacement(t, d, text, other);
    }
    if (!strcmp(type, "Metaspace")) {
        bool prefix;
        TR_TRY(tr_setting_string(t->path, "decoder", json, "replacement", &text));
        TR_TRY(tr_setting_string(t->path, "decoder", json, "prepend_scheme", &other));
        TR_TRY(tr_setting_bool(t->path, "decoder", json, "add_prefix_space", true, &prefix));
        t->strip = (other ? strcmp(other, "never") != 0 : prefix) ? 1 : 0;
        return add_replacement(t, d, text ? text : "\u2581", " ");
    }
    if (!strcmp(type, "Sequence") && depth < 8) {
        const cJSON *step;
        cJSON_ArrayForEach(step, tr_json_get(json, "decoders")) {
            TR_TRY(read_decoder(t, step, d, depth + 1));
        }
        return TR_OK;
    }
    return unknown_decoder(t, type);
}

/* Appends text with every `from` replaced. */
static tr_status add_replaced(const tr_tokenizer *t, const char *text, size_t length,
                              const replacement *r, tr_byte_list *out) {
    const size_t bytes = strlen(r->from), to = strlen(r->to);
    for (const char *at; length && (at = memmem(text, length, r->from, bytes));) {
        if (t->text.count + out->count + (size_t)(at - text) + to > MOST_TEXT)
            return TR_FAIL(TR_ERR_DATA,
                           "the tokenizer '%s': the Replace steps of its decoder make more than %d "
                           "bytes of its tokens: remove them",
                           t->path, MOST_TEXT);
        TR_TRY(tr_bytes_add(out, text, (size_t)(at - text)));
        TR_TRY(tr_bytes_add(out, r->to, to));
        length -= (size_t)(at - text) + bytes;
        text = at + bytes;
    }
    return tr_bytes_add(out, text, length);
}

static bool is_byte_name(const char *text, size_t length, char *byte) {
    unsigned value;
    if (length != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return false;
    char digits[3] = {text[3], text[4], '\0'};
    if (strspn(digits, "0123456789ABCDEFabcdef") != 2 || sscanf(digits, "%x", &value) != 1)
        return false;
    *byte = (char)value;
    return true;
}

/* Appends what a token decodes to. */
static tr_status add_text(tr_tokenizer *t, const decoder *d, const char *token, size_t length,
                          tr_byte_list scratch[2]) {
    char byte;
    if (d->bytes && is_byte_name(token, length, &byte)) return tr_bytes_add(&t->text, &byte, 1);
    const char *from = token;
    for (int i = 0; i < d->replaces; i++) {
        tr_byte_list *to = &scratch[i % 2];
        to->count = 0;
        TR_TRY(add_replaced(t, from, length, &d->replace[i], to));
        from = to->byte;
        length = to->count;
    }
    return tr_bytes_add(&t->text, from, length);
}

/* Returns for each id the content of its added token, NULL for other ids. */
static tr_status list_contents(const tr_tokenizer *t, const cJSON *added, const cJSON ***out) {
    const cJSON *item;
    TR_TRY(tr_calloc((size_t)t->size, sizeof **out, out));
    cJSON_ArrayForEach(item, added) {
        (*out)[(size_t)tr_json_get(item, "id")->valuedouble] = tr_json_get(item, "content");
    }
    return TR_OK;
}

tr_status tr_read_decoder(tr_tokenizer *t, const cJSON *json, const cJSON *added, bool byte_level) {
    decoder d = {0};
    const cJSON **content;
    tr_byte_list scratch[2] = {0};
    if (json) TR_TRY(read_decoder(t, json, &d, 0));
    if (byte_level && (d.replaces || d.bytes || t->strip))
        return unknown_decoder(t, "that is not ByteLevel after a ByteLevel pre_tokenizer");
    TR_TRY(tr_calloc((size_t)t->size + 1, sizeof *t->text_start, &t->text_start));
    TR_TRY(list_contents(t, added, &content));
    tr_status status = TR_OK;
    for (int32_t id = 0; id < t->size && status == TR_OK; id++) {
        size_t length;
        const char *token = tr_bpe_token(t->bpe, id, &length);
        if (content[id]) token = content[id]->valuestring, length = strlen(token);
        t->text_start[id] = t->text.count;
        if (!token) status = tr_bytes_add(&t->text, "\uFFFD", 3);
        else if (content[id]) status = tr_bytes_add(&t->text, token, length);
        else status = add_text(t, &d, token, length, scratch);
    }
    t->text_start[t->size] = t->text.count;
    free(content);
    free(scratch[0].byte);
    free(scratch[1].byte);
    return status;
}
