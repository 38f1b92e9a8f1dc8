/* The progress of long file work on rank 0: bytes, rate and time left. */
#pragma once

#include "comm/comm.h"

#include <stdio.h>

typedef struct tr_meter {
    FILE *file;
    const char *verb; /* "imported" */
    bool terminal;
    tr_world *world;
    tr_world_hook before; /* called, too */
    double begin_s, shown_s;
    int64_t total; /* bytes of all ranks; work is in bytes of this rank's share */
} tr_meter;

/* Shows what this rank tells the world (tr_world_tell_work) until tr_meter_close: one refreshed
 * line on a terminal, otherwise a line every 10 s. Only rank 0 shows it. The meter must not
 * move. */
void tr_meter_open(tr_world *world, FILE *file, const char *verb, int64_t total, tr_meter *out);
/* Ends the refreshed line, and with `done` prints the whole work's bytes and rate. */
void tr_meter_close(tr_meter *meter, bool done);
