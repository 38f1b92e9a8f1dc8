/* Whole numbers within a text. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads the decimal digits at *text, without a sign, to *out, and moves *text behind them. Returns
 * false, and leaves *text where it is, when there are no digits or the number is above `most`. */
bool tr_digits_read(const char **text, int64_t most, int64_t *out);
