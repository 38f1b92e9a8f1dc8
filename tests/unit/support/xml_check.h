/* Checks drawings and reports as text. */
#pragma once

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Returns true when the text is XML as drawings use it: nested tags, quoted attributes, known
 * entities. */
bool test_is_xml(const char *text);

/* Returns how often the word occurs. */
int test_count(const char *text, const char *word);
