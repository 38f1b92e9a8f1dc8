#include "data/tokenize.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "data/conversation.h"
#include "data/json_line.h"
#include "data/textparts.h"
#include "data/token_output.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum {
    ITEMS_A_THREAD = 4, /* so that threads end a batch at about the same time */
};

/* Consecutive text of one file, encoded by one thread. */
typedef struct item {
    tr_byte_list text, line; /* line: the JSON string being read */
    int file;
    bool json, ends; /* the last item of a plain text */
    unsigned flags;  /* of a plain text: TR_ENCODE_CONTINUES in an item that is not its first */
    int64_t offset, first_line, lines; /* behind the text: bytes and lines of the file */
    unsigned next_flags;               /* of the item behind it */
    tr_token_list tokens;
    size_t *end; /* tokens before the end of each document */
    size_t ends_count, ends_capacity;
    tr_status status;
    tr_error error;
} item;

typedef struct work {
    const tr_tokenize_options *options;
    int32_t document_end;
    tr_encoder **encoder; /* [threads] */
    item *items;          /* [most] */
    int most, count;
    tr_token_output *output;
    /* The text that no item has yet: of file `file`, from byte `offset` of its text on. */
    int file;
    tr_textparts parts;
    int64_t offset, line;
    unsigned flags;     /* of the next item */
    int64_t done_bytes; /* of the files before this one */
    tr_tokenize_progress progress;
} work;

/* --- cutting the files into items ------------------------------------------------------------- */

static unsigned flags_of(const work *w) {
    return w->options->no_special ? TR_ENCODE_NO_SPECIAL : 0;
}

static tr_status next_file(work *w) {
    if (w->parts.input) {
        w->done_bytes += tr_textfile_size(w->parts.input);
        w->file++;
        w->offset = w->line = 0;
        w->flags = 0;
    }
    if (w->file < w->options->count)
        return tr_textparts_open(w->options->files[w->file], &w->parts);
    tr_textparts_close(&w->parts);
    return TR_OK;
}

/* Fills the next item; its text is empty at the end of a file of JSON lines. */
static tr_status fill_item(work *w, item *it) {
    size_t cut = 0;
    it->file = w->file;
    it->json = w->parts.json;
    TR_TRY(tr_textparts_find(&w->parts, w->encoder[0], flags_of(w), &cut, &it->next_flags));
    TR_TRY(tr_grow(&it->text.byte, &it->text.capacity, cut + 1, 1));
    memcpy(it->text.byte, w->parts.rest.byte ? w->parts.rest.byte : "", cut);
    it->text.count = cut;
    tr_textparts_take(&w->parts, cut);
    it->ends = !it->json && tr_textparts_at_end(&w->parts);
    it->flags = w->flags;
    w->flags = it->next_flags;
    it->first_line = w->line;
    for (const char *at = it->text.byte, *end = at + cut; it->json && at < end; at++) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        at = line ? line : end;
        w->line++;
    }
    it->lines = w->line;
    w->offset += (int64_t)cut;
    it->offset = w->offset;
    return TR_OK;
}

static tr_status fill_batch(work *w) {
    w->count = 0;
    while (w->count < w->most) {
        if (!w->parts.input || tr_textparts_at_end(&w->parts)) {
            TR_TRY(next_file(w));
            if (w->file == w->options->count) return TR_OK;
        }
        TR_TRY(fill_item(w, &w->items[w->count]));
        w->count++;
    }
    return TR_OK;
}

/* --- encoding --------------------------------------------------------------------------------- */

static tr_status end_document(const work *w, item *it) {
    if (w->document_end >= 0) TR_TRY(tr_tokens_add(&it->tokens, &w->document_end, 1));
    TR_TRY(tr_grow(&it->end, &it->ends_capacity, it->ends_count + 1, sizeof *it->end));
    it->end[it->ends_count++] = it->tokens.count;
    return TR_OK;
}

/* Returns what to do about a line without the key when it is a conversation; "" when it is not. */
static const char *remedy(const char *line, size_t length) {
    tr_conversation conversation = {0};
    const bool talks = tr_conversation_read(line, length, &conversation) == TR_OK;
    tr_conversation_free(&conversation);
    return talks ? ": it is a conversation; to train on its answers, name the file itself in "
                   "data.path, with data.format instruct"
                 : "";
}

static tr_status encode_line(work *w, int thread, item *it, const char *line, size_t length,
                             int64_t number) {
    tr_jsonl found;
    const size_t mark = number == 0 ? tr_utf8_mark(line, length) : 0;
    line += mark;
    length -= mark;
    if (tr_jsonl_is_empty(line, length)) return TR_OK;
    TR_TRY(tr_grow(&it->line.byte, &it->line.capacity, length, 1));
    if (!tr_jsonl_read(line, length, w->options->key, it->line.byte, &found))
        return TR_FAIL(TR_ERR_DATA, "'%s', line %" PRId64 ", byte %zu: %s (the key is \"%.80s\")%s",
                       w->options->files[it->file], number + 1, mark + found.at + 1, found.fault,
                       w->options->key, remedy(line, length));
    TR_TRY(tr_textparts_failed(
        tr_encoder_add(w->encoder[thread], found.text, found.length, flags_of(w), &it->tokens),
        w->options->files[it->file], number + 1));
    return end_document(w, it);
}

static tr_status encode_item(work *w, int thread, item *it) {
    it->tokens.count = it->ends_count = 0;
    if (!it->json) {
        TR_TRY(tr_textparts_failed(tr_encoder_add(w->encoder[thread], it->text.byte, it->text.count,
                                                  flags_of(w) | it->flags, &it->tokens),
                                   w->options->files[it->file], 0));
        return it->ends ? end_document(w, it) : TR_OK;
    }
    int64_t number = it->first_line;
    it->text.byte[it->text.count] = '\0'; /* a line may end without \n */
    for (size_t at = 0; at < it->text.count; number++) {
        const char *line = it->text.byte + at;
        const char *end = memchr(line, '\n', it->text.count - at);
        size_t length = end ? (size_t)(end - line) : it->text.count - at;
        TR_TRY(encode_line(w, thread, it, line, length, number));
        at += length + 1;
    }
    return TR_OK;
}

/* Encodes all items; each thread takes the next one that no other has. */
static void encode_batch(work *w) {
    _Atomic int next = 0, threads = 0;
#pragma omp parallel num_threads(w->options->threads)
    {
        const int thread = atomic_fetch_add(&threads, 1);
        for (int i; (i = atomic_fetch_add(&next, 1)) < w->count;) {
            item *it = &w->items[i];
            it->status = encode_item(w, thread, it);
            if (it->status != TR_OK) tr_error_save(&it->error);
        }
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

static tr_status write_item(work *w, const item *it) {
    size_t from = 0;
    if (it->status != TR_OK) {
        tr_error_restore(&it->error);
        /* An earlier file was decoded to its end. */
        const bool open = w->parts.input && it->file == w->file;
        return open ? tr_textfile_judge(w->parts.input, it->status) : it->status;
    }
    for (size_t d = 0; d < it->ends_count; from = it->end[d++]) {
        TR_TRY(tr_token_output_add(w->output, it->tokens.id + from, (int64_t)(it->end[d] - from)));
        TR_TRY(tr_token_output_end_document(w->output));
    }
    const size_t left = it->tokens.count - from;
    return left ? tr_token_output_add(w->output, it->tokens.id + from, (int64_t)left) : TR_OK;
}

/* Returns the place in the input behind the batch. */
static tr_token_place place_behind(const work *w) {
    const item *last = &w->items[w->count - 1];
    if (w->file > last->file || tr_textparts_at_end(&w->parts))
        return (tr_token_place){.file = last->file + 1};
    return (tr_token_place){.file = last->file,
                            .offset = last->offset,
                            .line = last->lines,
                            .continue_flags = last->next_flags};
}

/* Returns false when the work must stop. */
static bool show_progress(work *w) {
    const tr_token_place at = tr_token_output_place(w->output);
    w->progress.bytes = w->done_bytes + (w->parts.input ? tr_textfile_used(w->parts.input) : 0);
    w->progress.text = w->parts.read;
    w->progress.tokens = at.tokens;
    w->progress.documents = at.documents;
    return !w->options->progress || w->options->progress(w->options->context, &w->progress);
}

static tr_status process(work *w) {
    double committed = tr_now_s();
    do {
        tr_status status = fill_batch(w);
        tr_error why;
        if (status != TR_OK) tr_error_save(&why); /* of text behind the items that are there */
        encode_batch(w);
        for (int i = 0; i < w->count; i++) TR_TRY(write_item(w, &w->items[i]));
        if (status != TR_OK) {
            tr_error_restore(&why);
            return status;
        }
        const bool stops = !show_progress(w);
        if (w->count > 0 && (stops || tr_now_s() - committed >= w->options->commit_s)) {
            tr_token_place place = place_behind(w);
            TR_TRY(tr_token_output_commit(w->output, &place));
            committed = tr_now_s();
        }
        if (stops && w->count > 0)
            return TR_FAIL(TR_ERR_STOPPED,
                           "stopped by a signal: the same command goes on from here");
    } while (w->count > 0);
    return TR_OK;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* Hashes what decides the output. Fails with TR_ERR_NOFILE when a file does not exist. */
static tr_status hash_request(work *w, uint64_t *hash) {
    const tr_tokenize_options *o = w->options;
    const uint64_t first[] = {tr_tokenizer_hash(o->tokenizer), o->no_special,
                              (uint64_t)w->document_end};
    *hash = XXH3_64bits(first, sizeof first);
    *hash = XXH3_64bits_withSeed(o->key, strlen(o->key), *hash);
    for (int i = 0; i < o->count; i++) {
        struct stat info;
        tr_textfile *input;
        TR_TRY(tr_textfile_open(o->files[i], &input)); /* says what is wrong before any work */
        w->progress.all_bytes += tr_textfile_size(input);
        tr_textfile_close(input);
        if (stat(o->files[i], &info) != 0) info = (struct stat){0};
        const int64_t facts[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
        *hash = XXH3_64bits_withSeed(facts, sizeof facts, *hash);
        *hash = XXH3_64bits_withSeed(o->files[i], strlen(o->files[i]), *hash);
    }
    return TR_OK;
}

/* Moves to where an earlier process stopped. */
static tr_status go_on(work *w, const tr_token_place *place) {
    w->progress.continued = place->file || place->offset;
    for (; w->file < place->file && w->file < w->options->count; w->file++) {
        struct stat info;
        if (stat(w->options->files[w->file], &info) == 0) w->done_bytes += info.st_size;
    }
    if (w->file == w->options->count) return TR_OK;
    TR_TRY(next_file(w));
    w->offset = place->offset;
    w->line = place->line;
    w->flags = (unsigned)place->continue_flags & (TR_ENCODE_CONTINUES | TR_ENCODE_NEXT_PIECE);
    return tr_textfile_skip(w->parts.input, place->offset);
}

static tr_status save_tokenizer(const tr_tokenize_options *o) {
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s.tokenizer.json", o->prefix);
    return tr_tokenizer_save(o->tokenizer, path);
}

/* Encodes and writes what is left of the files. Fails with TR_ERR_DATA without any text, too. */
static tr_status process_all(work *w) {
    if (w->file < w->options->count) TR_TRY(process(w));
    const tr_token_place at = tr_token_output_place(w->output);
    if (at.tokens == (w->document_end >= 0 ? at.documents : 0)) /* ends of empty documents */
        return TR_FAIL(TR_ERR_DATA, "there is no text in '%s'%s: name another file",
                       w->options->files[0],
                       w->options->count > 1 ? " and the files after it" : "");
    return TR_OK;
}

static tr_status run(work *w) {
    const tr_tokenize_options *o = w->options;
    tr_token_place place;
    uint64_t request;
    TR_TRY(hash_request(w, &request));
    TR_TRY(tr_calloc((size_t)o->threads, sizeof *w->encoder, &w->encoder));
    for (int t = 0; t < o->threads; t++) TR_TRY(tr_encoder_open(o->tokenizer, &w->encoder[t]));
    w->most = ITEMS_A_THREAD * o->threads;
    TR_TRY(tr_calloc((size_t)w->most, sizeof *w->items, &w->items));
    TR_TRY(tr_token_output_open(o->prefix, request, tr_tokenizer_size(o->tokenizer), &place,
                                &w->output));
    w->progress.unlocked = tr_token_output_unlocked(w->output);
    TR_TRY(go_on(w, &place));
    tr_status status = process_all(w);
    /* The same files fail again, and other files are another request. */
    if (status == TR_ERR_DATA) tr_token_output_discard(w->output);
    TR_TRY(status);
    if (!o->only_tokens) TR_TRY(save_tokenizer(o));
    return tr_token_output_finish(w->output, o->count);
}

tr_status tr_tokenize(const tr_tokenize_options *options, tr_tokenize_progress *done) {
    work w = {.options = options, .document_end = tr_tokenizer_document_end(options->tokenizer)};
    tr_status status = run(&w);
    if (status == TR_OK) (void)show_progress(&w);
    *done = w.progress;
    tr_token_output_close(w.output);
    tr_textparts_close(&w.parts);
    for (int i = 0; i < w.most && w.items; i++) {
        item *it = &w.items[i];
        free(it->text.byte);
        free(it->line.byte);
        free(it->tokens.id);
        free(it->end);
    }
    for (int t = 0; t < options->threads && w.encoder; t++) tr_encoder_close(w.encoder[t]);
    free(w.encoder);
    free(w.items);
    return status;
}
