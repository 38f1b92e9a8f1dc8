/* Added tokens: texts that become a token before anything else is done with the text. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_added_token {
    int32_t id;
    bool single_word;    /* not next to a word character */
    bool lstrip, rstrip; /* takes the white space before it or after it along */
    bool special;
} tr_added_token;

/* The tokens that are searched at the same time. */
typedef struct tr_added_set tr_added_set;

/* Makes an empty set that looks up properties in `table` (tr_cp_table), which must outlive it. */
tr_status tr_added_open(const uint8_t *table, tr_added_set **out);
void tr_added_close(tr_added_set *set);
/* Adds a token with this text; an empty text is ignored, and of equal texts the first counts. */
tr_status tr_added_add(tr_added_set *set, const char *text, size_t length,
                       const tr_added_token *token);

/* A search through a text. */
typedef struct tr_added_search {
    const tr_added_set *set;
    const uint8_t *text;
    size_t length, at, done;
    bool no_special;
} tr_added_search;

static inline tr_added_search tr_added_start(const tr_added_set *set, const uint8_t *text,
                                             size_t length, bool no_special) {
    return (tr_added_search){.set = set, .text = text, .length = length, .no_special = no_special};
}

/* Returns true when no token of the set reaches over the place between a text that ends with byte
 * `left`, of a character that is white space or not, and one that begins with byte `right`, and
 * none depends on what is on the other side. It may be false for places that no token reaches over.
 * NULL is an empty set. */
bool tr_added_keeps_apart(const tr_added_set *set, uint8_t left, bool left_is_space, uint8_t right);

/* Finds the next token, the leftmost and then the longest, as the reference does. Returns its id,
 * and sets *from and *to to the text before it that no token has. Returns -1 at the end, with the
 * rest of the text. */
int32_t tr_added_next(tr_added_search *search, size_t *from, size_t *to);

/* Returns the id of the token with exactly this text, -1 when there is none. */
int32_t tr_added_find(const tr_added_set *set, const char *text, size_t length);
