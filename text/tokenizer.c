#include "text/tokenizer_impl.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/utf8.h"
#include "text/setting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ENDS_MAX = 256 }; /* each id is compared with all before it */

static const tr_input_limit file_limit = {.mib = 256, .failure = TR_ERR_DATA};

tr_status tr_tokens_add(tr_token_list *list, const int32_t *id, size_t count) {
    TR_TRY(tr_grow(&list->id, &list->capacity, list->count + count, sizeof *id));
    if (count > 0) memcpy(list->id + list->count, id, count * sizeof *id);
    list->count += count;
    return TR_OK;
}

tr_status tr_bytes_add(tr_byte_list *list, const char *bytes, size_t length) {
    TR_TRY(tr_grow(&list->byte, &list->capacity, list->count + length + 1, 1));
    if (length > 0) memcpy(list->byte + list->count, bytes, length);
    list->count += length;
    return TR_OK;
}

void tr_tokenizer_close(tr_tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->normal_count; i++) {
        tr_matcher_close(&t->normal[i].matcher);
        free(t->normal[i].text);
    }
    for (int i = 0; i < t->step_count; i++) tr_matcher_close(&t->step[i].matcher);
    tr_added_close(t->named);
    tr_added_close(t->added);
    tr_added_close(t->added_normalized);
    tr_bpe_close(t->bpe);
    free(t->cp_table);
    free(t->is_special);
    free(t->prefix.id);
    free(t->suffix.id);
    free(t->ends.id);
    free(t->text.byte);
    free(t->text_start);
    free(t->file);
    free(t->path);
    free(t);
}

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status path_in(const char *folder, const char *name, char **out) {
    size_t bytes = strlen(folder) + strlen(name) + 2;
    TR_TRY(tr_calloc(bytes, 1, out));
    (void)snprintf(*out, bytes, "%s/%s", folder, name);
    return TR_OK;
}

static bool exists(const char *folder, const char *name) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && (size_t)length < sizeof path && tr_input_exists(path);
}

/* Reads vocab.json and merges.txt of a folder. */
static tr_status open_pair(tr_tokenizer *t, const char *folder) {
    char *merges = NULL;
    tr_status status = path_in(folder, "vocab.json", &t->path);
    if (status == TR_OK) status = path_in(folder, "merges.txt", &merges);
    if (status == TR_OK) status = tr_tokenizer_join_files(t, t->path, merges);
    if (status == TR_OK) status = tr_tokenizer_read_json(t);
    free(merges);
    return status;
}

static tr_status open_file(tr_tokenizer *t) {
    TR_TRY(tr_input_load("the tokenizer", t->path, file_limit, &t->file, &t->file_length));
    const char *p = t->file + tr_utf8_mark(t->file, t->file_length);
    p += strspn(p, " \t\r\n");
    if (*p == '{') return tr_tokenizer_read_json(t);
    char *ranks = t->file;
    t->file = NULL;
    tr_status status = tr_tokenizer_read_ranks(t, ranks, t->file_length);
    free(ranks);
    return status;
}

/* Turns TR_ERR_NOFILE into TR_ERR_DATA for an entry of the folder that the user named: the entry
 * cannot be opened as a file. */
static tr_status bad_file(tr_status status) {
    return status == TR_ERR_NOFILE ? TR_FAIL(TR_ERR_DATA, "%s", tr_error_message()) : status;
}

/* The files of a folder, the first one that is there is taken; NULL: the pair vocab.json and
 * merges.txt. */
static const char *const readable[] = {"tokenizer.json", NULL, "tokenizer.model", "qwen.tiktoken"};
enum { READABLE = sizeof readable / sizeof *readable };

static bool has_name(const char *folder, int i) {
    if (readable[i]) return exists(folder, readable[i]);
    return exists(folder, "vocab.json") && exists(folder, "merges.txt");
}

bool tr_tokenizer_in(const char *folder) {
    for (int i = 0; i < READABLE; i++)
        if (has_name(folder, i)) return true;
    return false;
}

static tr_status open_folder(tr_tokenizer *t, const char *folder) {
    for (int i = 0; i < READABLE; i++) {
        if (!has_name(folder, i)) continue;
        if (!readable[i]) return bad_file(open_pair(t, folder));
        TR_TRY(path_in(folder, readable[i], &t->path));
        return bad_file(open_file(t));
    }
    return TR_FAIL(TR_ERR_DATA,
                   "the folder '%s' has no tokenizer: neither tokenizer.json, nor vocab.json and "
                   "merges.txt, nor a rank file tokenizer.model or qwen.tiktoken",
                   folder);
}

tr_status tr_tokenizer_open(const char *path, tr_tokenizer **out) {
    struct stat info;
    tr_tokenizer *t;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *t, &t));
    t->document_end = -1;
    tr_status status;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        status = open_folder(t, path);
    } else {
        status = tr_strdup(path, &t->path);
        if (status == TR_OK) status = open_file(t);
        if (status == TR_ERR_NOFILE)
            status =
                TR_FAIL(status, "%s; name a tokenizer.json, a tiktoken file, or a folder with one",
                        tr_error_message());
    }
    if (status == TR_OK) status = tr_tokenizer_find_ends(t);
    if (status != TR_OK) {
        tr_tokenizer_close(t);
        return status;
    }
    t->hash = XXH3_64bits(t->file, t->file_length);
    *out = t;
    return TR_OK;
}

tr_status tr_tokenizer_save(const tr_tokenizer *t, const char *path) {
    char *partial;
    FILE *file;
    const size_t bytes = strlen(path) + sizeof ".tmp";
    TR_TRY(tr_calloc(bytes, 1, &partial));
    (void)snprintf(partial, bytes, "%s.tmp", path);
    tr_status status = tr_output_open_for(path, partial, &file);
    if (status == TR_OK) {
        (void)fwrite(t->file, 1, t->file_length, file);
        status = tr_output_replace(partial, path, file, TR_OK);
    }
    free(partial);
    return status;
}

/* --- what is known of it ---------------------------------------------------------------------- */

int32_t tr_tokenizer_size(const tr_tokenizer *t) {
    return t->size;
}

uint64_t tr_tokenizer_hash(const tr_tokenizer *t) {
    return t->hash;
}

const char *tr_tokenizer_path(const tr_tokenizer *t) {
    return t->path;
}

int32_t tr_tokenizer_document_end(const tr_tokenizer *t) {
    return t->document_end;
}

static size_t list_ids(const tr_token_list *list, const int32_t **id) {
    *id = list->id;
    return list->count;
}

size_t tr_tokenizer_ends(const tr_tokenizer *t, const int32_t **id) {
    return list_ids(&t->ends, id);
}

size_t tr_tokenizer_prefix(const tr_tokenizer *t, const int32_t **id) {
    return list_ids(&t->prefix, id);
}

int32_t tr_tokenizer_find(const tr_tokenizer *t, const char *text) {
    size_t length = strlen(text);
    const int32_t id = tr_added_find(t->named, text, length);
    return id < 0 ? tr_bpe_find(t->bpe, text, length) : id;
}

/* --- decoding --------------------------------------------------------------------------------- */

tr_status tr_tokenizer_decode(const tr_tokenizer *t, const int32_t *id, size_t count,
                              unsigned flags, tr_byte_list *out) {
    size_t strip = flags & TR_TOKENIZER_CONTINUES ? 0 : t->strip;
    for (size_t i = 0; i < count; i++) {
        if (id[i] < 0 || id[i] >= t->size) {
            TR_TRY(tr_bytes_add(out, "\uFFFD", 3));
            strip = 0;
            continue;
        }
        if (flags & TR_TOKENIZER_NO_SPECIAL && t->is_special[id[i]]) continue;
        const char *text = t->text.byte + t->text_start[id[i]];
        size_t length = t->text_start[id[i] + 1] - t->text_start[id[i]];
        size_t spaces = 0;
        while (spaces < strip && spaces < length && text[spaces] == ' ') spaces++;
        TR_TRY(tr_bytes_add(out, text + spaces, length - spaces));
        strip = spaces == length ? strip - spaces : 0;
    }
    return TR_OK;
}

/* --- document ends ---------------------------------------------------------------------------- */

static tr_status add_end(tr_tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->ends.count; i++)
        if (t->ends.id[i] == id) return TR_OK;
    return tr_tokens_add(&t->ends, &id, 1);
}

/* Adds the ids that a value of a file names: an id, a list of ids, a text, or an object with
 * "content". */
static tr_status add_named_ends(tr_tokenizer *t, const char *path, const cJSON *value) {
    if (!value) return TR_OK;
    if (cJSON_IsNumber(value) && value->valuedouble >= 0 && value->valuedouble < t->size)
        return add_end(t, (int32_t)value->valuedouble);
    if (cJSON_IsObject(value)) value = tr_json_get(value, "content");
    if (value && cJSON_IsString(value)) {
        int32_t id = tr_tokenizer_find(t, value->valuestring);
        return id < 0 ? TR_OK : add_end(t, id);
    }
    const cJSON *item;
    if (cJSON_IsArray(value)) cJSON_ArrayForEach(item, value) {
            if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < t->size)
                TR_TRY(add_end(t, (int32_t)item->valuedouble));
            if (t->ends.count > ENDS_MAX)
                return TR_FAIL(
                    TR_ERR_DATA,
                    "the file '%s': eos_token_id names more than %d ids; name only those "
                    "that end a document",
                    path, ENDS_MAX);
        }
    return TR_OK;
}

/* Reads a file next to the tokenizer; one that is missing or damaged says nothing. */
static tr_status add_ends_of(tr_tokenizer *t, const char *name, const char *key) {
    const char *slash = strrchr(t->path, '/');
    size_t folder = slash ? (size_t)(slash - t->path) + 1 : 0, bytes = folder + strlen(name) + 1;
    char *path, *text = NULL;
    size_t length;
    cJSON *json = NULL;
    TR_TRY(tr_calloc(bytes, 1, &path));
    (void)snprintf(path, bytes, "%.*s%s", (int)folder, t->path, name);
    tr_status status = TR_OK;
    if (access(path, R_OK) == 0 &&
        tr_input_load("the file", path, file_limit, &text, &length) == TR_OK &&
        tr_setting_parse(path, text, length, &json) == TR_OK && cJSON_IsObject(json))
        status = add_named_ends(t, path, tr_json_get(json, key));
    cJSON_Delete(json);
    free(text);
    free(path);
    return status;
}

tr_status tr_tokenizer_find_ends(tr_tokenizer *t) {
    static const char *const names[] = {
        "<|endoftext|>", "<|end_of_text|>",      "</s>", "<eos>", "[EOS]",
        "<|eos|>",       "<｜end▁of▁sentence｜>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && t->document_end < 0; i++)
        t->document_end = tr_added_find(t->named, names[i], strlen(names[i]));
    if (t->document_end >= 0) TR_TRY(add_end(t, t->document_end));
    TR_TRY(add_ends_of(t, "tokenizer_config.json", "eos_token"));
    TR_TRY(add_ends_of(t, "generation_config.json", "eos_token_id"));
    TR_TRY(add_ends_of(t, "config.json", "eos_token_id"));
    if (t->document_end < 0 && t->ends.count) t->document_end = t->ends.id[0];
    tr_error_clear();
    return TR_OK;
}
