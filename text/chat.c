#include "text/chat.h"

#include "base/input.h"
#include "base/memory.h"
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
    if (access(*path, F_OK) != 0) return TR_OK;
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

/* Returns the id of a token of the template; fails in *status when the tokenizer does not have it.
 */
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
    out->begins = strstr(text, "bos_token") || strstr(text, "<|begin_of_text|>");
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

static tr_status find_in_config(const tr_tokenizer *t, tr_chat *out) {
    char *path, *text;
    size_t length;
    cJSON *json = NULL;
    tr_status status = load(t, "tokenizer_config.json", &path, &text, &length);
    if (status == TR_OK && text) status = tr_setting_parse(path, text, length, &json);
    const char *template = json ? template_of(json) : NULL;
    if (status == TR_OK && template) status = recognise(t, path, template, out);
    cJSON_Delete(json);
    free(text);
    free(path);
    return status;
}

tr_status tr_chat_find(const tr_tokenizer *t, tr_chat *out) {
    char *path, *text;
    size_t length;
    *out = (tr_chat){.form = TR_CHAT_NONE, .start = -1, .header_end = -1, .end = -1};
    tr_status status = load(t, "chat_template.jinja", &path, &text, &length);
    if (status == TR_OK && text) status = recognise(t, path, text, out);
    else if (status == TR_OK) status = find_in_config(t, out);
    free(text);
    free(path);
    return status;
}

/* --- turns ------------------------------------------------------------------------------------ */

static tr_status add_token(int32_t id, tr_token_list *list) {
    TR_TRY(tr_grow(&list->id, &list->capacity, list->count + 1, sizeof id));
    list->id[list->count++] = id;
    return TR_OK;
}

static tr_status add_text(tr_encoder *encoder, const char *text, tr_token_list *list) {
    return tr_encoder_add(encoder, text, strlen(text), TR_ENCODE_NO_SPECIAL, list);
}

tr_status tr_chat_begin(const tr_chat *chat, const tr_tokenizer *tokenizer, tr_token_list *list) {
    const int32_t *id;
    const size_t count = chat->begins ? tr_tokenizer_prefix(tokenizer, &id) : 0;
    for (size_t i = 0; i < count; i++) TR_TRY(add_token(id[i], list));
    return TR_OK;
}

tr_status tr_chat_header(const tr_chat *chat, tr_encoder *encoder, const char *role,
                         tr_token_list *list) {
    char line[64];
    TR_TRY(add_token(chat->start, list));
    if (chat->form == TR_CHAT_CHATML) {
        (void)snprintf(line, sizeof line, "%.60s\n", role);
        return add_text(encoder, line, list);
    }
    TR_TRY(add_text(encoder, role, list));
    TR_TRY(add_token(chat->header_end, list));
    return add_text(encoder, "\n\n", list);
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

tr_status tr_chat_text(const tr_chat *chat, tr_encoder *encoder, const char *text, size_t length,
                       unsigned flags, tr_token_list *list) {
    if (chat->form == TR_CHAT_LLAMA3) {
        while (length > 0 && is_space(text[length - 1])) length--;
        while (length > 0 && is_space(*text)) text++, length--;
    }
    TR_TRY(tr_encoder_add(encoder, text, length, flags, list));
    return add_token(chat->end, list);
}

tr_status tr_chat_separator(const tr_chat *chat, tr_encoder *encoder, tr_token_list *list) {
    return chat->form == TR_CHAT_CHATML ? add_text(encoder, "\n", list) : TR_OK;
}
