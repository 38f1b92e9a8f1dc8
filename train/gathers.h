/* Gathers after work that data ranks have divided (parallel.zero): each rank has computed what
 * belongs to its portion of every parameter, and gets the rest from the ranks that computed it. */
#pragma once

#include "comm/comm.h"

typedef struct tr_store tr_store;
typedef struct tr_store_slot tr_store_slot;
typedef struct tr_gathers tr_gathers;

tr_status tr_gathers_create(tr_gathers **out);
void tr_gathers_destroy(tr_gathers *gathers);
/* Adds the portions of a slot's parameter in an array from `first` on, which has `bytes` bytes for
 * every `unit` elements; portions begin at multiples of the unit. All ranks that divide updates add
 * the same parameters in the same order. Does not use the array. */
tr_status tr_gathers_add(tr_gathers *gathers, const tr_store *store, const tr_store_slot *slot,
                         void *first, int64_t unit, size_t bytes);
/* Make all portions those of the ranks that own them, for later work in the stream: at once, or
 * after tr_gathers_wait. Until then the array must not be used. Collective over the ranks that
 * divide updates. */
tr_status tr_gathers_run(tr_gathers *gathers, tr_stream *stream);
tr_status tr_gathers_start(tr_gathers *gathers, tr_stream *stream);
tr_status tr_gathers_wait(tr_gathers *gathers, tr_stream *stream);
