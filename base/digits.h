/* Numbers within a text. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads the decimal digits at *text, without a sign, to *out, and moves *text behind them. Returns
 * false, and leaves *text where it is, when there are no digits or the number is above `most`. */
bool tr_digits_read(const char **text, int64_t most, int64_t *out);

/* Reads the decimal number at *text, which may have a sign and an exponent, to *out, and moves
 * *text behind it. Returns false, and leaves *text where it is, when there is none: for blanks,
 * inf, nan and hexadecimal digits. A number that is too large becomes infinite. */
bool tr_number_read(const char **text, double *out);
/* Returns true, and sets *out, when the whole text is such a number. */
bool tr_number_is(const char *text, double *out);

/* Returns the bytes of a unit: 1 of "", 1000 of "kB", 1024 of "KiB", up to "TB" and "TiB"; 0 of
 * other text. */
int64_t tr_digits_unit(const char *unit);
