/* What a tokenizer consists of; private to text/. */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/added.h"
#include "text/bpe.h"
#include "text/split_known.h"
#include "text/tokenizer.h"

#include <pcre2.h>

/* What is searched in a text: an expression, or a literal text when `regex` is NULL. */
typedef struct tr_matcher {
    pcre2_code *regex;
    char *literal;
    size_t length;
} tr_matcher;

/* One step of the normalizer. */
typedef struct tr_normalize_step {
    enum { TR_NORMALIZE_UNICODE, TR_NORMALIZE_PREPEND, TR_NORMALIZE_REPLACE } kind;
    int options;        /* UNICODE: utf8proc's */
    bool is_nfc;        /* UNICODE: most characters are stable (TR_CP_UNSTABLE) */
    tr_matcher matcher; /* REPLACE */
    char *text;         /* PREPEND, REPLACE: what is put there */
    size_t length;
} tr_normalize_step;

/* What becomes of the matches of a Split. */
typedef enum tr_behavior {
    TR_DELIMITER_ISOLATED,
    TR_DELIMITER_REMOVED,
    TR_DELIMITER_WITH_PREVIOUS,
    TR_DELIMITER_WITH_NEXT,
    TR_DELIMITER_CONTIGUOUS,
} tr_behavior;

/* When a Metaspace puts its character in front of a text. */
typedef enum tr_prepend { TR_PREPEND_NEVER, TR_PREPEND_FIRST, TR_PREPEND_ALWAYS } tr_prepend;

/* One step of the pre-tokenizer. */
typedef struct tr_pretokenize_step {
    enum { TR_PRETOKENIZE_SPLIT, TR_PRETOKENIZE_PREFIX_SPACE, TR_PRETOKENIZE_METASPACE } kind;
    tr_behavior behavior; /* SPLIT */
    bool invert;          /* SPLIT: what does not match counts as the match */
    tr_matcher matcher;   /* SPLIT; METASPACE: its character */
    tr_prepend prepend;   /* METASPACE */
    bool splits;          /* METASPACE: each of its characters begins a piece */
} tr_pretokenize_step;

enum { TR_STEPS_MAX = 32 };

struct tr_tokenizer {
    char *path;
    char *file; /* what tr_tokenizer_save writes */
    size_t file_length;
    uint64_t hash;
    int32_t size;
    uint8_t *cp_table;
    tr_bpe *bpe;
    tr_added_set *named;            /* all added tokens, by their texts */
    tr_added_set *added;            /* searched in the text as it is */
    tr_added_set *added_normalized; /* searched in the normalized text; NULL: none */
    bool *is_special;               /* by id */
    tr_normalize_step normal[TR_STEPS_MAX];
    int normal_count;
    /* The pre-tokenizer is this pattern, or else these steps. */
    tr_pattern pattern;
    tr_pretokenize_step step[TR_STEPS_MAX];
    int step_count;
    tr_token_list prefix, suffix, ends;
    int32_t document_end;
    /* What token id decodes to is text[text_start[id]] to text_start[id + 1]. */
    tr_byte_list text;
    size_t *text_start;
    size_t strip; /* spaces that the decoder removes at the start of a text */
};

/* --- reading (each fills parts of *t; the caller closes it also on failure) --- */

/* Reads a tokenizer.json from t->file; its model only when t->bpe is NULL. */
tr_status tr_tokenizer_read_json(tr_tokenizer *t);
/* Reads a tiktoken rank file `file`, and makes t->file from it. */
tr_status tr_tokenizer_read_ranks(tr_tokenizer *t, const char *file, size_t length);
/* Makes t->file of a vocab.json and a merges.txt. */
tr_status tr_tokenizer_join_files(tr_tokenizer *t, const char *vocab_path, const char *merges_path);
/* Sets document_end and ends, from the added tokens and the files in t's folder. */
tr_status tr_tokenizer_find_ends(tr_tokenizer *t);

/* The parts of tokenizer.json that say how a text is cut and put together. */
struct cJSON;
tr_status tr_read_normalizer(tr_tokenizer *t, const struct cJSON *json);
/* Sets *byte_level when a ByteLevel step is there. */
tr_status tr_read_pre_tokenizer(tr_tokenizer *t, const struct cJSON *json, bool *byte_level);
tr_status tr_read_post_processor(tr_tokenizer *t, const struct cJSON *json);
tr_status tr_read_decoder(tr_tokenizer *t, const struct cJSON *json, const struct cJSON *added,
                          bool byte_level);

/* --- names of bytes in byte-level vocabularies --- */

/* Writes the character that stands for a byte (GPT-2's table) as UTF-8; returns its bytes. */
size_t tr_byte_char(uint8_t byte, uint8_t out[4]);
/* Turns such characters back into bytes, in place; returns the length, SIZE_MAX when there are
 * others (the text is then unchanged). */
size_t tr_byte_chars_decode(char *text, size_t length);

/* --- working on a text --- */

/* Parts of a text buffer. */
typedef struct tr_fragment {
    size_t at, length;
} tr_fragment;

typedef struct tr_fragment_list {
    tr_fragment *piece;
    size_t count, capacity;
} tr_fragment_list;

/* Memory of a thread for matching. */
typedef struct tr_match_work {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} tr_match_work;

struct tr_encoder {
    const tr_tokenizer *t;
    tr_bpe_work *bpe;
    tr_match_work match;
    tr_byte_list escaped, normal, spare;
    tr_fragment_list pieces, spare_pieces;
};

tr_status tr_match_work_open(tr_match_work *work);
void tr_match_work_close(tr_match_work *work);

/* Compiles an expression of a tokenizer.json. Fails with TR_ERR_DATA. */
tr_status tr_matcher_compile(const char *path, const char *expression, tr_matcher *out);
void tr_matcher_close(tr_matcher *matcher);
/* Finds the first match at or after `from`; *found: there is one, [*begin, *end). */
tr_status tr_matcher_find(const tr_matcher *matcher, tr_match_work *work, const char *path,
                          const char *text, size_t length, size_t from, bool *found, size_t *begin,
                          size_t *end);

/* What is before a part of a text. */
typedef enum tr_fragment_begin {
    TR_BEGINS_TEXT, /* nothing */
    TR_AFTER_TOKEN, /* an added token */
    TR_GOES_ON,     /* more of the same part, which was encoded before: nothing is put in front */
    TR_NEXT_PIECE,  /* the same, and a piece of the pre-tokenizer's first split begins here */
} tr_fragment_begin;

/* Normalizes text; the result is in *out, which is cleared first. `spare` is scratch. */
tr_status tr_normalize(const tr_tokenizer *t, tr_match_work *work, tr_fragment_begin begin,
                       const char *text, size_t length, tr_byte_list *spare, tr_byte_list *out);

/* Cuts the text in `*text` by the steps of the pre-tokenizer into `*pieces`. The lists are swapped
 * with the spare ones as needed. */
tr_status tr_pretokenize(const tr_tokenizer *t, tr_match_work *work, tr_fragment_begin begin,
                         tr_byte_list *text, tr_byte_list *spare_text, tr_fragment_list *pieces,
                         tr_fragment_list *spare_pieces);
