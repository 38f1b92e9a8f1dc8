/* A strict scanner of JSON (RFC 8259). It reads texts of lines, and checks whole files before cJSON
 * parses them, because cJSON takes more than JSON. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Start with line and length. */
typedef struct tr_scan {
    const char *line;
    size_t length, at;
    const char *fault; /* the first fault; NULL: none */
    size_t fault_at;   /* its byte of the line */
} tr_scan;

/* Notes a fault at this place, unless there is an earlier one. Returns false. */
bool tr_scan_wrong(tr_scan *scan, const char *what);
/* Returns the byte at this place; -1 at the end. */
int tr_scan_peek(const tr_scan *scan);
void tr_scan_space(tr_scan *scan);
/* Passes over white space and the byte `want`. Notes a fault, `what`, when another byte is there.
 * This and the functions below return false after a fault. */
bool tr_scan_take(tr_scan *scan, char want, const char *what);
/* Reads a string to `to` (NULL: passes over it), in UTF-8: never more bytes than it has in the
 * line. A lone surrogate becomes U+FFFD. Sets *length (may be NULL). */
bool tr_scan_string(tr_scan *scan, char *to, size_t *length);
/* Passes over a value, which is within `depth` others. */
bool tr_scan_value(tr_scan *scan, int depth);
/* Passes over what is between the elements of an object or list: called behind its first byte
 * (first) and behind each element. Sets *more to whether another element follows; otherwise the
 * place is behind `close`. */
bool tr_scan_next(tr_scan *scan, char close, bool first, bool *more);
