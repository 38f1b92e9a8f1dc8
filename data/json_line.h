/* One line of JSON: a strict scanner (RFC 8259), for text of any length with any characters. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* What a line holds. */
typedef struct tr_jsonl {
    char *text; /* the value in UTF-8, which may contain NUL; in the caller's buffer */
    size_t length;
    const char *fault; /* NULL, or what is wrong, for a sentence */
    size_t at;         /* the byte of the line that is wrong */
} tr_jsonl;

/* Returns true when the line has only white space. */
bool tr_jsonl_is_empty(const char *line, size_t length);
/* Finds the string that is the object's member `key` (the last one of that name) and writes it to
 * buffer[length], which must have as many bytes as the line. A lone surrogate becomes U+FFFD.
 * Returns false, with fault and at, when the line is not one JSON object, or the member is missing
 * or not a string. */
bool tr_jsonl_read(const char *line, size_t length, const char *key, char *buffer, tr_jsonl *out);
