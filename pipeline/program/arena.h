/* Packing of buffers with known lifetimes into one arena. */
#pragma once

#include "base/status.h"

#include <stddef.h>

/* A buffer with the live range from position `start` to position `end`, both included. */
typedef struct tr_arena_item {
    int start, end;
    size_t bytes;  /* a multiple of TR_ALIGN, > 0 */
    size_t offset; /* set by tr_arena_pack */
} tr_arena_item;

/* Gives every item an offset so that items alive at one position never overlap; *bytes is the
 * arena's size, *live_peak the most bytes alive at one position, a lower bound of every packing.
 * Deterministic. Sweeps through time forwards and backwards, gives each item the
 * lowest offset that is free during its live range, or, where that packs badly, the tightest free
 * room, and keeps the smallest arena, in nearly linear time. Tests check that the arena is at most
 * 5% over the live peak with every schedule that ships and every model preset; arbitrary items have
 * no such bound. `plan` prints both sizes. Fails with TR_ERR_FIT when sizes overflow. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes, size_t *live_peak);
