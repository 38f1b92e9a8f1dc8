/* Keys that list steps of a run. */
#pragma once

#include <stdint.h>

enum { TR_CONFIG_POINTS = 64 };

/* Parses whole numbers with spaces between them, each above 0 and above the one before it, to
 * point[TR_CONFIG_POINTS]. Returns how many there are, or -1 when the text is not such a list. */
int tr_config_points(const char *text, int64_t *point);
