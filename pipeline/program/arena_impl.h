/* Private to the packing of arenas: what its searches share. */
#pragma once

#include "pipeline/program/arena.h"

#include <stdbool.h>
#include <stdint.h>

/* An item with the place that is tried. */
typedef struct tr_arena_box {
    int start, end;
    size_t bytes, offset;
    int item;
    int size_class;
} tr_arena_box;

typedef struct tr_arena_ending {
    int end, box;
} tr_arena_ending;

/* Free room between boxes. */
typedef struct tr_arena_gap {
    size_t from, to;
} tr_arena_gap;

enum { TR_ARENA_ASKED = 20 /* the arena exceeds the live peak by at most 1/20 */ };
enum { TR_ARENA_CLASSES = 8 }; /* sizes that sweeps tell apart */

typedef struct tr_packer {
    tr_arena_item *items;
    size_t total, peak;  /* bytes of all items; most alive at once */
    size_t best;         /* the smallest arena so far; its offsets are in the items */
    int64_t work;        /* gaps and boxes that may still be looked at */
    tr_arena_box *boxes; /* [count], by start */
    int count, classes;
    tr_arena_ending *endings; /* [count], by end */
    tr_arena_gap *gap;        /* [gaps], by place; no two touch */
    int gaps;
} tr_packer;

/* Takes over the boxes' offsets when they need less than the best. */
void tr_packer_keep(tr_packer *packer);
/* Little is left to win. */
bool tr_packer_is_tight(const tr_packer *packer);
/* ... or no work is left. */
bool tr_packer_is_done(const tr_packer *packer);
/* Improves the best by a second search, which takes longer; nothing when there are too many boxes.
 */
tr_status tr_packer_search(tr_packer *packer);
/* Improves a best that is more over the peak than what is asked for by a third search. */
tr_status tr_packer_beam(tr_packer *packer);
