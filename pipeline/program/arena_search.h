/* Packing of an arena by search, where the sweeps of arena.c leave too much room. */
#pragma once

#include "pipeline/program/arena.h"

/* Searches a packing of n items that is smaller than *bytes, until it has one of at most `enough`
 * or has taken its steps, which are counted: at most about a tenth of a second. Sets *found when it
 * has one: sets *bytes to its size, and place[k] to the offset of the first buffer of item k, which
 * the others follow. Else it changes neither.
 *
 * Deterministic. The places do not depend on how equal buffers with one live range that follow each
 * other are divided into items. */
tr_status tr_arena_search(const tr_arena_item *items, int n, size_t enough, size_t *bytes,
                          size_t *place, bool *found);
