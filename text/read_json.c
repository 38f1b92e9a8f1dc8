/* tokenizer.json: the vocabulary, the merges and the added tokens. */
#include "base/memory.h"
#include "text/setting.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 60 }; /* characters of a token in a message */

/* Adds the file and the place to a failure that has none. */
static tr_status at_place(const tr_tokenizer *t, const char *place, size_t index,
                          tr_status status) {
    if (status != TR_ERR_DATA) return status;
    tr_error error;
    tr_error_save(&error);
    return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s', %s[%zu]: %s", t->path, place, index,
                   error.message);
}

/* --- ids -------------------------------------------------------------------------------------- */

/* Finds the largest id of the vocabulary and of the added tokens. */
static tr_status find_size(tr_tokenizer *t, const cJSON *vocab, const cJSON *added) {
    int32_t id, largest = -1;
    const cJSON *item;
    char where[160];
    cJSON_ArrayForEach(item, vocab) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0) {
            (void)snprintf(where, sizeof where, "model.vocab['%.*s']", SHOWN, item->string);
            TR_TRY(tr_setting_id(t->path, where, item, &id));
        }
        TR_TRY(tr_setting_id(t->path, "each value of model.vocab", item, &id));
        if (id > largest) largest = id;
    }
    size_t index = 0;
    cJSON_ArrayForEach(item, added) {
        (void)snprintf(where, sizeof where, "added_tokens[%zu].id", index++);
        TR_TRY(tr_setting_id(t->path, where, cJSON_IsObject(item) ? tr_json_get(item, "id") : NULL,
                             &id));
        if (id > largest) largest = id;
    }
    if (largest < 0) return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s' has no tokens", t->path);
    t->size = largest + 1;
    return TR_OK;
}

/* --- vocabulary and merges -------------------------------------------------------------------- */

static tr_status add_vocab(tr_tokenizer *t, const cJSON *vocab, bool byte_level) {
    const cJSON *item;
    size_t index = 0;
    cJSON_ArrayForEach(item, vocab) {
        char *key = item->string;
        size_t length = strlen(key);
        bool is_piece = true;
        if (byte_level) {
            size_t bytes = tr_byte_chars_decode(key, length);
            is_piece = bytes != SIZE_MAX; /* no text gives any other */
            if (is_piece) length = bytes;
        }
        TR_TRY(
            at_place(t, "model.vocab", index++,
                     tr_bpe_add_token(t->bpe, (int32_t)item->valuedouble, key, length, is_piece)));
    }
    return TR_OK;
}

/* Returns the id of a part of a merge, -1 when it is not in the vocabulary. */
static int32_t part_id(tr_tokenizer *t, char *part, size_t length, bool byte_level) {
    if (byte_level) length = tr_byte_chars_decode(part, length);
    return length == SIZE_MAX || !length ? -1 : tr_bpe_find(t->bpe, part, length);
}

/* Finds the two parts of a merge, ["a", "b"] or "a b"; false when it is neither. */
static bool merge_parts(const cJSON *item, char *part[2], size_t length[2]) {
    if (cJSON_IsArray(item)) {
        const cJSON *second = item->child ? item->child->next : NULL;
        if (!second || second->next || !cJSON_IsString(item->child) || !cJSON_IsString(second))
            return false;
        part[0] = item->child->valuestring;
        part[1] = second->valuestring;
        for (int i = 0; i < 2; i++) length[i] = strlen(part[i]);
        return true;
    }
    if (!cJSON_IsString(item)) return false;
    char *space = strchr(item->valuestring, ' ');
    if (!space) return false;
    part[0] = item->valuestring;
    part[1] = space + 1;
    length[0] = (size_t)(space - part[0]);
    length[1] = strlen(part[1]);
    return !strchr(part[1], ' ');
}

static tr_status add_merges(tr_tokenizer *t, const cJSON *merges, bool byte_level) {
    const cJSON *item;
    size_t index = 0;
    cJSON_ArrayForEach(item, merges) {
        char *part[2];
        size_t length[2];
        int32_t id[2];
        if (!merge_parts(item, part, length))
            return TR_FAIL(
                TR_ERR_DATA,
                "the tokenizer '%s': model.merges[%zu] must be [\"a\", \"b\"] or \"a b\"", t->path,
                index);
        for (int i = 0; i < 2; i++) {
            id[i] = part_id(t, part[i], length[i], byte_level);
            if (id[i] < 0)
                return TR_FAIL(TR_ERR_DATA,
                               "the tokenizer '%s': model.merges[%zu] names a token that is not in "
                               "the vocabulary",
                               t->path, index);
        }
        TR_TRY(at_place(t, "model.merges", index++, tr_bpe_add_merge(t->bpe, id[0], id[1])));
    }
    return TR_OK;
}

static tr_status refuse_affixes(const tr_tokenizer *t, const cJSON *model) {
    static const char *const names[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const char *text;
        TR_TRY(tr_setting_string(t->path, "model", model, names[i], &text));
        if (text && *text)
            return TR_FAIL(
                TR_ERR_DATA,
                "the tokenizer '%s' has model.%s = '%.*s', which Trireme does not read; "
                "byte-level BPE (GPT-2, Llama 3, Qwen) and BPE with byte fallback (Llama "
                "2) work",
                t->path, names[i], SHOWN, text);
    }
    const cJSON *dropout = tr_json_get(model, "dropout");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble <= 0))
        return TR_FAIL(
            TR_ERR_DATA,
            "the tokenizer '%s' has model.dropout, which makes ids random; set it to null",
            t->path);
    return TR_OK;
}

static tr_status read_rules(tr_tokenizer *t, const cJSON *model, bool byte_level) {
    tr_bpe_rules rules = {.byte_level = byte_level, .unk = -1};
    const char *unk;
    TR_TRY(tr_setting_bool(t->path, "model", model, "ignore_merges", false, &rules.ignore_merges));
    TR_TRY(tr_setting_bool(t->path, "model", model, "byte_fallback", false, &rules.byte_fallback));
    TR_TRY(tr_setting_bool(t->path, "model", model, "fuse_unk", false, &rules.fuse_unk));
    TR_TRY(tr_setting_string(t->path, "model", model, "unk_token", &unk));
    if (unk)
        rules.unk =
            part_id(t, tr_json_get(model, "unk_token")->valuestring, strlen(unk), byte_level);
    tr_bpe_set_rules(t->bpe, &rules);
    return TR_OK;
}

/* Reads the model, unless a rank file has brought it. */
static tr_status read_model(tr_tokenizer *t, const cJSON *model, const cJSON *added,
                            bool byte_level) {
    if (t->bpe) {
        t->size = tr_bpe_size(t->bpe);
        return TR_OK;
    }
    const char *type = tr_setting_type(model);
    const cJSON *vocab = tr_json_get(model, "vocab"), *merges = tr_json_get(model, "merges");
    /* Older files have no type; a BPE is the model with merges. */
    if (strcmp(type, "BPE") && (*type || !merges))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s' is of the kind '%.*s'; Trireme reads byte-level BPE "
                       "(GPT-2, Llama 3, Qwen) and BPE with byte fallback (Llama 2)",
                       t->path, SHOWN, *type ? type : "unknown");
    if (!vocab || !cJSON_IsObject(vocab) || !merges || !cJSON_IsArray(merges))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s' needs an object model.vocab and an array model.merges",
                       t->path);
    TR_TRY(refuse_affixes(t, model));
    TR_TRY(find_size(t, vocab, added));
    TR_TRY(tr_bpe_open(t->size, &t->bpe));
    TR_TRY(add_vocab(t, vocab, byte_level));
    TR_TRY(add_merges(t, merges, byte_level));
    return read_rules(t, model, byte_level);
}

/* --- added tokens ----------------------------------------------------------------------------- */

/* Adds the text of a token to the set of names, and to one of the two that are searched. */
static tr_status place_added(tr_tokenizer *t, const char *text, size_t length, bool normalized,
                             const tr_added_token *token, tr_match_work *work) {
    TR_TRY(tr_added_add(t->named, text, length, token));
    if (!normalized) return tr_added_add(t->added, text, length, token);
    if (!t->added_normalized) TR_TRY(tr_added_open(t->cp_table, &t->added_normalized));
    tr_byte_list spare = {0}, normal = {0};
    tr_status status = tr_normalize(t, work, TR_BEGINS_TEXT, text, length, &spare, &normal);
    if (status == TR_OK)
        status = tr_added_add(t->added_normalized, normal.byte, normal.count, token);
    free(spare.byte);
    free(normal.byte);
    return status;
}

/* Puts one added token into the vocabulary, unless it is there, and into a set. */
static tr_status add_added(tr_tokenizer *t, const cJSON *item, size_t index, bool byte_level,
                           tr_match_work *work) {
    char where[64];
    bool normalized;
    tr_added_token token;
    (void)snprintf(where, sizeof where, "added_tokens[%zu]", index);
    const cJSON *content = tr_json_get(item, "content");
    if (!content || !cJSON_IsString(content))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.content must be a string", t->path,
                       where);
    token.id = (int32_t)tr_json_get(item, "id")->valuedouble;
    TR_TRY(tr_setting_bool(t->path, where, item, "single_word", false, &token.single_word));
    TR_TRY(tr_setting_bool(t->path, where, item, "lstrip", false, &token.lstrip));
    TR_TRY(tr_setting_bool(t->path, where, item, "rstrip", false, &token.rstrip));
    TR_TRY(tr_setting_bool(t->path, where, item, "special", false, &token.special));
    TR_TRY(tr_setting_bool(t->path, where, item, "normalized", !token.special, &normalized));
    const char *text = content->valuestring, *there;
    size_t length = strlen(text), known;
    if (length > 4096)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.content is longer than 4096 bytes",
                       t->path, where);
    there = tr_bpe_token(t->bpe, token.id, &known);
    char *plain;
    TR_TRY(tr_calloc(length + 1, 1, &plain));
    memcpy(plain, text, length);
    size_t bytes = byte_level ? tr_byte_chars_decode(plain, length) : length;
    int32_t other = bytes == SIZE_MAX ? -1 : tr_bpe_find(t->bpe, plain, bytes);
    if (bytes == SIZE_MAX) bytes = length;
    tr_status status = TR_OK;
    if (there ? known != bytes || memcmp(there, plain, bytes) : other >= 0 && other != token.id)
        status =
            TR_FAIL(TR_ERR_DATA,
                    "the tokenizer '%s': %s '%.*s' has id %" PRId32 ", but the vocabulary gives %s",
                    t->path, where, SHOWN, text, token.id,
                    there ? "this id to another token" : "this text another id");
    if (status == TR_OK && !there)
        status = at_place(t, "added_tokens", index,
                          tr_bpe_add_token(t->bpe, token.id, text, length, false));
    free(plain);
    TR_TRY(status);
    t->is_special[token.id] |= token.special;
    return place_added(t, text, length, normalized, &token, work);
}

/* Adds special tokens first, as the reference does: of equal texts the first counts. */
static tr_status add_all_added(tr_tokenizer *t, const cJSON *added, bool byte_level) {
    tr_match_work work = {0};
    TR_TRY(tr_match_work_open(&work));
    tr_status status = tr_added_open(t->cp_table, &t->added);
    if (status == TR_OK) status = tr_added_open(t->cp_table, &t->named);
    for (int special = 1; special >= 0 && status == TR_OK; special--) {
        const cJSON *item;
        size_t index = 0;
        cJSON_ArrayForEach(item, added) {
            bool is_special = cJSON_IsTrue(tr_json_get(item, "special"));
            if (is_special == (bool)special && status == TR_OK)
                status = add_added(t, item, index, byte_level, &work);
            index++;
        }
    }
    tr_match_work_close(&work);
    return status;
}

static tr_status read_parts(tr_tokenizer *t, const cJSON *json) {
    bool byte_level = false;
    const cJSON *model = tr_json_get(json, "model"), *added = tr_json_get(json, "added_tokens");
    if (!model || !cJSON_IsObject(model))
        return TR_FAIL(TR_ERR_DATA, "'%s' has no object 'model': it is not a tokenizer.json",
                       t->path);
    if (added && !cJSON_IsArray(added))
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': added_tokens must be an array", t->path);
    TR_TRY(tr_cp_table(&t->cp_table));
    TR_TRY(tr_read_pre_tokenizer(t, tr_json_get(json, "pre_tokenizer"), &byte_level));
    TR_TRY(read_model(t, model, added, byte_level));
    TR_TRY(tr_read_normalizer(t, tr_json_get(json, "normalizer")));
    TR_TRY(tr_calloc((size_t)t->size, sizeof *t->is_special, &t->is_special));
    TR_TRY(add_all_added(t, added, byte_level));
    TR_TRY(tr_read_post_processor(t, tr_json_get(json, "post_processor")));
    return tr_read_decoder(t, tr_json_get(json, "decoder"), added, byte_level);
}

tr_status tr_tokenizer_read_json(tr_tokenizer *t) {
    cJSON *json;
    TR_TRY(tr_setting_parse(t->path, t->file, t->file_length, &json));
    tr_status status = cJSON_IsObject(json)
                           ? read_parts(t, json)
                           : TR_FAIL(TR_ERR_DATA,
                                     "'%s' is not a tokenizer.json: its top is not "
                                     "an object",
                                     t->path);
    cJSON_Delete(json);
    return status;
}
