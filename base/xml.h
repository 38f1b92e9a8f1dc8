/* Text in XML and HTML. */
#pragma once

#include <stdio.h>

/* Writes UTF-8 text with XML's special characters escaped, and '?' for invalid bytes, control
 * characters and others that XML does not allow. */
void tr_xml_text(const char *text, FILE *out);
