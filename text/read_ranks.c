/* tiktoken's rank files: on each line the base64 of a token's bytes, a space, and its rank, which
 * is its id. The pattern and the special tokens are not in the file. They follow from the number of
 * ranks and the largest rank, which differ in all files that are in use. */
#include "base/memory.h"
#include "text/tokenizer_impl.h"
#include "text/write_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_SIZE = 48,
    MOST_SPECIAL = 256,
    /* Bytes of a token, more than the known files have: finding the merges of a token takes time
     * quadratic in its length. */
    LONGEST = 4096,
};

typedef struct rank_kind {
    const char *name;
    int32_t ranks, largest; /* how many, and the largest */
    tr_pattern pattern;
    bool nfc;
    tr_special_text special[8]; /* ends with a NULL */
    const char *begin;          /* put before each text; NULL: nothing */
    /* More special tokens: `more_format` with numbers from more_number, ids from more_id to
     * more_last. */
    const char *more_format;
    int32_t more_number, more_id, more_last;
} rank_kind;

static const rank_kind kinds[] = {
    {.name = "gpt2 (r50k)",
     .ranks = 50256,
     .largest = 50255,
     .pattern = TR_PATTERN_GPT2,
     .special = {{"<|endoftext|>", 50256}}},
    {.name = "p50k",
     .ranks = 50280,
     .largest = 50280,
     .pattern = TR_PATTERN_GPT2,
     .special = {{"<|endoftext|>", 50256}}},
    {.name = "cl100k",
     .ranks = 100256,
     .largest = 100255,
     .pattern = TR_PATTERN_CL100K,
     .special = {{"<|endoftext|>", 100257},
                 {"<|fim_prefix|>", 100258},
                 {"<|fim_middle|>", 100259},
                 {"<|fim_suffix|>", 100260},
                 {"<|endofprompt|>", 100276}}},
    {.name = "o200k",
     .ranks = 199998,
     .largest = 199997,
     .pattern = TR_PATTERN_O200K,
     .special = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
    {.name = "Llama 3",
     .ranks = 128000,
     .largest = 127999,
     .pattern = TR_PATTERN_LLAMA3,
     .special = {{"<|finetune_right_pad_id|>", 128004},
                 {"<|start_header_id|>", 128006},
                 {"<|end_header_id|>", 128007},
                 {"<|eom_id|>", 128008},
                 {"<|eot_id|>", 128009},
                 {"<|python_tag|>", 128010},
                 {"<|end_of_text|>", 128001}},
     .begin = "<|begin_of_text|>",
     .more_format = "<|reserved_special_token_%d|>",
     .more_number = 3,
     .more_id = 128011,
     .more_last = 128255},
    {.name = "Qwen",
     .ranks = 151643,
     .largest = 151642,
     .pattern = TR_PATTERN_QWEN,
     .nfc = true,
     .special = {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
     .more_format = "<|extra_%d|>",
     .more_number = 0,
     .more_id = 151646,
     .more_last = 151850},
};

/* The special tokens of a kind by id, with their names. */
typedef struct special_list {
    tr_special_text token[MOST_SPECIAL];
    char name[MOST_SPECIAL][NAME_SIZE];
    size_t count;
} special_list;

static void add_special(special_list *list, int32_t id, const char *format, int number) {
    char *name = list->name[list->count];
    (void)snprintf(name, NAME_SIZE, "%s", format);
    const char *at = strstr(format, "%d");
    if (at) (void)snprintf(name, NAME_SIZE, "%.*s%d%s", (int)(at - format), format, number, at + 2);
    list->token[list->count++] = (tr_special_text){name, id};
}

static void list_specials(const rank_kind *kind, special_list *list) {
    list->count = 0;
    if (kind->begin) { /* Llama 3.1: the first ids, with three reserved ones between others */
        add_special(list, kind->ranks, kind->begin, 0);
        add_special(list, kind->ranks + 2, kind->more_format, 0);
        add_special(list, kind->ranks + 3, kind->more_format, 1);
        add_special(list, kind->ranks + 5, kind->more_format, 2);
    }
    for (size_t i = 0; i < 8 && kind->special[i].text; i++)
        add_special(list, kind->special[i].id, kind->special[i].text, 0);
    for (int32_t id = kind->more_id; kind->more_format && id <= kind->more_last; id++)
        add_special(list, id, kind->more_format, id - kind->more_id + kind->more_number);
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Decodes base64 into `out`, which is as large as the text; returns the bytes, SIZE_MAX for other
 * text. */
static size_t decode_base64(const char *text, size_t length, char *out) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t count = 0;
    uint32_t bits = 0;
    int have = 0;
    if (!length || length % 4) return SIZE_MAX;
    while (length && text[length - 1] == '=' && have++ < 2) length--;
    have = 0;
    for (size_t i = 0; i < length; i++) {
        const char *letter = text[i] ? strchr(letters, text[i]) : NULL;
        if (!letter) return SIZE_MAX;
        bits = bits << 6 | (uint32_t)(letter - letters);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        out[count++] = (char)(bits >> have & 0xFF);
    }
    return count;
}

typedef struct rank_line {
    size_t at, length; /* of the bytes in the text of all tokens */
    int32_t rank;
} rank_line;

typedef struct rank_list {
    rank_line *line;
    size_t count, capacity;
    tr_byte_list bytes;
    int32_t largest;
} rank_list;

/* `read`: lines that were good before this one. */
static tr_status bad_line(const tr_tokenizer *t, size_t number, size_t read) {
    if (!read)
        return TR_FAIL(TR_ERR_DATA,
                       "'%s' is neither a tokenizer.json nor a tiktoken rank file; a SentencePiece "
                       "model works after transformers has saved it as tokenizer.json",
                       t->path);
    return TR_FAIL(TR_ERR_DATA,
                   "the rank file '%s', line %zu: a line is base64, a space and a rank", t->path,
                   number);
}

static tr_status read_line(const tr_tokenizer *t, const char *line, size_t length, size_t number,
                           rank_list *list) {
    const char *space = memchr(line, ' ', length);
    if (!space) return bad_line(t, number, list->count);
    size_t coded = (size_t)(space - line), digits = length - coded - 1;
    if (!digits || digits > 9 || strspn(space + 1, "0123456789") < digits)
        return bad_line(t, number, list->count);
    int32_t rank = (int32_t)strtol(space + 1, NULL, 10);
    if (rank >= TR_BPE_MAX_SIZE - MOST_SPECIAL) return bad_line(t, number, list->count);
    TR_TRY(tr_grow(&list->bytes.byte, &list->bytes.capacity, list->bytes.count + coded + 1, 1));
    size_t bytes = decode_base64(line, coded, list->bytes.byte + list->bytes.count);
    if (bytes == SIZE_MAX || !bytes) return bad_line(t, number, list->count);
    if (bytes > LONGEST)
        return TR_FAIL(
            TR_ERR_DATA,
            "the rank file '%s', line %zu: a token of %zu bytes; Trireme reads tokens of "
            "up to %d bytes",
            t->path, number, bytes, LONGEST);
    TR_TRY(tr_grow(&list->line, &list->capacity, list->count + 1, sizeof *list->line));
    list->line[list->count++] = (rank_line){list->bytes.count, bytes, rank};
    list->bytes.count += bytes;
    if (rank > list->largest) list->largest = rank;
    return TR_OK;
}

static tr_status read_lines(const tr_tokenizer *t, const char *file, size_t length,
                            rank_list *list) {
    const char *end = file + length, *line = file;
    for (size_t number = 1; line < end; number++) {
        const char *next = memchr(line, '\n', (size_t)(end - line)), *stop = next ? next : end;
        size_t bytes = (size_t)(stop - line);
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (bytes) TR_TRY(read_line(t, line, bytes, number, list));
        line = stop + 1;
    }
    return list->count ? TR_OK : bad_line(t, 1, 0);
}

static tr_status find_kind(const tr_tokenizer *t, const rank_list *list, const rank_kind **out) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        *out = &kinds[i];
        if ((size_t)kinds[i].ranks == list->count && kinds[i].largest == list->largest)
            return TR_OK;
    }
    return TR_FAIL(
        TR_ERR_DATA,
        "the rank file '%s' has %zu ranks up to %" PRId32
        "; its pattern and special tokens are not in the file, and Trireme knows those of "
        "gpt2, p50k, cl100k, o200k, Llama 3 and Qwen only: name a tokenizer.json",
        t->path, list->count, list->largest);
}

/* --- the model -------------------------------------------------------------------------------- */

static tr_status make_bpe(tr_tokenizer *t, const rank_list *list, const special_list *special) {
    int32_t size = list->largest + 1;
    for (size_t i = 0; i < special->count; i++)
        if (special->token[i].id >= size) size = special->token[i].id + 1;
    TR_TRY(tr_bpe_open(size, &t->bpe));
    for (size_t i = 0; i < list->count; i++) {
        const rank_line *line = &list->line[i];
        tr_status status =
            tr_bpe_add_token(t->bpe, line->rank, list->bytes.byte + line->at, line->length, true);
        if (status == TR_ERR_DATA)
            return TR_FAIL(TR_ERR_DATA,
                           "the rank file '%s': rank %" PRId32 " or its token occurs twice",
                           t->path, line->rank);
        TR_TRY(status);
    }
    for (int b = 0; b < 256; b++)
        if (tr_bpe_find(t->bpe, &(char){(char)b}, 1) < 0)
            return TR_FAIL(TR_ERR_DATA, "the rank file '%s' has no token for the byte 0x%02X",
                           t->path, (unsigned)b);
    TR_TRY(tr_bpe_add_all_merges(t->bpe));
    const tr_bpe_rules rules = {.byte_level = true, .ignore_merges = true, .unk = -1};
    tr_bpe_set_rules(t->bpe, &rules);
    return TR_OK;
}

/* Puts a tokenizer.json of the model into t->file. */
static tr_status write_file(tr_tokenizer *t, const tr_tokenizer_form *form) {
    tr_byte_list json = {0};
    tr_status status = tr_write_tokenizer(&json, t->bpe, form);
    free(t->file);
    t->file = json.byte;
    t->file_length = json.count;
    return status;
}

static tr_status read_ranks(tr_tokenizer *t, const char *file, size_t length, rank_list *list,
                            special_list *special) {
    const rank_kind *kind;
    TR_TRY(read_lines(t, file, length, list));
    TR_TRY(find_kind(t, list, &kind));
    list_specials(kind, special);
    TR_TRY(make_bpe(t, list, special));
    tr_tokenizer_form form = {.pattern = kind->pattern,
                              .nfc = kind->nfc,
                              .special = special->token,
                              .special_count = special->count,
                              .begin = kind->begin ? &special->token[0] : NULL,
                              .no_model = true};
    TR_TRY(write_file(t, &form));
    /* Reads everything except the model, which keeps its ranks: in a tokenizer.json no two merges
     * have one rank. */
    TR_TRY(tr_tokenizer_read_json(t));
    form.no_model = false;
    return write_file(t, &form);
}

tr_status tr_tokenizer_read_ranks(tr_tokenizer *t, const char *file, size_t length) {
    rank_list list = {.largest = -1};
    special_list *special;
    TR_TRY(tr_calloc(1, sizeof *special, &special));
    tr_status status = read_ranks(t, file, length, &list, special);
    free(special);
    free(list.line);
    free(list.bytes.byte);
    return status;
}
