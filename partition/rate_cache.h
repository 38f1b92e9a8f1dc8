/* Remembers measured rates between commands, in a small file of the user's cache. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads the rate that was stored under `key`; returns false when there is none or it has
 * expired. */
bool tr_rate_cache_read(const char *key, double *rate);
/* Stores a rate for lasts_s seconds. Does not report a failure. */
void tr_rate_cache_write(const char *key, double rate, int64_t lasts_s);
