/* Finds the name that a user probably meant. */
#pragma once

#include <stddef.h>

/* The end of a message about an unknown word: "; did you mean 'selective'?", or nothing. */
typedef struct tr_hint {
    char text[96];
} tr_hint;

/* Returns the edit distance of two words: insertions, deletions, substitutions and swaps of
 * neighbours (optimal string alignment). Compares at most the first 63 characters. */
int tr_edit_distance(const char *a, const char *b);

/* Returns the index of the name nearest to `word` among `count` names; among equals the first of
 * those that share the longest beginning with it. Returns -1 when none is near: more than a third
 * of the word would have to change. */
int tr_nearest(const char *word, const char *(*name)(const void *names, int index),
               const void *names, int count);

/* Returns words[index] of an array of strings; tr_nearest takes it as `name`. */
const char *tr_word_at(const void *words, int index);

/* Returns the hint at the word that `value[length]` probably means: the nearest one, and otherwise
 * the first that begins with it. It is empty when there is none, and when `value` is one of the
 * words. */
tr_hint tr_nearest_hint(const char *value, size_t length, const char *const *words, int count);

/* Returns the hint at this word. */
tr_hint tr_hint_at(const char *word);
