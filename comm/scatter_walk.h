/* A walk over the ranges of a reduce-scatter (tr_group_scatter_ranges), in rounds: in a round every
 * member gets up to a slot of its sums, in order. The members of a run get the same ranges in the
 * same rounds, so a round has the pieces of one member of each run, the first, which is its leader
 * here. All members find the same pieces. Private to comm/. */
#pragma once

#include "comm/comm.h"

/* A place in a list of ranges. */
typedef struct tr_scatter_cursor {
    int range;
    int64_t element;
} tr_scatter_cursor;

/* The pieces of one round that the members of one run get. */
typedef struct tr_scatter_walk {
    const tr_scatter_range *range; /* [ranges] */
    int ranges, leader;
    int64_t room; /* elements of a slot */
    tr_scatter_cursor at;
    int pieces;
    int64_t used; /* elements before the next piece */
} tr_scatter_walk;

/* A piece: elements [begin, begin + count) of range[range], from element `place` of the slot on. */
typedef struct tr_scatter_walk_piece {
    int range;
    int64_t begin, count, place;
} tr_scatter_walk_piece;

/* Returns the next piece of the round, at most `most` of them, in *out, or false after the last
 * one. */
bool tr_scatter_walk_next(tr_scatter_walk *walk, int most, tr_scatter_walk_piece *out);

/* Moves a walk, which is at the begin of a round, to the begin of the next one: sets *cursor.
 * Returns false when the round was the last one. */
bool tr_scatter_walk_end_round(tr_scatter_walk walk, int most, tr_scatter_cursor *cursor);
