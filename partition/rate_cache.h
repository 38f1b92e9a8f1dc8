/* Measured rates that are remembered between commands: one small file of the user's cache. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads the rate that was stored under `key`; false where there is none or it has expired. */
bool tr_rate_cache_read(const char *key, double *rate);
/* Stores a rate for so many seconds. What cannot be written is not stored. */
void tr_rate_cache_write(const char *key, double rate, int64_t lasts_s);
