#include "text/chat.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/setting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tr_input_limit file_limit = {.mib = 64, .failure = TR_ERR_DATA};

/* --- the template ----------------------------------------------------------------------------- */

/* Reads a file next to the tokenizer; *text is NULL when there is none. */
static tr_status load(const tr_tokenizer *t, const char *name, char **path, char **text,
                      size_t *length) {
    const char *whole = tr_tokenizer_path(t), *slash = strrchr(whole, '/');
    const size_t folder = slash ? (size_t)(slash - whole) + 1 : 0;
    const size_t bytes = folder + strlen(name) + 1;
    *text = NULL;
    TR_TRY(tr_calloc(bytes, 1, path));
    (void)snprintf(*path, bytes, "%.*s%s", (int)folder, whole, name);
    if (!tr_input_exists(*path)) return TR_OK;
    return tr_input_load("the chat template", *path, file_limit, text, length);
}

/* Returns the text of a template in tokenizer_config.json, or NULL. */
static const char *template_of(const cJSON *config) {
    const cJSON *value = tr_json_get(config, "chat_template"), *item, *first = NULL;
    if (cJSON_IsString(value)) return value->valuestring;
    if (!cJSON_IsArray(value)) return NULL;
    cJSON_ArrayForEach(item, value) {
        const cJSON *name = tr_json_get(item, "name"), *text = tr_json_get(item, "template");
        if (!cJSON_IsString(text)) continue;
        if (cJSON_IsString(name) && strcmp(name->valuestring, "default") == 0)
            return text->valuestring;
        if (!first) first = text;
    }
    return first ? first->valuestring : NULL;
}

/* Returns the id of a token of the template; fails in *status when the tokenizer does not have
 * it. */
static int32_t token_of(const tr_tokenizer *t, const char *path, const char *text,
                        tr_status *status) {
    const int32_t id = tr_tokenizer_find(t, text);
    if (id < 0 && *status == TR_OK)
        *status = TR_FAIL(TR_ERR_DATA,
                          "the chat template in '%s' uses %s, which the tokenizer '%s' does not "
                          "have: use the tokenizer that belongs to the template",
                          path, text, tr_tokenizer_path(t));
    return id;
}

static tr_status recognise(const tr_tokenizer *t, const char *path, const char *text,
                           tr_chat *out) {
    tr_status status = TR_OK;
    const char *const phi = strstr(text, "<|im_sep|>"); /* not ChatML: its headers end with this */
    if (!phi && strstr(text, "<|im_start|>") && strstr(text, "<|im_end|>")) {
        out->form = TR_CHAT_CHATML;
        out->start = token_of(t, path, "<|im_start|>", &status);
        out->end = token_of(t, path, "<|im_end|>", &status);
    } else if (strstr(text, "<|start_header_id|>") && strstr(text, "<|end_header_id|>") &&
               strstr(text, "<|eot_id|>")) {
        out->form = TR_CHAT_LLAMA3;
        out->start = token_of(t, path, "<|start_header_id|>", &status);
        out->header_end = token_of(t, path, "<|end_header_id|>", &status);
        out->end = token_of(t, path, "<|eot_id|>", &status);
    } else {
        status = TR_FAIL(TR_ERR_DATA,
                         "the chat template in '%s' has neither ChatML's tokens (<|im_start|>, "
                         "<|im_end|>) nor Llama 3's (<|start_header_id|>, <|end_header_id|>, "
                         "<|eot_id|>): Trireme knows only these two forms",
                         path);
    }
    return status;
}

/* Returns the token that a template writes before the first turn; -1: none. */
static int32_t begin_of(const tr_tokenizer *t, const char *template, const cJSON *config) {
    static const char llama3[] = "<|begin_of_text|>";
    const int32_t *prefix;
    if (!strstr(template, "bos_token"))
        return strstr(template, llama3) ? tr_tokenizer_find(t, llama3) : -1;
    const cJSON *bos = tr_json_get(config, "bos_token");
    if (cJSON_IsObject(bos)) bos = tr_json_get(bos, "content");
    if (cJSON_IsString(bos)) return tr_tokenizer_find(t, bos->valuestring);
    return tr_tokenizer_prefix(t, &prefix) > 0 ? prefix[0] : -1;
}

/* Reads tokenizer_config.json; *json is NULL when there is none. */
static tr_status load_config(const tr_tokenizer *t, char **path, cJSON **json) {
    char *text;
    size_t length;
    tr_status status = load(t, "tokenizer_config.json", path, &text, &length);
    if (status == TR_OK && text) status = tr_setting_parse(*path, text, length, json);
    free(text);
    return status;
}

tr_status tr_chat_find(const tr_tokenizer *t, tr_chat *out) {
    char *path = NULL, *config_path = NULL, *text = NULL;
    size_t length;
    cJSON *config = NULL;
    *out = (tr_chat){.form = TR_CHAT_NONE, .begin = -1, .start = -1, .header_end = -1, .end = -1};
    tr_status status = load_config(t, &config_path, &config);
    if (status == TR_OK) status = load(t, "chat_template.jinja", &path, &text, &length);
    const char *template = text ? text : template_of(config);
    if (status == TR_OK && template) {
        status = recognise(t, text ? path : config_path, template, out);
        out->begin = begin_of(t, template, config);
    }
    cJSON_Delete(config);
    free(text);
    free(path);
    free(config_path);
    return status;
}

/* --- turns ------------------------------------------------------------------------------------ */

/* Appends a text of the template, which follows a token. */
static tr_status add_text(tr_encoder *encoder, const char *text, tr_token_list *list) {
    return tr_encoder_add(encoder, text, strlen(text), TR_ENCODE_NO_SPECIAL | TR_ENCODE_AFTER_TOKEN,
                          list);
}

tr_status tr_chat_begin(const tr_chat *chat, tr_token_list *list) {
    return chat->begin >= 0 ? tr_tokens_add(list, &chat->begin, 1) : TR_OK;
}

tr_status tr_chat_header(const tr_chat *chat, tr_encoder *encoder, const char *role,
                         tr_token_list *list) {
    char line[64];
    TR_TRY(tr_tokens_add(list, &chat->start, 1));
    if (chat->form == TR_CHAT_CHATML) {
        (void)snprintf(line, sizeof line, "%.60s\n", role);
        return add_text(encoder, line, list);
    }
    TR_TRY(add_text(encoder, role, list));
    TR_TRY(tr_tokens_add(list, &chat->header_end, 1));
    return add_text(encoder, "\n\n", list);
}

/* Returns true for the white space of Python's str.strip(), which a template's trim calls. */
static bool is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Removes the white space around a text. */
static void trim(const char **text, size_t *length) {
    const uint8_t *p = (const uint8_t *)*text, *end = p + *length;
    uint32_t cp;
    for (size_t bytes; p < end; p += bytes) {
        bytes = tr_utf8_next(p, end, &cp);
        if (!is_space(cp)) break;
    }
    for (const uint8_t *last = end; last > p; end = last) {
        do last--;
        while (last > p && (*last & 0xC0) == 0x80);
        if (last + tr_utf8_next(last, end, &cp) != end || !is_space(cp)) break;
    }
    *text = (const char *)p;
    *length = (size_t)(end - p);
}

tr_status tr_chat_text(const tr_chat *chat, tr_encoder *encoder, const char *text, size_t length,
                       unsigned flags, tr_token_list *list) {
    if (chat->form == TR_CHAT_LLAMA3) trim(&text, &length);
    TR_TRY(tr_encoder_add(encoder, text, length, flags | TR_ENCODE_CONTINUES, list));
    return tr_tokens_add(list, &chat->end, 1);
}

tr_status tr_chat_separator(const tr_chat *chat, tr_encoder *encoder, tr_token_list *list) {
    return chat->form == TR_CHAT_CHATML ? add_text(encoder, "\n", list) : TR_OK;
}
