/* Packing of an arena by search, where the sweeps of arena.c leave too much room. */
#pragma once

#include "pipeline/program/arena.h"

typedef enum tr_arena_effort { TR_ARENA_SHORT, TR_ARENA_LONG } tr_arena_effort;

/* Searches a packing of n items that is smaller than *bytes, until it has one of at most `enough`
 * or has taken some steps, which are counted: they take at most about a tenth of a second, or 1.6
 * s. Where it finds one, sets *bytes to its size and offset[] to the offsets of the first item's
 * buffers, of the second one's, and so on; the buffers of an item follow each other. Else it
 * changes neither.
 *
 * Deterministic. The offsets do not depend on how equal buffers with one live range that follow
 * each other are divided into items. */
tr_status tr_arena_search(const tr_arena_item *items, int n, tr_arena_effort effort, size_t enough,
                          size_t *bytes, size_t *offset);
