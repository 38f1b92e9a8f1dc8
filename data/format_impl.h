/* The formats of token files, for source.c, and what they share. */
#pragma once

#include "data/source.h"

/* Each opens a file of one format. path: what the user named; source->vocab is set. */
tr_status tr_format_open_raw(const char *path, const tr_source_options *options, tr_source *source);
tr_status tr_format_open_llmc(const char *path, const tr_source_options *options,
                              tr_source *source);
tr_status tr_format_open_megatron(const char *path, const tr_source_options *options,
                                  tr_source *source);

tr_status tr_format_open_text(const char *path, const tr_source_options *options,
                              tr_source *source);
tr_status tr_format_open_instruct(const char *path, const tr_source_options *options,
                                  tr_source *source);

/* Returns true when the index of a pair is there: the path without .bin or .idx, and .idx. */
bool tr_format_is_megatron(const char *path);
/* Returns true when the file begins like llm.c's shards. */
bool tr_format_is_llmc(const char *path);

/* Opens the file that holds the tokens as source->file. Fails like tr_input_open, and with
 * TR_ERR_DATA when it is empty. */
tr_status tr_format_open_file(const char *path, tr_source *source);
/* Reads `count` bytes from byte `at`. Fails with TR_ERR_DATA when the file is shorter, and with
 * TR_ERR_IO. */
tr_status tr_format_read(const tr_data_file *file, int64_t at, int64_t count, void *to);

/* Return the little-endian number at `from`. */
static inline uint32_t tr_format_u32(const unsigned char *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}
static inline uint64_t tr_format_u64(const unsigned char *from) {
    return (uint64_t)tr_format_u32(from) | (uint64_t)tr_format_u32(from + 4) << 32;
}
