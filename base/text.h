/* Text that is built piece by piece, and how a text ends. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns true when `end` is the end of the text. */
bool tr_text_ends(const char *text, const char *end);

/* Appends to the string in text[size]. Cuts off what does not fit. */
__attribute__((format(printf, 3, 4))) void tr_text_add(char *text, size_t size, const char *format,
                                                       ...);

/* Copies a sentence to text[size], size >= 64. Where it does not fit, " ... " replaces a part after
 * its first third: a cause stands at the beginning, often with a long path, and a remedy at the
 * end. Does not cut a character of UTF-8. Returns text. */
const char *tr_text_fit(char *text, size_t size, const char *sentence);

/* Replaces by "?" each character of UTF-8 that is not complete, because a precision such as %.80s
 * has cut it. */
void tr_text_mend(char *text);

/* Appends the numbers first to last to the string in text[size], "3-5", or "3" of one. */
void tr_text_add_range(char *text, size_t size, int first, int last);

/* Writes an amount of bytes with three digits, in bytes, kB, MB, GB or TB. Returns text. */
const char *tr_text_bytes(double bytes, char *text, size_t size);

/* Writes an amount of floating-point operations with three digits, in mega to exa of `unit`, "FLOP"
 * or "FLOP/s". Returns text. */
const char *tr_text_flop(double amount, const char *unit, char *text, size_t size);

/* Writes an amount of memory with one decimal in MiB, below 1 MiB in KiB, and below 1 KiB in bytes.
 * Returns text. */
const char *tr_text_memory(size_t bytes, char *text, size_t size);
