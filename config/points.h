/* Keys that list ascending whole numbers, with spaces between them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TR_CONFIG_POINTS = 64 };

/* Parses whole numbers with spaces between them, each above 0 and above the one before it, to
 * point[TR_CONFIG_POINTS]. Returns how many there are, or -1 when the text is not such a list. */
int tr_config_points(const char *text, int64_t *point);

/* Reads a whole number, after spaces if there are any, to *out, and moves *text behind it. Returns
 * false unless it is above `least` and a space or the end follows. */
bool tr_config_read_above(const char **text, int64_t least, int64_t *out);
