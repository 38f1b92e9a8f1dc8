/* The gathers of values after an update that data ranks have divided (parallel.zero): each rank has
 * updated its portion of every parameter, and gets the other portions from the ranks that updated
 * them. */
#pragma once

#include "comm/comm.h"

typedef struct tr_store tr_store;
typedef struct tr_gathers tr_gathers;

/* Lists the portions of the store's parameters; it does not use the store's memory. */
tr_status tr_gathers_create(const tr_store *store, tr_gathers **out);
void tr_gathers_destroy(tr_gathers *gathers);
/* Makes the values of all portions those of the ranks that own them, for later work in the stream.
 * Collective over the ranks that divide updates. */
tr_status tr_gathers_run(tr_gathers *gathers, tr_stream *stream);
