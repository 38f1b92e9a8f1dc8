/* The name a user probably meant. */
#pragma once

#include <stddef.h>

/* Edit distance of two words: insertions, deletions, substitutions and swaps of neighbours (optimal
 * string alignment). Words longer than 63 characters are compared by their first 63. */
int tr_edit_distance(const char *a, const char *b);

/* Index of the nearest of `count` names to `word`, the first among equals; -1 when none is near
 * (more than a third of the word, and more than two, would have to change). */
int tr_nearest(const char *word, const char *(*name)(const void *names, int index),
               const void *names, int count);
