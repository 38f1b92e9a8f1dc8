#include "data/corpus.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <xxhash.h>

enum { PIECE = 1 << 16, HASHED_PIECES = 64, SPARE_FILES = 128 };

/* Raises the limit on open files, which is 1024 on most systems, for corpora of more shards. */
static void allow_files(int count) {
    struct rlimit limit;
    if (count < SPARE_FILES || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    const rlim_t need = (rlim_t)count + limit.rlim_cur;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* otherwise opening a file reports it */
}

static tr_status open_sources(char *const *files, int count, const tr_source_options *options,
                              tr_corpus *corpus) {
    TR_TRY(tr_calloc((size_t)count, sizeof *corpus->source, &corpus->source));
    TR_TRY(tr_calloc((size_t)count, sizeof *corpus->first, &corpus->first));
    allow_files(count);
    corpus->lists_ends = count > 0;
    for (int i = 0; i < count; i++) {
        tr_source *source = &corpus->source[corpus->count++];
        TR_TRY(tr_source_open(files[i], options, source));
        if (i > 0) corpus->first[i] = corpus->first[i - 1] + source[-1].tokens;
        if (__builtin_add_overflow(corpus->first[i], source->filled, &corpus->tokens) ||
            corpus->first[i] > INT64_MAX - source->tokens)
            return TR_FAIL(TR_ERR_DATA, "the files of data.path have too many tokens");
        corpus->width = source->width;
        corpus->lists_ends &= source->lists_ends;
        corpus->rows = source->rows;
    }
    if (count == 1) (void)snprintf(corpus->name, sizeof corpus->name, "%s", files[0]);
    else
        (void)snprintf(corpus->name, sizeof corpus->name, "%.512s and %d more files", files[0],
                       count - 1);
    return TR_OK;
}

tr_status tr_corpus_open(const char *key, const tr_data_words *words,
                         const tr_source_options *options, tr_corpus **out) {
    char **files = NULL;
    int count = 0;
    tr_corpus *corpus;
    tr_source_options named = *options;
    named.key = key;
    TR_TRY(tr_calloc(1, sizeof *corpus, &corpus));
    tr_status status = tr_data_paths_expand(key, words, &files, &count);
    if (status == TR_OK) status = open_sources(files, count, &named, corpus);
    tr_data_paths_free_files(files, count);
    if (status != TR_OK) {
        tr_corpus_close(corpus);
        return status;
    }
    *out = corpus;
    return TR_OK;
}

void tr_corpus_close(tr_corpus *corpus) {
    if (!corpus) return;
    for (int i = 0; i < corpus->count; i++) tr_source_close(&corpus->source[i]);
    free(corpus->source);
    free(corpus->first);
    free(corpus);
}

/* Returns the file that holds the token. */
static int find(const tr_corpus *c, int64_t token) {
    int low = 0, high = c->count - 1; /* it is one of low..high */
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (c->first[middle] <= token) low = middle;
        else high = middle - 1;
    }
    return low;
}

tr_status tr_corpus_read(const tr_corpus *c, int64_t first, int64_t count, int32_t *to) {
    for (int i = find(c, first); count > 0; i++) {
        const int64_t from = first - c->first[i], rest = c->source[i].tokens - from;
        const int64_t n = count < rest ? count : rest;
        TR_TRY(tr_source_read(&c->source[i], from, n, to));
        first += n;
        count -= n;
        to += n;
    }
    return TR_OK;
}

int64_t tr_corpus_next_end(const tr_corpus *c, int64_t token) {
    for (int i = find(c, token); i < c->count; i++) {
        const int64_t from = token > c->first[i] ? token - c->first[i] : 0;
        const int64_t end = tr_source_next_end(&c->source[i], from);
        if (end != INT64_MAX) return c->first[i] + end;
    }
    return INT64_MAX;
}

tr_status tr_corpus_hash(const tr_corpus *c, int64_t tokens, uint64_t *hash) {
    int32_t *piece;
    TR_TRY(tr_calloc(PIECE, sizeof *piece, &piece));
    unsigned char *narrow = (unsigned char *)piece;
    const int64_t last = HASHED_PIECES - 1, rest = tokens - PIECE;
    tr_status status = TR_OK;
    *hash = (uint64_t)tokens;
    for (int64_t i = 0; i <= last && status == TR_OK; i++) {
        /* rest * i / last, without the product, which overflows. */
        int64_t at = rest > last * PIECE ? rest / last * i + rest % last * i / last : i * PIECE;
        int64_t n = tokens - at < PIECE ? tokens - at : PIECE;
        if (n <= 0) break;
        status = tr_corpus_read(c, at, n, piece);
        for (int64_t t = 0; c->width == 1 && t < n; t++) narrow[t] = (unsigned char)piece[t];
        size_t size = c->width == 1 ? 1 : sizeof *piece;
        *hash = XXH3_64bits_withSeed(piece, (size_t)n * size, *hash);
    }
    free(piece);
    return status;
}
