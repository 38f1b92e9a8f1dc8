/* Remembers measured rates between commands, in a small file of the user's cache. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads the rate that was stored under `key` less than lasts_s seconds ago; returns false when there
 * is none. One that was stored later than now, before the clock was set back, does not count. */
bool tr_rate_cache_read(const char *key, int64_t lasts_s, double *rate);
/* Stores a rate. Does not report a failure. */
void tr_rate_cache_write(const char *key, double rate);
