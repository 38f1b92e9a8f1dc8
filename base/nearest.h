/* Finds the name that a user probably meant. */
#pragma once

#include <stddef.h>

/* Returns the edit distance of two words: insertions, deletions, substitutions and swaps of
 * neighbours (optimal string alignment). Compares at most the first 63 characters. */
int tr_edit_distance(const char *a, const char *b);

/* Returns the index of the name nearest to `word` among `count` names; among equals the first of
 * those that share the longest beginning with it. Returns -1 when none is near: half of the word
 * would have to change, or more than two characters and more than a third of it. */
int tr_nearest(const char *word, const char *(*name)(const void *names, int index),
               const void *names, int count);
