/* A file of text, read from its beginning: as it is, or compressed by gzip or zstd, which its first
 * bytes show. One whose name ends in .gz or .zst must be compressed. */
#pragma once

#include "text/tokenizer.h"

typedef struct tr_textfile tr_textfile;

/* Opens the file. Fails like tr_input_open, and with TR_ERR_DATA when its name promises compression
 * that its first bytes do not show. */
tr_status tr_textfile_open(const char *path, tr_textfile **out);
void tr_textfile_close(tr_textfile *input);

/* Reads up to `size` bytes of text; *got is smaller only at the end. Fails with TR_ERR_DATA, path
 * and position, when the text is not UTF-8 or compressed data are damaged or cut off, and with
 * TR_ERR_IO. */
tr_status tr_textfile_read(tr_textfile *input, char *to, size_t size, size_t *got);
/* Returns the status of work on the text that was read. When that is TR_ERR_DATA and the file is
 * compressed, decodes up to the next checksum: if the data are damaged, so may that text be, and
 * the sentence becomes that of the damage. tr_textfile_read does so for text that is not UTF-8. */
tr_status tr_textfile_judge(tr_textfile *input, tr_status status);
/* Passes over `bytes` of text, which end with a character. Fails likewise, and with TR_ERR_DATA
 * when the text is shorter. */
tr_status tr_textfile_skip(tr_textfile *input, int64_t bytes);
/* Return the bytes of the file, and how many of them were read: compressed ones. */
int64_t tr_textfile_size(const tr_textfile *input);
int64_t tr_textfile_used(const tr_textfile *input);

/* Sets *text, which is {0}, to the whole text of a file; the caller frees it, also after a failure.
 * Fails likewise, with TR_ERR_DATA when the text is larger than `mib` MiB, and with TR_ERR_FIT. */
tr_status tr_textfile_load(const char *path, int64_t mib, tr_byte_list *text);
/* Returns "gzip" or "zstd" for a file with these first bytes, and NULL for other ones; it needs at
 * most TR_TEXTFILE_MAGIC of them. */
enum { TR_TEXTFILE_MAGIC = 4 };
const char *tr_textfile_compressor(const unsigned char *first, size_t bytes);
/* Returns true for .jsonl, .ndjson and .json, also before .gz or .zst: lines of JSON. */
bool tr_textfile_is_json_lines(const char *path);
