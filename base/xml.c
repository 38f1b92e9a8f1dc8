#include "base/xml.h"

#include "base/utf8.h"

#include <string.h>

static bool is_allowed(uint32_t cp) {
    const bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0);
    const bool surrogate = cp >= 0xd800 && cp < 0xe000; /* an invalid byte is one */
    return !control && !surrogate && cp != 0xfffe && cp != 0xffff;
}

void tr_xml_text(const char *text, FILE *out) {
    const uint8_t *at = (const uint8_t *)text, *end = at + strlen(text);
    while (at < end) {
        uint32_t cp;
        const size_t bytes = tr_utf8_next(at, end, &cp);
        if (cp == '&') (void)fputs("&amp;", out);
        else if (cp == '<') (void)fputs("&lt;", out);
        else if (cp == '>') (void)fputs("&gt;", out);
        else if (is_allowed(cp)) (void)fwrite(at, 1, bytes, out);
        else (void)fputc('?', out);
        at += bytes;
    }
}
