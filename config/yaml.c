#include "config/yaml.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "data/paths.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { DEEPEST = 8, KEY_SIZE = 256, LIST_SIZE = 4096 };

typedef struct reader {
    yaml_parser_t parser;
    const char *source;
    const char *text;
    size_t length;
    tr_yaml *out;
    size_t capacity;
    char path[KEY_SIZE]; /* keys of the open mappings */
    size_t path_length[DEEPEST];
    int depth;
} reader;

#define FAIL_AT(r, mark, ...)                                                                      \
    fail_at((r)->source, (int)(mark).line + 1, (int)(mark).column + 1, __VA_ARGS__)

static tr_status fail_at(const char *source, int line, int column, const char *sentence) {
    return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: %s", source, line, column, sentence);
}

/* Returns the place of a byte of the text. */
static yaml_mark_t place_of(const reader *r, size_t offset) {
    yaml_mark_t mark = {.index = offset};
    for (size_t i = 0; i < offset && i < r->length; i++) {
        const bool begins = ((unsigned char)r->text[i] & 0xC0) != 0x80; /* a character */
        mark.column += begins;
        if (r->text[i] == '\n') mark = (yaml_mark_t){.index = offset, .line = mark.line + 1};
    }
    return mark;
}

static const char quote_star[] = "put text that begins with * in quotes, like '*.bias'";

/* Fails because an alias, `*name`, stands where a value is expected. */
static tr_status no_alias(const reader *r, yaml_mark_t mark) {
    char sentence[128];
    (void)snprintf(sentence, sizeof sentence,
                   "an alias cannot be used here: write the value, or %s", quote_star);
    return FAIL_AT(r, mark, sentence);
}

/* Returns the rule that is usually broken where libyaml has this problem, or "". */
static const char *rule_for(const char *problem) {
    static const char *const misplaced[] = {"mapping values are not allowed in this context",
                                            "did not find expected <document start>"};
    for (size_t i = 0; problem && i < sizeof misplaced / sizeof *misplaced; i++)
        if (strcmp(problem, misplaced[i]) == 0)
            return "; every key has a line of its own, with the indent of its section's other keys";
    return "";
}

static tr_status parser_error(const reader *r) {
    const yaml_parser_t *p = &r->parser;
    yaml_mark_t mark = p->problem_mark;
    if (p->error == YAML_MEMORY_ERROR) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    if (p->error == YAML_READER_ERROR) { /* has no mark: libyaml decodes ahead of what it parses */
        const size_t valid = tr_utf8_valid((const uint8_t *)r->text, r->length);
        if (valid < r->length)
            return FAIL_AT(r, place_of(r, valid),
                           "the file is not UTF-8: save it as UTF-8, or convert it with "
                           "`iconv -f LATIN1 -t UTF-8`");
        mark = place_of(r, p->problem_offset);
    }
    if (p->error == YAML_SCANNER_ERROR && p->buffer.pointer < p->buffer.last &&
        *p->buffer.pointer == '\t')
        return FAIL_AT(r, mark, "this is not valid YAML: indent with blanks instead of a tab");
    if (p->context && strcmp(p->context, "while scanning an alias") == 0)
        return FAIL_AT(r, p->context_mark, quote_star);
    return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: this is not valid YAML: %s%s%s%s", r->source,
                   (int)mark.line + 1, (int)mark.column + 1,
                   p->problem ? p->problem : "unreadable text", p->context ? ", " : "",
                   p->context ? p->context : "", rule_for(p->problem));
}

static tr_status next_event(reader *r, yaml_event_t *event) {
    if (!yaml_parser_parse(&r->parser, event)) return parser_error(r);
    return TR_OK;
}

/* Appends ".key" to the path; sets *before to the old length. */
static tr_status push_key(reader *r, const yaml_event_t *event, size_t *before) {
    const char *key = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length, used = strlen(r->path);
    *before = used;
    if (length == 0 || strlen(key) != length)
        return FAIL_AT(r, event->start_mark, "a key must be a word, like train.steps");
    if (used + length + 2 > sizeof r->path)
        return FAIL_AT(r, event->start_mark, "this key is too long; `trireme help` lists all keys");
    if (used) r->path[used++] = '.';
    memcpy(r->path + used, key, length + 1);
    return TR_OK;
}

static bool is_nothing(const yaml_event_t *event) {
    const char *text = (const char *)event->data.scalar.value;
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || !strcmp(text, "~") || !strcmp(text, "null"));
}

/* Adds an entry of the open key, without a value. */
static tr_status add_key(reader *r, yaml_mark_t key, yaml_mark_t value, tr_yaml_entry **entry) {
    tr_yaml *out = r->out;
    TR_TRY(tr_grow(&out->entry, &r->capacity, (size_t)out->count + 1, sizeof *out->entry));
    tr_yaml_entry *e = &out->entry[out->count];
    *e = (tr_yaml_entry){.kind = TR_YAML_TEXT,
                         .key_line = (int)key.line + 1,
                         .key_column = (int)key.column + 1,
                         .line = (int)value.line + 1,
                         .column = (int)value.column + 1};
    out->count++; /* from now on tr_yaml_free releases its strings */
    *entry = e;
    return tr_strdup(r->path, &e->key);
}

static tr_status add_entry(reader *r, yaml_mark_t key, const yaml_event_t *value) {
    tr_yaml_entry *e = NULL;
    TR_TRY(add_key(r, key, value->start_mark, &e));
    const char *text = (const char *)value->data.scalar.value;
    if (strlen(text) != value->data.scalar.length)
        return FAIL_AT(r, value->start_mark, "a value must not hold a NUL character");
    if (!is_nothing(value)) TR_TRY(tr_strdup(text, &e->value));
    return TR_OK;
}

/* Reads a scalar within a list; `event` is one. */
static tr_status list_word(reader *r, const yaml_event_t *event, char *list) {
    const char *text = (const char *)event->data.scalar.value;
    if (!*text || strlen(text) != event->data.scalar.length)
        return FAIL_AT(r, event->start_mark, "an item of a list must be text");
    return tr_data_paths_quote(text, list, LIST_SIZE)
               ? TR_OK
               : FAIL_AT(r, event->start_mark, "this list is too long");
}

/* The keys of an item that has keys. */
typedef struct item_keys {
    const char *text, *number, *digits, *example;
    const char *article; /* of `text` */
    tr_yaml_kind kind;
} item_keys;

static const item_keys items[] = {
    {"path", "weight", "0123456789.", "{path: a.bin, weight: 0.7}", "a", TR_YAML_WEIGHTS},
    {"match", "scale", "0123456789.eE+-", "{match: '*.wte.weight', scale: 0.1}", "a",
     TR_YAML_SCALES},
    {"until", "batch", "0123456789", "{until: 100, batch: 8}", "an", TR_YAML_BATCHES}};
enum { ITEMS = sizeof items / sizeof *items };

/* Returns the keys of an item that begins with the key `name`. */
static const item_keys *item_of(const char *name) {
    int k = ITEMS - 1;
    while (k > 0 && strcmp(name, items[k].text) != 0 && strcmp(name, items[k].number) != 0) k--;
    return &items[k];
}

/* Reads the value of an item's key. */
static tr_status item_value(reader *r, const item_keys *keys, bool is_text, char *text,
                            char *number, size_t size) {
    yaml_event_t value;
    tr_status status = TR_OK;
    char sentence[64];
    TR_TRY(next_event(r, &value));
    (void)snprintf(sentence, sizeof sentence, "%s and %s take one value each", keys->text,
                   keys->number);
    if (value.type != YAML_SCALAR_EVENT || (!is_text && value.data.scalar.length >= size))
        status = FAIL_AT(r, value.start_mark, sentence);
    else if (is_text) {
        text[0] = '\0';
        status = list_word(r, &value, text);
    } else (void)snprintf(number, size, "%s", (const char *)value.data.scalar.value);
    yaml_event_delete(&value);
    return status;
}

/* Reads an item with keys after its start, and appends its number and its text. */
static tr_status list_item(reader *r, yaml_mark_t start, char *list, tr_yaml_kind *kind) {
    char text[LIST_SIZE] = "", number[64] = "", sentence[160];
    const item_keys *keys = NULL;
    for (;;) {
        yaml_event_t key;
        TR_TRY(next_event(r, &key));
        const bool end = key.type == YAML_MAPPING_END_EVENT;
        const char *name = key.type == YAML_SCALAR_EVENT ? (const char *)key.data.scalar.value : "";
        if (!keys) keys = item_of(name);
        const bool is_text = !strcmp(name, keys->text), is_number = !strcmp(name, keys->number);
        (void)snprintf(sentence, sizeof sentence, "an item of this list has the keys %s and %s",
                       keys->text, keys->number);
        tr_status status =
            end || is_text || is_number ? TR_OK : FAIL_AT(r, key.start_mark, sentence);
        if ((is_text && text[0]) || (is_number && number[0]))
            status = FAIL_AT(r, key.start_mark, "this key is given twice in one item");
        yaml_event_delete(&key);
        TR_TRY(status);
        if (end) break;
        TR_TRY(item_value(r, keys, is_text, text, number, sizeof number));
    }
    *kind = keys->kind;
    (void)snprintf(sentence, sizeof sentence,
                   "an item with keys needs both, %s %s and a %s above 0, like %s", keys->article,
                   keys->text, keys->number, keys->example);
    if (!text[0] || !number[0] || number[strspn(number, keys->digits)])
        return FAIL_AT(r, start, sentence);
    size_t used = strlen(list);
    if (snprintf(list + used, LIST_SIZE - used, "%s%s %s", used ? " " : "", number, text) >=
        (int)(LIST_SIZE - used))
        return FAIL_AT(r, start, "this list is too long");
    return TR_OK;
}

/* Reads the items of a list after its start, and adds them as the open key's value. */
static tr_status read_list(reader *r, yaml_mark_t key, yaml_mark_t start) {
    char list[LIST_SIZE] = "";
    tr_yaml_kind kind = TR_YAML_TEXT, before = TR_YAML_TEXT; /* of the items; none yet */
    for (bool end = false; !end; before = kind) {
        yaml_event_t item;
        TR_TRY(next_event(r, &item));
        tr_status status = TR_OK;
        end = item.type == YAML_SEQUENCE_END_EVENT;
        if (item.type == YAML_SCALAR_EVENT) {
            kind = TR_YAML_LIST;
            status = list_word(r, &item, list);
        } else if (item.type == YAML_MAPPING_START_EVENT && !strchr(r->path, '.')) {
            status = FAIL_AT(r, item.start_mark,
                             "only keys of a section have lists: write the section's keys below it "
                             "without dashes");
        } else if (item.type == YAML_MAPPING_START_EVENT) {
            status = list_item(r, item.start_mark, list, &kind);
        } else if (item.type == YAML_ALIAS_EVENT) {
            status = no_alias(r, item.start_mark);
        } else if (!end) {
            status = FAIL_AT(r, item.start_mark, "an item of a list must be text");
        }
        if (status == TR_OK && before != TR_YAML_TEXT && kind != before)
            status = FAIL_AT(r, item.start_mark,
                             "the items of a list must all have the same form: plain values, or "
                             "the same keys");
        yaml_event_delete(&item);
        TR_TRY(status);
    }
    tr_yaml_entry *e = NULL;
    TR_TRY(add_key(r, key, start, &e));
    e->kind = kind == TR_YAML_TEXT ? TR_YAML_LIST : kind;
    return tr_strdup(list, &e->value);
}

/* Reads one key of the open mapping, and its value or the start of its mapping. */
static tr_status read_pair(reader *r, const yaml_event_t *key) {
    if (key->type != YAML_SCALAR_EVENT)
        return FAIL_AT(r, key->start_mark, "a key must be a word, like train.steps");
    size_t before;
    TR_TRY(push_key(r, key, &before));
    yaml_event_t value;
    TR_TRY(next_event(r, &value));
    tr_status status = TR_OK;
    if (value.type == YAML_SCALAR_EVENT) {
        status = add_entry(r, key->start_mark, &value);
        r->path[before] = '\0';
    } else if (value.type == YAML_MAPPING_START_EVENT && r->depth < DEEPEST) {
        tr_yaml_entry *section = NULL;
        r->path_length[r->depth++] = before;
        status = add_key(r, key->start_mark, value.start_mark, &section);
        if (section) section->kind = TR_YAML_SECTION;
    } else if (value.type == YAML_MAPPING_START_EVENT) {
        status = FAIL_AT(r, value.start_mark,
                         "sections are nested too deep: a key has one section, like train.steps");
    } else if (value.type == YAML_SEQUENCE_START_EVENT) {
        status = read_list(r, key->start_mark, value.start_mark);
        r->path[before] = '\0';
    } else {
        status = no_alias(r, value.start_mark);
    }
    yaml_event_delete(&value);
    return status;
}

/* Reads the root mapping after its start event, including its end event. */
static tr_status read_mapping(reader *r) {
    for (;;) {
        yaml_event_t event;
        TR_TRY(next_event(r, &event));
        bool end = event.type == YAML_MAPPING_END_EVENT;
        tr_status status = end ? TR_OK : read_pair(r, &event);
        yaml_event_delete(&event);
        TR_TRY(status);
        if (!end) continue;
        if (r->depth == 0) return TR_OK;
        r->path[r->path_length[--r->depth]] = '\0';
    }
}

/* Reads the stream with the one document and its root mapping. */
static tr_status read_stream(reader *r) {
    for (int documents = 0;;) {
        yaml_event_t event;
        TR_TRY(next_event(r, &event));
        tr_status status = TR_OK;
        bool end = event.type == YAML_STREAM_END_EVENT;
        if (event.type == YAML_DOCUMENT_START_EVENT && documents++)
            status = FAIL_AT(r, event.start_mark,
                             "a config must be one YAML document: remove the others");
        else if (event.type == YAML_MAPPING_START_EVENT) status = read_mapping(r);
        else if (event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_ALIAS_EVENT ||
                 (event.type == YAML_SCALAR_EVENT && !is_nothing(&event)))
            status =
                FAIL_AT(r, event.start_mark, "expected a key and a value, like train.steps: 100");
        yaml_event_delete(&event);
        TR_TRY(status);
        if (end) return TR_OK;
    }
}

/* Skips a UTF-8 byte order mark, and refuses UTF-16, for which libyaml would only complain about
 * NUL characters. */
static tr_status take_mark(const char **text, size_t *length, const char *source) {
    const unsigned char *byte = (const unsigned char *)*text;
    if (*length >= 2 &&
        ((byte[0] == 0xff && byte[1] == 0xfe) || (byte[0] == 0xfe && byte[1] == 0xff)))
        return fail_at(source, 1, 1, "the file is UTF-16: save it as UTF-8");
    const size_t mark = tr_utf8_mark(*text, *length);
    *text += mark;
    *length -= mark;
    return TR_OK;
}

tr_status tr_yaml_parse(const char *text, size_t length, const char *source, tr_yaml *out) {
    *out = (tr_yaml){0};
    TR_TRY(take_mark(&text, &length, source));
    reader r = {.source = source, .text = text, .length = length, .out = out};
    if (!yaml_parser_initialize(&r.parser)) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    tr_status status = read_stream(&r);
    yaml_parser_delete(&r.parser);
    if (status != TR_OK) tr_yaml_free(out);
    TR_TRY(status);
    return TR_OK;
}

void tr_yaml_free(tr_yaml *yaml) {
    for (int i = 0; i < yaml->count; i++) {
        free(yaml->entry[i].key);
        free(yaml->entry[i].value);
    }
    free(yaml->entry);
    *yaml = (tr_yaml){0};
}
