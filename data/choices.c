#include "data/choices.h"

#include "base/input.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/textfile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = 20240522,
    HEADER = 256 * 4,
    BEGIN = 65535,
    FILE_MIB = 1024,
    LINE_MIB = 16, /* a parsed line takes up to 40 times its bytes */
    MOST_CHOICES = 1024,
    WHERE = 1200
};

typedef struct reader {
    const tr_choices_options *options;
    tr_choices *out;
    const char *path;
    tr_encoder *encoder;
    char where[WHERE]; /* "file:line" or "file: byte N" */
} reader;

/* --- questions -------------------------------------------------------------------------------- */

static tr_status begin_question(reader *r, int choices, int64_t label) {
    tr_choices *c = r->out;
    if (choices < 2 || choices > MOST_CHOICES)
        return TR_FAIL(TR_ERR_DATA, "%s: a question has 2 to %d choices, not %d", r->where,
                       MOST_CHOICES, choices);
    if (label < 0 || label >= choices)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: the label is %" PRId64 ", but the %d choices count from 0 to %d",
                       r->where, label, choices, choices - 1);
    TR_TRY(tr_grow(&c->question, &c->question_capacity, (size_t)c->questions + 1,
                   sizeof *c->question));
    c->question[c->questions++] =
        (tr_question){.first = c->count, .choices = choices, .label = (int)label};
    return TR_OK;
}

/* Adds a choice with `context` tokens from `first` on, whose ending's tokens begin at `ending` and
 * are the last ones. */
static tr_status add_choice(reader *r, size_t first, size_t context, size_t ending, int64_t bytes) {
    tr_choices *c = r->out;
    const int64_t length = (int64_t)(context + c->tokens.count - ending);
    if (context == 0)
        return TR_FAIL(TR_ERR_DATA, "%s: the context is empty: an ending needs a token before it",
                       r->where);
    if (length == (int64_t)context)
        return TR_FAIL(TR_ERR_DATA, "%s: choice %" PRId64 " is empty", r->where,
                       c->count - c->question[c->questions - 1].first);
    if (length - 1 > r->options->context)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: context and choice %" PRId64 " have %" PRId64
                       " tokens together, and model.context "
                       "%" PRId64 " allows at most %" PRId64 ": shorten them",
                       r->where, c->count - c->question[c->questions - 1].first, length,
                       r->options->context, r->options->context + 1);
    TR_TRY(tr_grow(&c->choice, &c->choice_capacity, (size_t)c->count + 1, sizeof *c->choice));
    c->choice[c->count++] = (tr_choice){.first = (int64_t)first,
                                        .context = (int64_t)context,
                                        .ending = (int64_t)ending,
                                        .length = length,
                                        .bytes = bytes};
    if (length - 1 > c->longest) c->longest = length - 1;
    return TR_OK;
}

/* --- JSON lines ------------------------------------------------------------------------------- */

static tr_status encode(reader *r, const char *text, size_t length) {
    tr_token_list *list = &r->out->tokens;
    if (r->encoder) return tr_encoder_add(r->encoder, text, length, 0, list);
    for (size_t i = 0; i < length; i++) {
        const int32_t id = (unsigned char)text[i];
        TR_TRY(tr_tokens_add(list, &id, 1));
    }
    return TR_OK;
}

/* Returns the first member of these names, the last of which is NULL. */
static const cJSON *member(const cJSON *object, const char *const *name) {
    for (; *name; name++) {
        const cJSON *value = tr_json_get(object, *name);
        if (value) return value;
    }
    return NULL;
}

static bool read_label(const cJSON *value, int64_t *label) {
    const char *text = cJSON_GetStringValue(value);
    if (!text) return tr_json_integer(value, label);
    *label = 0;
    if (text[0] >= 'A' && text[0] <= 'Z' && !text[1]) {
        *label = text[0] - 'A';
        return true;
    }
    const size_t digits = strspn(text, "0123456789");
    for (size_t i = 0; i < digits && digits < 10; i++) *label = 10 * *label + (text[i] - '0');
    return digits > 0 && digits < 10 && !text[digits];
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Reads a choice's ending behind a context whose tokens are those from `first` to `end`. */
static tr_status read_ending(reader *r, const char *context, const char *ending, size_t first,
                             size_t end) {
    const size_t length = strlen(context), bytes = strlen(ending), begin = r->out->tokens.count;
    const bool apart = length > 0 && !is_space(context[length - 1]) && !is_space(ending[0]);
    char *text;
    TR_TRY(tr_calloc(bytes + 2, 1, &text));
    (void)snprintf(text, bytes + 2, "%s%s", apart ? " " : "", ending);
    tr_status status = bytes > 0 ? encode(r, text, strlen(text)) : TR_OK;
    free(text);
    TR_TRY(status);
    return add_choice(r, first, end - first, begin, (int64_t)bytes);
}

/* Appends the tokens of a context, which the question's choices share. */
static tr_status read_context(reader *r, const char *context) {
    const int32_t *prefix;
    if (r->options->tokenizer) {
        const size_t count = tr_tokenizer_prefix(r->options->tokenizer, &prefix);
        TR_TRY(tr_tokens_add(&r->out->tokens, prefix, count));
    }
    return encode(r, context, strlen(context));
}

static tr_status read_question(reader *r, const cJSON *line) {
    static const char *const contexts[] = {"context", "ctx", "query", "question", NULL};
    static const char *const endings[] = {"choices", "endings", NULL};
    static const char *const labels[] = {"label", "gold", "answer", NULL};
    const char *context = cJSON_GetStringValue(member(line, contexts));
    const cJSON *list = member(line, endings);
    int64_t label;
    if (!context || !cJSON_IsArray(list))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: a line is a question, {\"context\": TEXT, \"choices\": [TEXT, ...], "
                       "\"label\": NUMBER}; of other lines of JSON `trireme data tokenize` makes "
                       "token files",
                       r->where);
    if (!read_label(member(line, labels), &label))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: \"label\" is missing or not a whole number: it says which choice is "
                       "right, from 0",
                       r->where);
    TR_TRY(begin_question(r, cJSON_GetArraySize(list), label));
    const size_t first = r->out->tokens.count;
    TR_TRY(read_context(r, context));
    const size_t end = r->out->tokens.count;
    for (const cJSON *ending = list->child; ending; ending = ending->next) {
        if (!cJSON_IsString(ending))
            return TR_FAIL(TR_ERR_DATA, "%s: a choice is not a string", r->where);
        TR_TRY(read_ending(r, context, ending->valuestring, first, end));
    }
    return TR_OK;
}

static tr_status read_line(reader *r, const char *text, size_t length, int64_t number) {
    cJSON *line;
    (void)snprintf(r->where, sizeof r->where, "%.1000s:%" PRId64, r->path, number);
    if (length > (size_t)LINE_MIB << 20)
        return TR_FAIL(TR_ERR_DATA, "%s: the line has %zu bytes, and a question at most %d MiB",
                       r->where, length, LINE_MIB);
    TR_TRY(tr_json_parse(text, length, r->where, &line));
    tr_status status = read_question(r, line);
    cJSON_Delete(line);
    return status;
}

static tr_status read_lines(reader *r, const tr_byte_list *text) {
    int64_t number = 1;
    for (size_t at = 0; at < text->count; number++) {
        const char *begin = text->byte + at, *end = memchr(begin, '\n', text->count - at);
        const size_t length = end ? (size_t)(end - begin) : text->count - at;
        bool blank = true;
        for (size_t i = 0; i < length && blank; i++) blank = is_space(begin[i]);
        if (!blank) TR_TRY(read_line(r, begin, length, number));
        at += length + 1;
    }
    return TR_OK;
}

static tr_status open_lines(reader *r) {
    tr_byte_list text = {0};
    if (!r->options->tokenizer && !r->options->bytes)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "the text of '%s' needs a tokenizer, which the model does not have: name one "
            "with data.tokenizer=FILE",
            r->path);
    if (r->options->tokenizer) TR_TRY(tr_encoder_open(r->options->tokenizer, &r->encoder));
    tr_status status = tr_textfile_load(r->path, FILE_MIB, &text);
    if (status == TR_OK) status = read_lines(r, &text);
    tr_encoder_close(r->encoder);
    free(text.byte);
    return status;
}

/* --- llm.c ------------------------------------------------------------------------------------ */

static int64_t number_at(const char *bytes, int count) {
    uint32_t n = 0;
    for (int i = 0; i < count; i++) n |= (uint32_t)(unsigned char)bytes[i] << 8 * i;
    return n;
}

/* A part of the file, read from `at` on. */
typedef struct span {
    const char *text;
    size_t at, end;
} span;

static tr_status take(reader *r, span *s, int64_t *out) {
    *out = 0;
    if (s->end - s->at < 2)
        return TR_FAIL(TR_ERR_DATA, "%s: byte %zu: the question ends within its numbers", r->path,
                       s->at);
    *out = number_at(s->text + s->at, 2);
    s->at += 2;
    return TR_OK;
}

/* Appends a list of tokens, which begins with their number. */
static tr_status take_tokens(reader *r, span *s) {
    int64_t count, token;
    TR_TRY(take(r, s, &count));
    for (int64_t i = 0; i < count; i++) {
        TR_TRY(take(r, s, &token));
        if (token >= r->options->vocab)
            return TR_FAIL(TR_ERR_CONFIG,
                           "%s: byte %zu: token %" PRId64
                           " is none of the model's, which are below %" PRId64
                           " (model.vocab): the file is of another tokenizer",
                           r->path, s->at - 2, token, r->options->vocab);
        const int32_t id = (int32_t)token;
        TR_TRY(tr_tokens_add(&r->out->tokens, &id, 1));
    }
    return TR_OK;
}

/* Reads the question in s, of which the first two numbers are read. */
static tr_status take_question(reader *r, span *s) {
    const tr_token_list *list = &r->out->tokens;
    int64_t index, label, choices;
    TR_TRY(take(r, s, &index));
    TR_TRY(take(r, s, &label));
    TR_TRY(take(r, s, &choices));
    TR_TRY(begin_question(r, (int)choices, label));
    const size_t first = list->count;
    TR_TRY(take_tokens(r, s));
    const size_t context = list->count - first;
    for (int64_t k = 0; k < choices; k++) {
        const size_t ending = list->count;
        TR_TRY(take_tokens(r, s));
        TR_TRY(add_choice(r, first, context, ending, 0));
    }
    if (s->at == s->end) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s: byte %zu: the question is shorter than it says", r->path,
                   s->at);
}

static tr_status read_questions(reader *r, const char *text, size_t length) {
    if (length < HEADER)
        return TR_FAIL(TR_ERR_DATA, "%s: the header of %d bytes is cut off at byte %zu", r->path,
                       HEADER, length);
    const int64_t version = number_at(text + 4, 4), questions = number_at(text + 8, 4);
    if (version != 1)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: byte 4: version %" PRId64 " is not 1, the one that is known", r->path,
                       version);
    span all = {text, HEADER, length};
    for (int64_t q = 0; q < questions; q++) {
        int64_t begin, bytes;
        span one = all;
        (void)snprintf(r->where, sizeof r->where, "%.1000s: byte %zu", r->path, all.at);
        TR_TRY(take(r, &one, &begin));
        TR_TRY(take(r, &one, &bytes));
        if (begin != BEGIN)
            return TR_FAIL(TR_ERR_DATA,
                           "%s: question %" PRId64 " of %" PRId64 " does not begin here", r->where,
                           q, questions);
        if (bytes < 4 || (size_t)bytes > all.end - all.at)
            return TR_FAIL(TR_ERR_DATA,
                           "%s: the question has %" PRId64 " bytes, and the file %zu more",
                           r->where, bytes, all.end - all.at);
        one.end = all.at + (size_t)bytes;
        TR_TRY(take_question(r, &one));
        all.at = one.end;
    }
    if (all.at == all.end) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s: byte %zu: %" PRId64 " questions end here, and the file does not", r->path,
                   all.at, questions);
}

static bool is_llmc(const char *path) {
    return tr_input_magic(path) == MAGIC;
}

static tr_status open_llmc(reader *r) {
    const tr_input_limit limit = {.mib = FILE_MIB, .failure = TR_ERR_DATA};
    char *text;
    size_t length;
    TR_TRY(tr_input_load("the file of questions", r->path, limit, &text, &length));
    tr_status status = read_questions(r, text, length);
    free(text);
    return status;
}

/* --- both ------------------------------------------------------------------------------------- */

bool tr_choices_is_file(const char *path) {
    return tr_textfile_is_json_lines(path) || is_llmc(path);
}

tr_status tr_choices_open(const char *path, const tr_choices_options *options, tr_choices *out) {
    reader r = {.options = options, .out = out, .path = path};
    *out = (tr_choices){0};
    TR_TRY(is_llmc(path) ? open_llmc(&r) : open_lines(&r));
    if (out->questions > 0) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s: the file has no question", path);
}

int32_t tr_choices_token(const tr_choices *choices, const tr_choice *choice, int64_t t) {
    const bool in_context = t < choice->context;
    return choices->tokens
        .id[in_context ? choice->first + t : choice->ending + t - choice->context];
}

void tr_choices_free(tr_choices *c) {
    free(c->tokens.id);
    free(c->choice);
    free(c->question);
    *c = (tr_choices){0};
}
