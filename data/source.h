/* One file of tokens: how many it has, its tokens by position, and where documents end when the
 * file says so. A format is one line of the table in source.c, and its file data/format_*.c. */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

/* What the formats need to know in addition to the path. */
typedef struct tr_source_options {
    const char *format;            /* data.format */
    const char *key;               /* that named the file, for messages; NULL: data.path */
    int64_t vocab;                 /* of the model: a token is one of 0..vocab-1 */
    const tr_tokenizer *tokenizer; /* of text and instruct; otherwise it may be NULL */
    const char *tokens;            /* a folder with kept tokens (kept_tokens.h); NULL: none */
    bool documents;                /* keep the ends of documents that the file lists */
    int64_t context;               /* tokens of a row of data.format instruct */
    int32_t document_end;          /* ends an answer where there is no chat template; -1: none */
    /* Called after parts of a file of data.format instruct with the bytes read of all; NULL: not.
     * Returns false to stop: opening then fails with TR_ERR_STOPPED. */
    bool (*progress)(void *context, int64_t bytes, int64_t all_bytes);
    void *progress_context;
} tr_source_options;

typedef struct tr_data_file {
    char *path; /* for messages */
    int fd;
    int64_t bytes;
} tr_data_file;

/* In tokens of data.format instruct: this token is part of a prompt, so no label counts it. */
enum { TR_TOKEN_GIVEN = 1 << 30 };

/* An open file of tokens. Tokens are little-endian numbers of `width` bytes, back to back from byte
 * `first`. */
typedef struct tr_source {
    tr_data_file file;
    const char *key; /* that named it */
    int64_t first;
    int32_t *memory; /* all tokens; NULL: they are read from the file */
    int width;       /* 1, 2, 4 or 8 bytes */
    bool is_signed;  /* a token below 0 is refused */
    int64_t tokens, vocab;
    int64_t *end;      /* [ends] ascending: the token behind each document; NULL: not listed */
    int64_t ends;      /* 0 where `end` is NULL */
    bool lists_ends;   /* the format has a list of documents, also where it is not kept */
    int64_t documents; /* in the list */
    /* The token between documents where the header says whose tokens they are (llmc); 0: unknown.
     * tokenizer_ends: a tokenizer's document end goes before it. */
    int32_t separator;
    bool tokenizer_ends;
    /* Of data.format instruct: rows of options.context tokens, in which conversations are whole;
     * the tokens without the padding at the end of the last row (other formats: all tokens); the
     * tokens that count as labels; the conversations that were cut at the end of a row, and those
     * without an answer in it, which are left out. */
    bool rows;
    int64_t filled, answers, cut, skipped;
} tr_source;

/* Opens a file of that format. Fails with TR_ERR_NOFILE when the file does not exist, with
 * TR_ERR_DATA, file and position when it is not a file, is empty or damaged, or only one of a pair
 * is there, and with TR_ERR_CONFIG on an unknown format. The caller releases *out with
 * tr_source_close, also after a failure. */
tr_status tr_source_open(const char *path, const tr_source_options *options, tr_source *out);
void tr_source_close(tr_source *source);

/* Returns the data.format that a file shows: megatron where its index is, llmc by its header, or
 * NULL. */
const char *tr_source_shows(const char *path);
/* Returns the length of a path without the ending of a pair of data.format megatron, .bin or
 * .idx. */
size_t tr_source_stem(const char *path);

/* Reads tokens first..first+count-1. Fails with TR_ERR_CONFIG and the position when a token is
 * vocab or above, with TR_ERR_DATA when one is below 0 or the file has been shortened, and with
 * TR_ERR_IO when it cannot be read. Several threads may call it at a time. */
tr_status tr_source_read(const tr_source *source, int64_t first, int64_t count, int32_t *to);
/* Returns the smallest listed end of a document above `token`; INT64_MAX when there is none. */
int64_t tr_source_next_end(const tr_source *source, int64_t token);
