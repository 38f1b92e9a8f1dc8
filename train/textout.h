/* Generated text as it comes, for people: whole UTF-8 characters only, up to the first stop
 * string. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Receives a piece of text. */
typedef tr_status (*tr_write_text_fn)(void *context, const char *text, size_t length);

typedef struct tr_textout {
    const char *const *stop; /* [stops], none of them empty; the text ends in front of the first */
    int stops;
    tr_write_text_fn write;
    void *context;
    char *held; /* bytes that are not written yet */
    size_t length, capacity;
    bool stopped; /* a stop string has come */
} tr_textout;

/* Adds bytes, and writes all that are a whole character and cannot be the beginning of a stop
 * string. Bytes that are not UTF-8 are written as U+FFFD, one for each maximal invalid sequence.
 * Does nothing after a stop string. Fails like `write`, and with TR_ERR_FIT. */
tr_status tr_textout_add(tr_textout *out, const char *bytes, size_t count);
/* Writes the rest, when no more bytes follow. */
tr_status tr_textout_end(tr_textout *out);
/* Frees the held bytes. */
void tr_textout_release(tr_textout *out);
