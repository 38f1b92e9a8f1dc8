/* Packing of buffers with known lifetimes into one arena. */
#pragma once

#include "base/status.h"

#include <stddef.h>

/* A buffer that lives from position `start` to position `end`, both included. */
typedef struct tr_arena_item {
    int start, end;
    size_t bytes;  /* a multiple of TR_ALIGN, > 0 */
    size_t offset; /* set by tr_arena_pack */
} tr_arena_item;

/* Most bytes alive at one position: no packing needs less. */
tr_status tr_arena_live_peak(const tr_arena_item *items, int n, size_t *bytes);

/* Gives every item an offset so that items alive at one position never overlap; *bytes is the
 * arena's size. Deterministic. Items are placed as they begin to live, into the room that others
 * left: near linear in n. Where that is 1% over the live peak or more a search of bounded work
 * follows (a fraction of a second; where the arena is 5% over up to a second more), as long as few
 * enough items live together. Items of stages alike come within 5% of the live peak, and so do
 * those of models that are cut into tensors none of which is large against all that lives; of items
 * of any sizes and lives there are sets that no packing brings so near. TR_ERR_FIT when sizes
 * overflow. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes);
