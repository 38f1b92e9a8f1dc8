/* tokenizer.json: the normalizer and the pre-tokenizer. */
#include "base/memory.h"
#include "text/setting.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

enum { DEEPEST = 8 /* Sequences in Sequences */, SHOWN = 60 };

/* Calls `read` for a step, or for each step of a Sequence in `list`. */
static tr_status each_step(tr_tokenizer *t, const cJSON *json, const char *what, const char *list,
                           int depth,
                           tr_status (*read)(tr_tokenizer *t, const cJSON *step, void *context),
                           void *context) {
    if (!json) return TR_OK;
    if (strcmp(tr_setting_type(json), "Sequence")) return read(t, json, context);
    const cJSON *steps = tr_json_get(json, list), *step;
    if (!steps || !cJSON_IsArray(steps) || depth == DEEPEST)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': a Sequence of %s %s", t->path, what,
                       depth == DEEPEST ? "is nested too deeply" : "needs an array of steps");
    cJSON_ArrayForEach(step, steps) {
        TR_TRY(each_step(t, step, what, list, depth + 1, read, context));
    }
    return TR_OK;
}

static tr_status too_many(const tr_tokenizer *t, const char *what) {
    return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s has more than %d steps", t->path, what,
                   TR_STEPS_MAX);
}

/* Reads a pattern: {"String": "..."} or {"Regex": "..."}, also a plain string. */
static tr_status read_pattern(tr_tokenizer *t, const char *where, const cJSON *pattern,
                              tr_matcher *out, const char **regex) {
    const cJSON *literal = cJSON_IsString(pattern) ? pattern : tr_json_get(pattern, "String");
    const cJSON *expression = tr_json_get(pattern, "Regex");
    *regex = NULL;
    *out = (tr_matcher){0};
    if (literal && cJSON_IsString(literal) && !*literal->valuestring)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': %s.pattern is an empty text", t->path,
                       where);
    if (literal && cJSON_IsString(literal)) {
        out->length = strlen(literal->valuestring);
        return tr_strdup(literal->valuestring, &out->literal);
    }
    if (!expression || !cJSON_IsString(expression))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': %s.pattern must be {\"Regex\": \"...\"} or "
                       "{\"String\": \"...\"}",
                       t->path, where);
    *regex = expression->valuestring;
    return TR_OK;
}

/* --- normalizer ------------------------------------------------------------------------------- */

static tr_status read_normal_step(tr_tokenizer *t, const cJSON *json, void *context) {
    (void)context;
    static const struct {
        const char *name;
        int options;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    const char *type = tr_setting_type(json), *text;
    if (t->normal_count == TR_STEPS_MAX) return too_many(t, "normalizer");
    tr_normalize_step *step = &t->normal[t->normal_count];
    *step = (tr_normalize_step){0};
    t->normal_count++;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i].name)) continue;
        step->kind = TR_NORMALIZE_UNICODE;
        step->options = forms[i].options;
        step->is_nfc = i == 0;
        return TR_OK;
    }
    bool prepends = !strcmp(type, "Prepend"), replaces = !strcmp(type, "Replace");
    if (!prepends && !replaces)
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s' has a normalizer '%.*s'; Trireme reads NFC, NFD, NFKC, "
                       "NFKD, Prepend and Replace, and Sequences of them",
                       t->path, SHOWN, type);
    step->kind = prepends ? TR_NORMALIZE_PREPEND : TR_NORMALIZE_REPLACE;
    TR_TRY(tr_setting_string(t->path, "normalizer", json, prepends ? "prepend" : "content", &text));
    if (!text)
        return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': a %s normalizer needs '%s'", t->path, type,
                       prepends ? "prepend" : "content");
    TR_TRY(tr_strdup(text, &step->text));
    step->length = strlen(text);
    if (prepends) return TR_OK;
    const char *regex;
    TR_TRY(read_pattern(t, "normalizer", tr_json_get(json, "pattern"), &step->matcher, &regex));
    return regex ? tr_matcher_compile(t->path, regex, &step->matcher) : TR_OK;
}

tr_status tr_read_normalizer(tr_tokenizer *t, const cJSON *json) {
    return each_step(t, json, "normalizer", "normalizers", 0, read_normal_step, NULL);
}

/* --- pre-tokenizer ---------------------------------------------------------------------------- */

typedef struct pre_tokenizer {
    bool byte_level;    /* a ByteLevel step was read */
    tr_pattern pattern; /* of the first step */
} pre_tokenizer;

static tr_status new_step(tr_tokenizer *t, tr_pretokenize_step **step) {
    *step = NULL;
    if (t->step_count == TR_STEPS_MAX) return too_many(t, "pre_tokenizer");
    *step = &t->step[t->step_count++];
    **step = (tr_pretokenize_step){.kind = TR_PRETOKENIZE_SPLIT};
    return TR_OK;
}

static tr_status add_split(tr_tokenizer *t, const char *regex, tr_behavior behavior, bool invert) {
    tr_pretokenize_step *step;
    TR_TRY(new_step(t, &step));
    step->behavior = behavior;
    step->invert = invert;
    return regex ? tr_matcher_compile(t->path, regex, &step->matcher) : TR_OK;
}

static tr_status read_behavior(const tr_tokenizer *t, const cJSON *json, tr_behavior *out) {
    static const char *const names[] = {
        [TR_DELIMITER_ISOLATED] = "Isolated",
        [TR_DELIMITER_REMOVED] = "Removed",
        [TR_DELIMITER_WITH_PREVIOUS] = "MergedWithPrevious",
        [TR_DELIMITER_WITH_NEXT] = "MergedWithNext",
        [TR_DELIMITER_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    *out = TR_DELIMITER_ISOLATED;
    TR_TRY(tr_setting_string(t->path, "pre_tokenizer", json, "behavior", &name));
    if (!name) return TR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tr_behavior)i;
        return TR_OK;
    }
    return TR_FAIL(TR_ERR_DATA, "the tokenizer '%s': unknown behavior '%.*s' of a pre_tokenizer",
                   t->path, SHOWN, name);
}

static tr_status read_split(tr_tokenizer *t, const cJSON *json, pre_tokenizer *pre) {
    tr_behavior behavior;
    bool invert;
    const char *regex;
    tr_matcher literal;
    TR_TRY(read_behavior(t, json, &behavior));
    TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "invert", false, &invert));
    TR_TRY(read_pattern(t, "pre_tokenizer", tr_json_get(json, "pattern"), &literal, &regex));
    tr_status status = add_split(t, regex, behavior, invert);
    if (status != TR_OK) {
        tr_matcher_close(&literal);
        return status;
    }
    if (!regex) t->step[t->step_count - 1].matcher = literal;
    bool keeps_matches = (behavior == TR_DELIMITER_ISOLATED && !invert) ||
                         (behavior == TR_DELIMITER_REMOVED && invert);
    if (regex && keeps_matches && t->step_count == 1) pre->pattern = tr_pattern_find(regex);
    return TR_OK;
}

static tr_status read_byte_level(tr_tokenizer *t, const cJSON *json, pre_tokenizer *pre) {
    bool prefix, uses_regex;
    tr_pretokenize_step *step;
    TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "add_prefix_space", true, &prefix));
    TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "use_regex", true, &uses_regex));
    pre->byte_level = true;
    if (prefix) {
        TR_TRY(new_step(t, &step));
        step->kind = TR_PRETOKENIZE_PREFIX_SPACE;
    }
    if (!uses_regex) return TR_OK;
    if (!t->step_count) pre->pattern = TR_PATTERN_GPT2;
    return add_split(t, tr_pattern_regex(TR_PATTERN_GPT2), TR_DELIMITER_ISOLATED, false);
}

static bool is_one_character(const char *text) {
    const size_t length = strlen(text);
    uint32_t cp;
    return length > 0 &&
           tr_utf8_next((const uint8_t *)text, (const uint8_t *)text + length, &cp) == length;
}

static tr_status read_metaspace(tr_tokenizer *t, const cJSON *json) {
    static const char *const names[] = {"never", "first", "always"};
    const char *character, *scheme;
    tr_pretokenize_step *step;
    bool prefix, splits;
    TR_TRY(tr_setting_string(t->path, "pre_tokenizer", json, "replacement", &character));
    TR_TRY(tr_setting_string(t->path, "pre_tokenizer", json, "prepend_scheme", &scheme));
    TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "add_prefix_space", true, &prefix));
    TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "split", true, &splits));
    if (character && !is_one_character(character))
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': pre_tokenizer.replacement must be one character",
                       t->path);
    TR_TRY(new_step(t, &step));
    *step = (tr_pretokenize_step){.kind = TR_PRETOKENIZE_METASPACE,
                                  .behavior = TR_DELIMITER_WITH_NEXT,
                                  .prepend = prefix ? TR_PREPEND_ALWAYS : TR_PREPEND_NEVER,
                                  .splits = splits};
    TR_TRY(tr_strdup(character ? character : "\u2581", &step->matcher.literal));
    step->matcher.length = strlen(step->matcher.literal);
    for (int i = 0; scheme && i < 3; i++)
        if (!strcmp(scheme, names[i])) step->prepend = (tr_prepend)i;
    return TR_OK;
}

/* Numbers of Unicode 17, as the step Digits of the reference knows them. */
static const char digits[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";
/* Punctuation of Unicode 8, as the reference's step knows it: two more than PCRE2's, and less what
 * Unicode 9 to 16 added, of which PCRE2 knows those of its version. */
static const char punctuation[] =
    "(?![\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}\\x{1B4F}\\x{1B7D}-\\x{1B7F}"
    "\\x{2E43}-\\x{2E4F}\\x{2E52}-\\x{2E5D}\\x{10D6E}\\x{10EAD}\\x{10F55}-\\x{10F59}"
    "\\x{10F86}-\\x{10F89}\\x{113D4}\\x{113D5}\\x{113D7}\\x{113D8}\\x{1144B}-\\x{1144F}"
    "\\x{1145A}\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}"
    "\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}"
    "\\x{11A9E}-\\x{11AA2}\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C45}"
    "\\x{11C70}\\x{11C71}\\x{11EF7}\\x{11EF8}\\x{11F43}-\\x{11F4F}\\x{11FFF}\\x{12FF1}"
    "\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E5FF}\\x{1E95E}"
    "\\x{1E95F}])"
    "[\\p{P}$+<=>^`|~\\x{166D}\\x{111C9}]";

static tr_status read_pre_step(tr_tokenizer *t, const cJSON *json, void *context) {
    pre_tokenizer *pre = context;
    const char *type = tr_setting_type(json);
    tr_behavior behavior;
    bool individual;
    if (pre->byte_level)
        return TR_FAIL(
            TR_ERR_DATA,
            "the tokenizer '%s' has a pre_tokenizer '%.*s' after ByteLevel, which Trireme "
            "does not read; ByteLevel must be the last",
            t->path, SHOWN, type);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(t, json, pre);
    if (!strcmp(type, "Split")) return read_split(t, json, pre);
    if (!strcmp(type, "Metaspace")) return read_metaspace(t, json);
    if (!strcmp(type, "Digits")) {
        TR_TRY(tr_setting_bool(t->path, "pre_tokenizer", json, "individual_digits", false,
                               &individual));
        return add_split(t, digits, individual ? TR_DELIMITER_ISOLATED : TR_DELIMITER_CONTIGUOUS,
                         false);
    }
    if (!strcmp(type, "Punctuation")) {
        TR_TRY(read_behavior(t, json, &behavior));
        return add_split(t, punctuation, behavior, false);
    }
    if (!strcmp(type, "WhitespaceSplit")) return add_split(t, "\\s", TR_DELIMITER_REMOVED, false);
    if (!strcmp(type, "Whitespace")) /* its \w is that of Rust: in a class, and two joiners */
        return add_split(t, "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+",
                         TR_DELIMITER_REMOVED, true);
    return TR_FAIL(
        TR_ERR_DATA,
        "the tokenizer '%s' has a pre_tokenizer '%.*s'; Trireme reads ByteLevel, Split, "
        "Digits, Punctuation, Whitespace, WhitespaceSplit and Metaspace, and Sequences of "
        "them",
        t->path, SHOWN, type);
}

tr_status tr_read_pre_tokenizer(tr_tokenizer *t, const cJSON *json, bool *byte_level) {
    pre_tokenizer pre = {.pattern = TR_PATTERN_OTHER};
    TR_TRY(each_step(t, json, "pre_tokenizer", "pretokenizers", 0, read_pre_step, &pre));
    *byte_level = pre.byte_level;
    t->pattern = t->step_count == 1 && pre.byte_level ? pre.pattern : TR_PATTERN_OTHER;
    return TR_OK;
}
