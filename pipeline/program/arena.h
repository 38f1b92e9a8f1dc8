/* Packing of buffers with known lifetimes into one arena. */
#pragma once

#include "base/status.h"

#include <stddef.h>

/* Equal buffers with the live range from position `start` to position `end`, both included. */
typedef struct tr_arena_item {
    int start, end;
    int count;    /* buffers, > 0 */
    int first;    /* set by tr_arena_pack: of its buffers among those of all items */
    size_t bytes; /* of each buffer: a multiple of TR_ALIGN, > 0 */
} tr_arena_item;

/* Gives every buffer an offset so that buffers alive at one position never overlap; *bytes is the
 * arena's size, *live_peak the most bytes alive at one position, a lower bound of every packing.
 * Sets *offset to the offsets of the first item's buffers, of the second one's, and so on; the
 * caller frees them. offset NULL: they are not wanted. The places do not depend on how equal
 * buffers with one live range that follow each other are divided into items; fewer items take less
 * time.
 *
 * Deterministic. Sweeps through time forwards and backwards, gives each buffer the lowest offset
 * that is free during its live range, or, where that packs badly, the tightest free room, and keeps
 * the smallest arena, in nearly linear time. Where it leaves more than a thirty-second of the live
 * peak, it places the largest buffers first, and then searches, for some seconds at most
 * (arena_search.h, arena_order.h). Tests check that the arena is at most 5% over the live peak with
 * every schedule that ships and every model preset, also with recompute; with parallel.zero 3 and
 * several stages a rank this holds of nearly all plans (docs/architecture.md), and arbitrary items
 * have no such bound. `plan` prints both sizes. Fails with TR_ERR_FIT when sizes overflow. */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t **offset, size_t *bytes,
                        size_t *live_peak);
