#include "cli/sample_chat.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "text/chat.h"
#include "train/textout.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long rank 0 waits for a line before it lets the other ranks know that it does. */
enum { LOOK_MS = 500, MOST_LINE = 1 << 20 };

typedef enum input_kind { INPUT_NONE, INPUT_LINE, INPUT_END, INPUT_STOP } input_kind;

typedef struct chat {
    tr_world *world;
    const tr_texts *texts;
    const char *system; /* NULL: none */
    int64_t context;
    tr_chat form;
    tr_encoder *encoder; /* NULL: bytes are tokens */
    tr_sampler *sampler;
    bool begun;
    int64_t forgotten; /* tokens, as it was said */
    /* Rank 0: */
    bool leads, shows; /* it writes a prompt */
    char *typed;       /* not used yet */
    size_t length, capacity;
    bool ended; /* stdin has */
    bool cut;   /* the line's first part was taken, and the rest of it is passed over */
    /* Every rank: the turn. */
    char *line;
    size_t line_length;
} chat;

__attribute__((format(printf, 2, 3))) static void say(const chat *c, const char *format, ...) {
    va_list args;
    if (!c->leads) return;
    va_start(args, format);
    (void)fputs("trireme: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
}

/* --- turns: rank 0 ---------------------------------------------------------------------------- */

/* Reads what stdin has, if it has something within LOOK_MS. */
static tr_status read_some(chat *c) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&in, 1, LOOK_MS) <= 0) return TR_OK;
    TR_TRY(tr_grow(&c->typed, &c->capacity, c->length + 4096, 1));
    const ssize_t count = read(STDIN_FILENO, c->typed + c->length, 4096);
    if (count > 0) c->length += (size_t)count;
    else if (count == 0 || (errno != EINTR && errno != EAGAIN)) c->ended = true;
    return TR_OK;
}

static void use(chat *c, size_t bytes) {
    memmove(c->typed, c->typed + bytes, c->length - bytes);
    c->length -= bytes;
}

/* Returns the bytes of a line of `length` that are taken: no more than MOST_LINE, and no part of a
 * character. */
static size_t kept_of(const chat *c, size_t length) {
    if (length <= MOST_LINE) return length;
    length = MOST_LINE;
    while (length > MOST_LINE - 4 && ((unsigned char)c->typed[length] & 0xc0) == 0x80) length--;
    return length;
}

/* Passes over the rest of a line that was cut, as far as it was typed. */
static void pass_over(chat *c) {
    const char *end = c->length ? memchr(c->typed, '\n', c->length) : NULL;
    if (!c->cut) return;
    use(c, end ? (size_t)(end - c->typed) + 1 : c->length);
    c->cut = !end;
}

/* Moves the first line that was typed, or the last one without its end, to c->line. Returns false
 * when there is none. */
static bool take_line(chat *c) {
    pass_over(c);
    const char *end = c->length ? memchr(c->typed, '\n', c->length) : NULL;
    if (!end && !(c->ended && c->length > 0) && c->length <= MOST_LINE) return false;
    const size_t length = end ? (size_t)(end - c->typed) : c->length;
    const size_t kept = kept_of(c, length);
    memcpy(c->line, c->typed, kept);
    c->line_length = kept > 0 && c->line[kept - 1] == '\r' ? kept - 1 : kept;
    c->cut = length > MOST_LINE && !end;
    use(c, end ? length + 1 : length);
    if (length > MOST_LINE) say(c, "the line is longer than 1 MiB: it is cut");
    return true;
}

/* Returns true when the line is a turn; else says why not. */
static bool is_turn(const chat *c) {
    if (c->line_length == 0) return false;
    if (!memchr(c->line, '\0', c->line_length) &&
        tr_utf8_is_valid((const uint8_t *)c->line, c->line_length))
        return true;
    say(c, "the line is not UTF-8 text: type it again");
    return false;
}

static tr_status look(chat *c, int32_t *kind) {
    *kind = INPUT_NONE;
    while (take_line(c))
        if (is_turn(c)) {
            *kind = INPUT_LINE;
            return TR_OK;
        } else if (c->shows) {
            (void)fputs("> ", stderr);
        }
    if (c->ended) *kind = INPUT_END;
    else TR_TRY(read_some(c));
    if (tr_board_take_interrupt(c->texts->sampler.board)) *kind = INPUT_END;
    if (tr_board_stop_requested(c->texts->sampler.board)) *kind = INPUT_STOP;
    return TR_OK;
}

/* --- turns: every rank ------------------------------------------------------------------------ */

/* Waits for the next turn. A rank waits at most LOOK_MS at a time for rank 0, however long a person
 * thinks. */
static tr_status next_turn(chat *c, int32_t *kind) {
    if (c->shows) (void)fputs("> ", stderr);
    *kind = INPUT_NONE;
    while (*kind == INPUT_NONE) {
        if (c->leads) TR_TRY(look(c, kind));
        TR_TRY(tr_world_broadcast(c->world, 0, kind, sizeof *kind));
    }
    if (*kind != INPUT_LINE) return TR_OK;
    TR_TRY(tr_world_broadcast(c->world, 0, &c->line_length, sizeof c->line_length));
    TR_TRY(tr_world_broadcast(c->world, 0, c->line, c->line_length));
    c->line[c->line_length] = '\0';
    return TR_OK;
}

/* Appends a turn that is not drawn. */
static tr_status add_whole(const chat *c, const char *role, const char *text, size_t length,
                           unsigned flags, tr_token_list *list) {
    TR_TRY(tr_chat_header(&c->form, c->encoder, role, list));
    TR_TRY(tr_chat_text(&c->form, c->encoder, text, length, flags, list));
    return tr_chat_separator(&c->form, c->encoder, list);
}

/* Appends the tokens of a user's turn, after the system's before the first one, and of what begins
 * the answer. */
static tr_status add_turn(chat *c, tr_token_list *list) {
    const unsigned flags = c->texts->no_special ? TR_ENCODE_NO_SPECIAL : 0;
    if (c->form.form == TR_CHAT_NONE) {
        if (!c->begun || !c->encoder) return tr_texts_encode(c->texts, c->line, list);
        return tr_encoder_add(c->encoder, c->line, c->line_length, flags, list);
    }
    if (!c->begun) TR_TRY(tr_chat_begin(&c->form, list));
    if (!c->begun && c->system)
        TR_TRY(add_whole(c, "system", c->system, strlen(c->system), flags, list));
    TR_TRY(add_whole(c, "user", c->line, c->line_length, flags, list));
    return tr_chat_header(&c->form, c->encoder, "assistant", list);
}

static tr_status take_turn(chat *c) {
    tr_token_list list = {0};
    tr_status status = add_turn(c, &list);
    if (status == TR_OK) status = tr_sampler_append(c->sampler, 0, list.id, (int64_t)list.count);
    free(list.id);
    c->begun = true;
    return status;
}

/* --- answers ---------------------------------------------------------------------------------- */

static tr_status write_piece(void *context, const char *text, size_t length) {
    const chat *c = context;
    if (!c->texts->stream) return TR_OK;
    (void)fwrite(text, 1, length, c->texts->stream);
    if (fflush(c->texts->stream) != 0)
        return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
    return TR_OK;
}

static void note_forgotten(chat *c) {
    const int64_t forgotten = tr_sampler_forgotten(c->sampler, 0);
    if (forgotten == c->forgotten) return;
    c->forgotten = forgotten;
    say(c, "the context of %lld tokens is full: the older part of the conversation is forgotten",
        (long long)c->context);
}

/* Draws and writes tokens until one ends the answer; *last is the last one. */
static tr_status draw_answer(chat *c, tr_textout *out, int32_t *last) {
    for (int64_t left = c->texts->tokens; left > 0; left--) {
        tr_byte_list bytes = {0};
        TR_TRY(tr_sampler_next(c->sampler, last));
        note_forgotten(c);
        if (tr_texts_token_ends(c->texts->tokenizer, *last) || *last == c->form.end) return TR_OK;
        tr_status status = tr_texts_decode(c->texts->tokenizer, *last, &bytes);
        if (status == TR_OK) status = tr_textout_add(out, bytes.byte, bytes.count);
        free(bytes.byte);
        TR_TRY(status);
        int32_t ends =
            out->stopped || (c->leads && tr_board_take_interrupt(c->texts->sampler.board));
        TR_TRY(tr_world_broadcast(c->world, 0, &ends, sizeof ends));
        if (ends) return TR_OK;
    }
    return TR_OK;
}

/* Appends what ends the answer's turn and was not drawn. */
static tr_status end_turn(chat *c, int32_t last) {
    tr_token_list list = {0};
    if (c->form.form == TR_CHAT_NONE) return TR_OK;
    tr_status status =
        last == c->form.end ? TR_OK : tr_chat_text(&c->form, c->encoder, "", 0, 0, &list);
    if (status == TR_OK) status = tr_chat_separator(&c->form, c->encoder, &list);
    if (status == TR_OK) status = tr_sampler_append(c->sampler, 0, list.id, (int64_t)list.count);
    free(list.id);
    return status;
}

static tr_status answer(chat *c) {
    int32_t last = -1;
    tr_textout out = {
        .stop = c->texts->stop, .stops = c->texts->stops, .write = write_piece, .context = c};
    tr_status status = draw_answer(c, &out, &last);
    if (status == TR_OK) status = tr_textout_end(&out);
    tr_textout_release(&out);
    TR_TRY(status);
    TR_TRY(write_piece(c, "\n", 1));
    return end_turn(c, last);
}

/* --- the conversation ------------------------------------------------------------------------- */

static tr_status open_chat(chat *c) {
    const tr_texts *texts = c->texts;
    c->form = (tr_chat){.form = TR_CHAT_NONE, .end = -1};
    TR_TRY(tr_calloc(MOST_LINE + 1, 1, &c->line));
    if (texts->tokenizer) TR_TRY(tr_chat_find(texts->tokenizer, &c->form));
    if (c->system && c->form.form == TR_CHAT_NONE)
        return TR_FAIL(TR_ERR_CONFIG,
                       "--system needs a chat template, and the model's tokenizer has "
                       "none: leave it out, or write its text in the first line");
    if (texts->tokenizer) TR_TRY(tr_encoder_open(texts->tokenizer, &c->encoder));
    return tr_sampler_create(&texts->sampler, &c->sampler);
}

static tr_status converse(chat *c) {
    int32_t kind;
    for (;;) {
        TR_TRY(next_turn(c, &kind));
        if (kind == INPUT_STOP) {
            tr_status status = TR_FAIL(TR_ERR_STOPPED, "stopped");
            tr_error_set_agreed();
            return status;
        }
        if (kind == INPUT_END) break;
        TR_TRY(take_turn(c));
        TR_TRY(answer(c));
    }
    if (c->shows) (void)fputc('\n', stderr);
    return TR_OK;
}

tr_status cli_sample_chat(const tr_texts *texts, const char *system) {
    tr_world *world = texts->sampler.world;
    chat c = {.world = world,
              .texts = texts,
              .system = system,
              .context = texts->sampler.model->shape.seq,
              .leads = tr_world_rank(world) == 0};
    c.shows = c.leads && (isatty(STDIN_FILENO) || tr_board_columns(texts->sampler.board) > 0);
    tr_status status = tr_world_agree(world, open_chat(&c));
    if (status == TR_OK) {
        if (c.leads) tr_board_set_interruptible(texts->sampler.board);
        status = converse(&c);
    }
    tr_sampler_destroy(c.sampler);
    tr_encoder_close(c.encoder);
    free(c.typed);
    free(c.line);
    return status;
}
