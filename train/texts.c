#include "train/texts.h"

#include "base/input.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "train/textout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_FILE_MIB = 64 };

/* --- prompts ---------------------------------------------------------------------------------- */

/* Takes a line of the prompts' file without its end, if it is not empty. */
static tr_status take_prompt(const char *path, char *line, int number, tr_prompts *out) {
    size_t length = strcspn(line, "\n");
    if (length > 0 && line[length - 1] == '\r') length--;
    line[length] = '\0';
    if (!tr_utf8_is_valid((const uint8_t *)line, length))
        return TR_FAIL(TR_ERR_DATA, "%s:%d: the prompt is not UTF-8", path, number);
    if (length == 0) return TR_OK;
    out->number[out->count] = number;
    out->line[out->count++] = line;
    return TR_OK;
}

tr_status tr_prompts_read(const char *path, tr_prompts *out) {
    const tr_input_limit limit = {.mib = PROMPT_FILE_MIB, .failure = TR_ERR_DATA};
    size_t length, lines = 1;
    *out = (tr_prompts){0};
    TR_TRY(tr_input_load("the file of prompts", path, limit, &out->text, &length));
    if (memchr(out->text, '\0', length))
        return TR_FAIL(TR_ERR_DATA, "the file of prompts '%s' has a zero byte: it must be text",
                       path);
    for (size_t i = 0; i < length; i++) lines += out->text[i] == '\n';
    TR_TRY(tr_calloc(lines, sizeof *out->line, (void *)&out->line));
    TR_TRY(tr_calloc(lines, sizeof *out->number, &out->number));
    char *line = out->text + tr_utf8_mark(out->text, length), *next;
    for (int number = 1; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next) next++;
        TR_TRY(take_prompt(path, line, number, out));
    }
    if (out->count > 0) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "the file of prompts '%s' is empty: write one prompt a line", path);
}

void tr_prompts_free(tr_prompts *prompts) {
    free(prompts->text);
    free((void *)prompts->line);
    free(prompts->number);
    *prompts = (tr_prompts){0};
}

tr_texts tr_texts_default(void) {
    static const char *const prompt = "\n";
    return (tr_texts){
        .sampler.draw.temperature = 0.8, .prompt = &prompt, .prompts = 1, .tokens = 200};
}

/* --- tokens ----------------------------------------------------------------------------------- */

static tr_status add_bytes(const char *text, tr_token_list *list) {
    for (; *text; text++) {
        const int32_t token = (unsigned char)*text;
        TR_TRY(tr_tokens_add(list, &token, 1));
    }
    return TR_OK;
}

tr_status tr_texts_encode(const tr_texts *texts, const char *prompt, tr_token_list *list) {
    const int32_t *id;
    tr_encoder *encoder;
    if (!texts->tokenizer) return add_bytes(prompt, list);
    const size_t count = tr_tokenizer_prefix(texts->tokenizer, &id);
    TR_TRY(tr_tokens_add(list, id, count));
    TR_TRY(tr_encoder_open(texts->tokenizer, &encoder));
    tr_status status = tr_encoder_add(encoder, prompt, strlen(prompt),
                                      texts->no_special ? TR_ENCODE_NO_SPECIAL : 0, list);
    tr_encoder_close(encoder);
    if (status == TR_OK && list->count == 0)
        status = TR_FAIL(TR_ERR_DATA, "the prompt has no token: give another text");
    return status;
}

tr_status tr_texts_check(const tr_texts *texts, const tr_prompts *prompts, const char *key,
                         const char *file, int64_t context, tr_status failure) {
    char place[512] = "";
    for (int i = 0; i < texts->prompts; i++) {
        tr_token_list list = {0};
        tr_status status = tr_texts_encode(texts, texts->prompt[i], &list);
        free(list.id);
        TR_TRY(status);
        if ((int64_t)list.count <= context) continue;
        if (prompts->number)
            (void)snprintf(place, sizeof place, " in line %d of %s'%.400s'", prompts->number[i],
                           key, file);
        return TR_FAIL(failure,
                       "the prompt%s has %zu tokens, and model.context is %" PRId64 ": shorten it",
                       place, list.count, context);
    }
    return TR_OK;
}

tr_status tr_texts_decode(const tr_tokenizer *tokenizer, int32_t token, tr_byte_list *bytes) {
    if (tokenizer)
        return tr_tokenizer_decode(tokenizer, &token, 1,
                                   TR_TOKENIZER_CONTINUES | TR_TOKENIZER_NO_SPECIAL, bytes);
    const char byte = (char)token;
    const char *text = token < 256 ? &byte : "\xEF\xBF\xBD"; /* U+FFFD */
    const size_t count = token < 256 ? 1 : 3;
    return tr_bytes_add(bytes, text, count);
}

bool tr_texts_token_ends(const tr_tokenizer *tokenizer, int32_t token) {
    const int32_t *end;
    if (!tokenizer) return false;
    const size_t count = tr_tokenizer_ends(tokenizer, &end);
    for (size_t i = 0; i < count; i++)
        if (end[i] == token) return true;
    return false;
}

/* --- texts ------------------------------------------------------------------------------------ */

/* A text in progress. */
typedef struct row {
    const char *prompt;
    tr_textout out;
    tr_byte_list made; /* what was drawn, if it is kept, */
    FILE *stream;      /* else where it goes, after the prompt */
    bool shown;        /* the prompt was written */
    int64_t left;      /* tokens to draw */
} row;

static tr_status write_piece(void *context, const char *text, size_t length) {
    row *r = context;
    if (!r->stream) return tr_bytes_add(&r->made, text, length);
    (void)fwrite(text, 1, length, r->stream);
    if (fflush(r->stream) != 0)
        return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
    return TR_OK;
}

/* Writes the prompt, once there is something to follow it: a failure writes no part of a text. */
static tr_status show_prompt(row *r) {
    if (!r->stream || r->shown) return TR_OK;
    r->shown = true;
    return write_piece(r, r->prompt, strlen(r->prompt));
}

static tr_status discard(void *context, const char *text, size_t length) {
    (void)context;
    (void)text;
    (void)length;
    return TR_OK;
}

static tr_status begin_row(const tr_texts *texts, tr_sampler *sampler, int index, row *r) {
    tr_token_list list = {0};
    r->left = texts->tokens;
    r->stream = texts->stream;
    r->out = (tr_textout){.stop = texts->stop,
                          .stops = texts->stops,
                          .write = texts->stream || texts->made ? write_piece : discard,
                          .context = r};
    tr_status status = tr_texts_encode(texts, r->prompt, &list);
    if (status == TR_OK) status = tr_sampler_append(sampler, index, list.id, (int64_t)list.count);
    free(list.id);
    TR_TRY(status);
    if (r->left == 0) tr_sampler_end(sampler, index);
    return TR_OK;
}

/* Takes the next token of a text; *live: it does not end the text. */
static tr_status take(const tr_texts *texts, row *r, int32_t token, bool *live) {
    tr_byte_list bytes = {0};
    *live = false;
    TR_TRY(show_prompt(r));
    if (tr_texts_token_ends(texts->tokenizer, token)) return TR_OK;
    tr_status status = tr_texts_decode(texts->tokenizer, token, &bytes);
    if (status == TR_OK) status = tr_textout_add(&r->out, bytes.byte, bytes.count);
    free(bytes.byte);
    TR_TRY(status);
    *live = --r->left > 0 && !r->out.stopped;
    return TR_OK;
}

/* Ends the texts, in the order of the prompts. */
static tr_status end_rows(const tr_texts *texts, const tr_sampler *sampler, int from, row *rows,
                          int count) {
    for (int i = 0; i < count; i++) {
        if (texts->full && tr_sampler_forgotten(sampler, i) > 0) *texts->full = true;
        TR_TRY(show_prompt(&rows[i]));
        TR_TRY(tr_textout_end(&rows[i].out));
        if (texts->stream) TR_TRY(write_piece(&rows[i], "\n", 1));
        if (texts->made)
            TR_TRY(texts->made(texts->context, from + i, rows[i].made.byte, rows[i].made.count));
    }
    return TR_OK;
}

/* Makes `count` texts together, of the prompts from `from` on. */
static tr_status make_together(const tr_texts *texts, tr_sampler *sampler, int from, row *rows,
                               int count, int32_t *drawn) {
    int live = texts->tokens > 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        rows[i].prompt = texts->prompt[from + i];
        TR_TRY(begin_row(texts, sampler, i, &rows[i]));
    }
    while (live > 0) {
        TR_TRY(tr_sampler_next(sampler, drawn));
        for (int i = 0; i < count; i++) {
            bool goes_on;
            if (drawn[i] < 0) continue;
            TR_TRY(take(texts, &rows[i], drawn[i], &goes_on));
            if (goes_on) continue;
            tr_sampler_end(sampler, i);
            live--;
        }
    }
    return end_rows(texts, sampler, from, rows, count);
}

tr_status tr_texts_make(const tr_texts *texts) {
    const int most = (int)tr_decoder_rows(texts->sampler.decoder);
    tr_status status = TR_OK;
    int32_t *drawn = NULL;
    row *rows = NULL;
    TR_TRY_OUT(tr_calloc((size_t)most, sizeof *drawn, &drawn));
    TR_TRY_OUT(tr_calloc((size_t)most, sizeof *rows, &rows));
    for (int from = 0; from < texts->prompts && status == TR_OK; from += most) {
        const int left = texts->prompts - from, count = left < most ? left : most;
        tr_sampler_desc desc = texts->sampler;
        tr_sampler *sampler;
        desc.first_row += (uint64_t)from;
        memset(rows, 0, (size_t)most * sizeof *rows);
        TR_TRY_OUT(tr_sampler_create(&desc, &sampler));
        status = make_together(texts, sampler, from, rows, count, drawn);
        for (int i = 0; i < count; i++) {
            tr_textout_release(&rows[i].out);
            free(rows[i].made.byte);
        }
        tr_sampler_destroy(sampler);
    }
out:
    free(drawn);
    free(rows);
    return status;
}

void tr_texts_record(FILE *out, int64_t step, const char *prompt, const char *text, size_t length) {
    (void)fputc('{', out);
    if (step >= 0) (void)fprintf(out, "\"step\":%" PRId64 ",", step);
    (void)fputs("\"prompt\":", out);
    tr_json_write_string(out, prompt, strlen(prompt));
    (void)fputs(",\"text\":", out);
    tr_json_write_string(out, text, length);
    (void)fputs("}\n", out);
}
