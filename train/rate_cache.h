/* Measured rates that are remembered between commands: one small file of the user's cache. */
#pragma once

#include <stdbool.h>

/* The rate that was stored under `key` in the last day; false where there is none. */
bool tr_rate_cache_read(const char *key, double *rate);
/* Stores a rate. What cannot be written is not stored. */
void tr_rate_cache_write(const char *key, double rate);
