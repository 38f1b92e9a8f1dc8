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
 * arena's size. Deterministic. Goes through time twice, forwards and backwards, gives each item the
 * lowest room that is free while it lives, and keeps the smaller arena: near linear in n. Promise,
 * tested: at most 5% over the live peak with every schedule that ships and every model preset; not
 * with items of any sizes and lifetimes. `plan` prints both sizes. TR_ERR_FIT when sizes overflow.
 */
tr_status tr_arena_pack(tr_arena_item *items, int n, size_t *bytes);
