/* Files of tokens, one after another, read as one sequence. */
#pragma once

#include "data/paths.h"
#include "data/source.h"

enum { TR_CORPUS_NAME = 600 };

typedef struct tr_corpus {
    char name[TR_CORPUS_NAME]; /* for messages: the path, or the first path and how many files */
    tr_source *source;
    int64_t *first; /* [count]: the first token of each file */
    int count;
    int64_t tokens;
    int width;       /* bytes of a token of its files; 1 where data.format is bytes */
    bool lists_ends; /* its files list the ends of documents */
    bool rows;       /* data.format instruct: sequences are rows of its files */
} tr_corpus;

/* Opens the files that the words name. Fails like tr_data_paths_expand and tr_source_open. */
tr_status tr_corpus_open(const char *key, const tr_data_words *words,
                         const tr_source_options *options, tr_corpus **out);
void tr_corpus_close(tr_corpus *corpus);

/* Reads tokens first..first+count-1, in rows with TR_TOKEN_GIVEN; 0 <= first, first + count <=
 * tokens, or the end of the last row. Fails like tr_source_read. Several threads may call it at a
 * time. */
tr_status tr_corpus_read(const tr_corpus *corpus, int64_t first, int64_t count, int32_t *to);
/* Returns the smallest listed end of a document above `token`; INT64_MAX when there is none. */
int64_t tr_corpus_next_end(const tr_corpus *corpus, int64_t token);
/* Hashes the first `tokens` tokens: all of them up to 4 Mi, else 64 blocks of 64 Ki spread from the
 * first to the last. Tokens of one byte are hashed as bytes, others as 32 bits, whatever the
 * format. Fails like tr_source_read. */
tr_status tr_corpus_hash(const tr_corpus *corpus, int64_t tokens, uint64_t *hash);
