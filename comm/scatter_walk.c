#include "comm/scatter_walk.h"

#include "base/minmax.h"

bool tr_scatter_walk_next(tr_scatter_walk *w, int most, tr_scatter_walk_piece *out) {
    for (; w->at.range < w->ranges; w->at = (tr_scatter_cursor){.range = w->at.range + 1}) {
        const tr_scatter_range *range = &w->range[w->at.range];
        if (range->rank != w->leader) continue;
        const int64_t left = range->count - w->at.element;
        const int64_t count = tr_min_i64(left, w->room - w->used);
        if (left == 0) continue;
        if (count == 0 || w->pieces == most) return false;
        *out = (tr_scatter_walk_piece){
            .range = w->at.range, .begin = w->at.element, .count = count, .place = w->used};
        w->pieces++;
        w->at.element += count;
        w->used += count;
        return true;
    }
    return false;
}

bool tr_scatter_walk_end_round(tr_scatter_walk walk, int most, tr_scatter_cursor *cursor) {
    tr_scatter_walk_piece piece;
    while (tr_scatter_walk_next(&walk, most, &piece)) continue;
    *cursor = walk.at;
    walk.used = walk.pieces = 0;
    return tr_scatter_walk_next(&walk, most, &piece);
}
