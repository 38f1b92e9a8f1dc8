#include "cli/sample_texts.h"

#include "base/memory.h"
#include "train/sampler.h"
#include "train/textout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- tokens ----------------------------------------------------------------------------------- */

static tr_status add_tokens(const int32_t *id, size_t count, tr_token_list *list) {
    TR_TRY(tr_grow(&list->id, &list->capacity, list->count + count, sizeof *id));
    if (count > 0) memcpy(list->id + list->count, id, count * sizeof *id);
    list->count += count;
    return TR_OK;
}

static tr_status add_bytes(const char *text, tr_token_list *list) {
    for (; *text; text++) {
        const int32_t token = (unsigned char)*text;
        TR_TRY(add_tokens(&token, 1, list));
    }
    return TR_OK;
}

tr_status cli_prompt_tokens(const cli_texts *texts, const char *prompt, tr_token_list *list) {
    const int32_t *id;
    tr_encoder *encoder;
    if (!texts->tokenizer) return add_bytes(prompt, list);
    const size_t count = tr_tokenizer_prefix(texts->tokenizer, &id);
    TR_TRY(add_tokens(id, count, list));
    TR_TRY(tr_encoder_open(texts->tokenizer, &encoder));
    tr_status status = tr_encoder_add(encoder, prompt, strlen(prompt),
                                      texts->no_special ? TR_ENCODE_NO_SPECIAL : 0, list);
    tr_encoder_close(encoder);
    if (status == TR_OK && list->count == 0)
        status = TR_FAIL(TR_ERR_DATA, "the prompt has no token: give another text with -p");
    return status;
}

tr_status cli_token_text(const tr_tokenizer *tokenizer, int32_t token, tr_byte_list *bytes) {
    if (tokenizer)
        return tr_tokenizer_decode(tokenizer, &token, 1, TR_DECODE_CONTINUES | TR_DECODE_NO_SPECIAL,
                                   bytes);
    const char byte = (char)token;
    const char *text = token < 256 ? &byte : "\xEF\xBF\xBD"; /* U+FFFD */
    const size_t count = token < 256 ? 1 : 3;
    TR_TRY(tr_grow(&bytes->byte, &bytes->capacity, bytes->count + count, 1));
    memcpy(bytes->byte + bytes->count, text, count);
    bytes->count += count;
    return TR_OK;
}

bool cli_token_ends(const tr_tokenizer *tokenizer, int32_t token) {
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
    tr_byte_list made; /* json: what was drawn */
    FILE *stream;      /* else where it goes, or NULL */
    int64_t left;      /* tokens to draw */
} row;

static tr_status write_piece(void *context, const char *text, size_t length) {
    row *r = context;
    if (!r->stream) {
        TR_TRY(tr_grow(&r->made.byte, &r->made.capacity, r->made.count + length, 1));
        memcpy(r->made.byte + r->made.count, text, length);
        r->made.count += length;
        return TR_OK;
    }
    (void)fwrite(text, 1, length, r->stream);
    if (fflush(r->stream) != 0)
        return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
    return TR_OK;
}

static tr_status discard(void *context, const char *text, size_t length) {
    (void)context;
    (void)text;
    (void)length;
    return TR_OK;
}

static tr_status begin_row(const cli_texts *texts, tr_sampler *sampler, int index, row *r) {
    tr_token_list list = {0};
    r->left = texts->tokens;
    r->stream = texts->json ? NULL : texts->out;
    r->out = (tr_textout){.stop = texts->stop,
                          .stops = texts->stops,
                          .write = texts->out ? write_piece : discard,
                          .context = r};
    tr_status status = cli_prompt_tokens(texts, r->prompt, &list);
    if (status == TR_OK) status = tr_sampler_append(sampler, index, list.id, (int64_t)list.count);
    free(list.id);
    TR_TRY(status);
    if (r->stream) TR_TRY(write_piece(r, r->prompt, strlen(r->prompt)));
    if (r->left == 0) tr_sampler_end(sampler, index);
    return TR_OK;
}

/* Takes the next token of a text; *live: it does not end the text. */
static tr_status take(const cli_texts *texts, row *r, int32_t token, bool *live) {
    tr_byte_list bytes = {0};
    *live = false;
    if (cli_token_ends(texts->tokenizer, token)) return TR_OK;
    tr_status status = cli_token_text(texts->tokenizer, token, &bytes);
    if (status == TR_OK) status = tr_textout_add(&r->out, bytes.byte, bytes.count);
    free(bytes.byte);
    TR_TRY(status);
    *live = --r->left > 0 && !r->out.stopped;
    return TR_OK;
}

/* Writes a JSON string; the text is UTF-8. */
static void write_string(FILE *out, const char *text, size_t length) {
    (void)fputc('"', out);
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20) (void)fprintf(out, "\\u%04x", c);
        else if (c == '"' || c == '\\') (void)fprintf(out, "\\%c", c);
        else (void)fputc(c, out);
    }
    (void)fputc('"', out);
}

static tr_status write_json(FILE *out, const row *r) {
    (void)fputs("{\"prompt\":", out);
    write_string(out, r->prompt, strlen(r->prompt));
    (void)fputs(",\"text\":", out);
    write_string(out, r->made.byte, r->made.count);
    (void)fputs("}\n", out);
    if (fflush(out) != 0)
        return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
    return TR_OK;
}

/* Writes the ends of the texts, in the order of the prompts. */
static tr_status end_rows(const cli_texts *texts, row *rows, int count) {
    for (int i = 0; i < count; i++) {
        TR_TRY(tr_textout_end(&rows[i].out));
        if (!texts->out) continue;
        if (!texts->json) TR_TRY(write_piece(&rows[i], "\n", 1));
        else TR_TRY(write_json(texts->out, &rows[i]));
    }
    return TR_OK;
}

/* Makes `count` texts together. */
static tr_status make_texts(const cli_texts *texts, tr_sampler *sampler, row *rows, int count,
                            int32_t *drawn) {
    int live = texts->tokens > 0 ? count : 0;
    for (int i = 0; i < count; i++) TR_TRY(begin_row(texts, sampler, i, &rows[i]));
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
    return end_rows(texts, rows, count);
}

tr_status cli_sample_texts(tr_decode_session *s, const cli_texts *texts) {
    tr_status status = TR_OK;
    int32_t *drawn = NULL;
    row *rows = NULL;
    tr_sampler *sampler = NULL;
    TR_TRY_OUT(tr_calloc((size_t)texts->rows, sizeof *drawn, &drawn));
    TR_TRY_OUT(tr_calloc((size_t)texts->rows, sizeof *rows, &rows));
    for (int from = 0; from < texts->prompts; from += texts->rows) {
        const int left = texts->prompts - from, count = left < texts->rows ? left : texts->rows;
        memset(rows, 0, (size_t)texts->rows * sizeof *rows);
        for (int i = 0; i < count; i++) rows[i].prompt = texts->prompt[from + i];
        const tr_sampler_desc desc = {.world = s->world,
                                      .decoder = s->decoder,
                                      .model = s->model,
                                      .draw = texts->draw,
                                      .first_row = (uint64_t)from,
                                      .board = texts->board};
        TR_TRY_OUT(tr_sampler_create(&desc, &sampler));
        status = make_texts(texts, sampler, rows, count, drawn);
        for (int i = 0; i < count; i++) {
            tr_textout_release(&rows[i].out);
            free(rows[i].made.byte);
        }
        tr_sampler_destroy(sampler);
        if (status != TR_OK) break;
    }
out:
    free(drawn);
    free(rows);
    return status;
}
