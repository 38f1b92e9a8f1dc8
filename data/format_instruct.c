/* Instruction data: lines of JSON with a conversation each (conversation.h). Their tokens are those
 * that the run keeps in a folder; without them the file is tokenized when it is opened. Only what
 * the assistant writes is learned: all other tokens carry TR_TOKEN_GIVEN.
 *
 * Conversations are packed in the order of the file into rows of options.context tokens, each whole
 * within one row; the rest of a row is padding, a document of its own. So lines that are appended
 * to the file change no token that was there before. */
#include "base/memory.h"
#include "base/utf8.h"
#include "data/conversation.h"
#include "data/format_impl.h"
#include "data/json_line.h"
#include "data/kept_rows.h"
#include "data/kept_tokens.h"
#include "data/textfile.h"
#include "text/chat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20, LONGEST_LINE = 1 << 29 }; /* bytes */

typedef struct reader {
    const tr_source_options *options;
    tr_source *source;
    tr_chat chat;
    tr_encoder *encoder;
    tr_conversation conversation;
    tr_token_list tokens; /* of one conversation */
    tr_token_list rows;
    size_t ends_capacity;
    int64_t line; /* in progress, from 1 on */
} reader;

/* Marks the tokens from `first` on as given. */
static void give(tr_token_list *list, size_t first) {
    for (size_t i = first; i < list->count; i++) list->id[i] |= TR_TOKEN_GIVEN;
}

/* --- tokens of a conversation ----------------------------------------------------------------- */

/* Refuses a text in which the tokenizer finds a token of the template: such a token is not marked
 * as special, so a text could pretend to be another turn. */
static tr_status check_text(const reader *r, size_t first) {
    for (size_t i = first; i < r->tokens.count; i++) {
        const int32_t id = r->tokens.id[i];
        if (id == r->chat.start || id == r->chat.end || id == r->chat.header_end)
            return TR_FAIL(TR_ERR_DATA,
                           "a text contains the template's token %" PRId32
                           ", which the tokenizer does not mark as special: remove it from the "
                           "text, or mark it",
                           id);
    }
    return TR_OK;
}

static tr_status add_turn(reader *r, const tr_turn *turn) {
    tr_token_list *list = &r->tokens;
    size_t first = list->count;
    TR_TRY(tr_chat_header(&r->chat, r->encoder, tr_role_name(turn->role), list));
    give(list, first);
    first = list->count;
    TR_TRY(
        tr_chat_text(&r->chat, r->encoder, turn->text, turn->length, TR_ENCODE_NO_SPECIAL, list));
    list->count--; /* the end of the turn */
    TR_TRY(check_text(r, first));
    list->count++;
    if (turn->role != TR_ROLE_ASSISTANT) give(list, first);
    first = list->count;
    TR_TRY(tr_chat_separator(&r->chat, r->encoder, list));
    give(list, first);
    return TR_OK;
}

/* Adds a prompt and its answer where the tokenizer has no template. */
static tr_status add_pair(reader *r, const tr_turn *prompt, const tr_turn *answer) {
    const tr_tokenizer *t = r->options->tokenizer;
    const int32_t *id;
    const size_t count = tr_tokenizer_prefix(t, &id);
    if (r->options->document_end < 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "the tokenizer '%s' has neither a chat template nor a token that ends a "
                       "document, which ends an answer: set data.document_end",
                       tr_tokenizer_path(t));
    TR_TRY(tr_tokens_add(&r->tokens, id, count));
    TR_TRY(
        tr_encoder_add(r->encoder, prompt->text, prompt->length, TR_ENCODE_NO_SPECIAL, &r->tokens));
    give(&r->tokens, 0);
    TR_TRY(
        tr_encoder_add(r->encoder, answer->text, answer->length, TR_ENCODE_NO_SPECIAL, &r->tokens));
    return tr_tokens_add(&r->tokens, &r->options->document_end, 1);
}

static tr_status encode(reader *r) {
    const tr_conversation *c = &r->conversation;
    r->tokens.count = 0;
    if (r->chat.form == TR_CHAT_NONE && c->pair) return add_pair(r, &c->turn[0], &c->turn[1]);
    if (r->chat.form == TR_CHAT_NONE)
        return TR_FAIL(TR_ERR_DATA,
                       "messages need a chat template, which the tokenizer '%s' does not have: put "
                       "its tokenizer_config.json or chat_template.jinja next to it",
                       tr_tokenizer_path(r->options->tokenizer));
    TR_TRY(tr_chat_begin(&r->chat, &r->tokens));
    give(&r->tokens, 0);
    for (size_t i = 0; i < c->count; i++) TR_TRY(add_turn(r, &c->turn[i]));
    return TR_OK;
}

/* --- rows ------------------------------------------------------------------------------------- */

static tr_status end_document(reader *r) {
    tr_source *s = r->source;
    TR_TRY(tr_grow(&s->end, &r->ends_capacity, (size_t)s->ends + 1, sizeof *s->end));
    s->end[s->ends++] = (int64_t)r->rows.count;
    return TR_OK;
}

/* Fills the row in progress with padding. */
static tr_status end_row(reader *r) {
    const size_t context = (size_t)r->options->context, over = r->rows.count % context;
    if (over == 0) return TR_OK;
    const int32_t end = r->options->document_end;
    TR_TRY(tr_grow(&r->rows.id, &r->rows.capacity, r->rows.count + context - over,
                   sizeof *r->rows.id));
    while (r->rows.count % context)
        r->rows.id[r->rows.count++] = (end > 0 ? end : 0) | TR_TOKEN_GIVEN;
    return end_document(r);
}

/* Puts the conversation in r->tokens into the rows, unless no answer is within a row. */
static tr_status pack(reader *r) {
    const size_t context = (size_t)r->options->context;
    const bool cut = r->tokens.count > context;
    const size_t count = cut ? context : r->tokens.count;
    int64_t answers = 0;
    for (size_t i = 1; i < count; i++) answers += !(r->tokens.id[i] & TR_TOKEN_GIVEN);
    if (answers == 0) {
        r->source->skipped++;
        return TR_OK;
    }
    if (r->rows.count % context + count > context) TR_TRY(end_row(r));
    TR_TRY(tr_tokens_add(&r->rows, r->tokens.id, count));
    r->source->documents++;
    r->source->answers += answers;
    r->source->cut += cut;
    return end_document(r);
}

/* --- the file --------------------------------------------------------------------------------- */

static tr_status read_line(reader *r, const char *line, size_t length) {
    const size_t mark = r->line == 1 ? tr_utf8_mark(line, length) : 0;
    line += mark;
    length -= mark;
    if (tr_jsonl_is_empty(line, length)) return TR_OK;
    TR_TRY(tr_conversation_read(line, length, &r->conversation));
    TR_TRY(encode(r));
    return pack(r);
}

/* Reads the lines that end in the text, and at the end of the file the rest of it; keeps the text
 * behind them. Before byte `searched` there is no end of a line. */
static tr_status read_lines(reader *r, tr_byte_list *text, size_t searched, bool at_end) {
    const char *at = text->byte, *const end = text->byte + text->count;
    while (at < end) {
        const char *stop = memchr(at + searched, '\n', (size_t)(end - at) - searched);
        if (!stop && !at_end) break;
        const size_t length = (size_t)((stop ? stop : end) - at);
        r->line++;
        tr_status status = read_line(r, at, length);
        if (status != TR_OK)
            return TR_FAIL(status, "'%s', line %" PRId64 ": %s", r->source->file.path, r->line,
                           tr_error_message());
        at += stop ? length + 1 : length;
        searched = 0;
    }
    text->count = (size_t)(end - at);
    if (text->count > 0) memmove(text->byte, at, text->count);
    if (text->count > LONGEST_LINE)
        return TR_FAIL(TR_ERR_DATA, "'%s', line %" PRId64 ": it is longer than %d MiB: divide it",
                       r->source->file.path, r->line + 1, LONGEST_LINE >> 20);
    return TR_OK;
}

static tr_status read_file(reader *r, tr_textfile *input, tr_byte_list *text) {
    const tr_source_options *o = r->options;
    for (bool at_end = false; !at_end;) {
        size_t got;
        const size_t before = text->count;
        TR_TRY(tr_grow(&text->byte, &text->capacity, before + PIECE, 1));
        TR_TRY(tr_textfile_read(input, text->byte + before, PIECE, &got));
        text->count += got;
        at_end = got < PIECE;
        TR_TRY(tr_textfile_judge(input, read_lines(r, text, before, at_end)));
        if (o->progress &&
            !o->progress(o->progress_context, tr_textfile_used(input), tr_textfile_size(input)))
            return TR_FAIL(TR_ERR_STOPPED, "stopped by a signal");
    }
    if (r->source->documents == 0)
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' has no conversation with an answer within model.context %" PRId64
                       " tokens: name another file, or raise model.context",
                       r->source->file.path, r->options->context);
    return TR_OK;
}

/* Hands the rows over to the source. */
static tr_status finish(reader *r) {
    tr_source *s = r->source;
    s->filled = (int64_t)r->rows.count;
    TR_TRY(end_row(r));
    s->width = sizeof *r->rows.id;
    s->rows = s->lists_ends = true;
    s->tokens = (int64_t)r->rows.count;
    s->memory = r->rows.id;
    r->rows.id = NULL;
    return TR_OK;
}

tr_status tr_format_open_instruct(const char *path, const tr_source_options *options,
                                  tr_source *source) {
    reader r = {.options = options, .source = source};
    tr_textfile *input = NULL;
    tr_byte_list text = {0};
    char kept[PATH_MAX];
    tr_status status = TR_OK;
    if (!options->tokenizer)
        return TR_FAIL(TR_ERR_CONFIG, "data.format instruct needs data.tokenizer: name a "
                                      "tokenizer.json, a tiktoken file, or a folder with one");
    if (!tr_textfile_is_json_lines(path))
        return TR_FAIL(TR_ERR_DATA,
                       "data.format instruct reads lines of JSON, and '%s' does not end in .jsonl, "
                       ".ndjson or .json (.gz and .zst may follow)",
                       path);
    if (tr_kept_tokens_find(options, path, kept))
        return tr_kept_tokens_opened(options, tr_kept_rows_open(kept, source));
    TR_TRY(tr_format_open_file(path, source));
    TR_TRY_OUT(tr_chat_find(options->tokenizer, &r.chat));
    TR_TRY_OUT(tr_encoder_open(options->tokenizer, &r.encoder));
    TR_TRY_OUT(tr_textfile_open(path, &input));
    TR_TRY_OUT(read_file(&r, input, &text));
    TR_TRY_OUT(finish(&r));
out:
    tr_textfile_close(input);
    tr_encoder_close(r.encoder);
    tr_conversation_free(&r.conversation);
    free(text.byte);
    free(r.tokens.id);
    free(r.rows.id);
    return status;
}
