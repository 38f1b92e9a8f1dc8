/* Packing of an arena box by box, where the sweeps of arena.c leave too much room: each box gets
 * the lowest offset that is free during its live range, so the order of the boxes decides. */
#pragma once

#include "pipeline/program/arena.h"

/* Places the largest buffers first. Sets *bytes to the size of that arena if it is smaller, and
 * offset[] to the offsets of the first item's buffers, of the second one's, and so on; else changes
 * neither. Takes quadratic time, and so does nothing for more than some thousands of buffers.
 * Deterministic. The offsets do not depend on how equal buffers with one live range that follow
 * each other are divided into items. */
tr_status tr_arena_largest_first(const tr_arena_item *items, int n, size_t *bytes, size_t *offset);
/* Does the same, but searches the order of the large buffers; the small ones follow by size. Ends
 * when the arena has at most `most` bytes, when the large buffers take no more than is alive of
 * them at one time, or after a number of steps, some 1.5 s. Does nothing for more than some
 * thousands of large buffers and groups of small ones. */
tr_status tr_arena_search_order(const tr_arena_item *items, int n, size_t most, size_t *bytes,
                                size_t *offset);
