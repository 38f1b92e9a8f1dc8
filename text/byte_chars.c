/* The characters that stand for bytes in byte-level vocabularies (GPT-2): printable characters of
 * Latin-1 stand for themselves, the other 68 bytes are U+0100 and following, in order. */
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

enum { OTHERS = 0x100 }; /* the first character of a byte that is not printable */

static bool is_printable(unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

size_t tr_byte_char(uint8_t byte, uint8_t out[4]) {
    if (is_printable(byte)) return tr_utf8_put(byte, out);
    if (byte <= 32) return tr_utf8_put(OTHERS + byte, out);
    return tr_utf8_put(OTHERS + 33 + (byte == 173 ? 34u : byte - 127u), out);
}

/* Returns the byte of a character, -1 when it stands for none. */
static int byte_of(uint32_t cp) {
    if (cp < OTHERS) return is_printable(cp) ? (int)cp : -1;
    if (cp < OTHERS + 33) return (int)cp - OTHERS;            /* 0 to 32 */
    if (cp < OTHERS + 67) return (int)cp - OTHERS - 33 + 127; /* 127 to 160 */
    return cp == OTHERS + 67 ? 173 : -1;
}

size_t tr_byte_chars_decode(char *text, size_t length) {
    const uint8_t *end = (const uint8_t *)text + length;
    for (int write = 0; write < 2; write++) {
        uint8_t *to = (uint8_t *)text;
        for (const uint8_t *p = (const uint8_t *)text; p < end;) {
            uint32_t cp;
            p += tr_utf8_next(p, end, &cp);
            int byte = byte_of(cp);
            if (byte < 0) return SIZE_MAX;
            if (write) *to = (uint8_t)byte;
            to++;
        }
        if (write) return (size_t)(to - (uint8_t *)text);
    }
    return 0;
}
