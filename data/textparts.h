/* A text file in parts whose tokens are those of the whole: cut where tr_encoder_find_cut says, or
 * at ends of lines. Memory does not depend on the file's length. */
#pragma once

#include "data/textfile.h"

#include <stdbool.h>

enum { TR_TEXTPART = 1 << 20 }; /* bytes of a part, at least, except of a file's last one */

typedef struct tr_textparts {
    const char *path;
    tr_textfile *input;
    bool json;         /* lines of JSON: a part has whole lines */
    tr_byte_list rest; /* read, and not in a part yet */
    bool at_end;
    int64_t read; /* bytes of text, of all files */
} tr_textparts;

/* Opens a file; the one before it is closed. Fails like tr_textfile_open. */
tr_status tr_textparts_open(const char *path, tr_textparts *parts);
void tr_textparts_close(tr_textparts *parts);
/* Returns true when all text was taken. */
bool tr_textparts_at_end(const tr_textparts *parts);
/* Sets *bytes to those of rest.byte that are the next part; 0 is possible at the end of the file.
 * flags: of the encoder; *next: those that the part behind it needs too. Fails like
 * tr_textfile_read, and with TR_ERR_DATA when 512 MiB have no place to cut. */
tr_status tr_textparts_find(tr_textparts *parts, tr_encoder *encoder, unsigned flags, size_t *bytes,
                            unsigned *next);
/* Returns the status of an encoder's work on a text. When that is TR_ERR_DATA, puts the file and
 * the line (0: none) in front of the sentence. */
tr_status tr_textparts_failed(tr_status status, const char *path, int64_t line);
/* Removes the part that was found. */
void tr_textparts_take(tr_textparts *parts, size_t bytes);
