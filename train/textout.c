#include "train/textout.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* Returns the length of the character at text[0..left), left > 0, and sets *valid. An invalid
 * sequence is as long as the beginning of a character that it has, at least 1 (Unicode 15, section
 * 3.9, "maximal subpart"). 0: the text ends within a character. */
static size_t character(const unsigned char *text, size_t left, bool *valid) {
    const unsigned char lead = text[0];
    size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
    unsigned char low = 0x80, high = 0xBF; /* of the second byte */
    if (lead >= 0xE0 && lead < 0xF0) length = 3;
    if (lead >= 0xF0 && lead < 0xF5) length = 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F; /* no surrogates */
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    *valid = false;
    if (length == 0) return 1;
    for (size_t i = 1; i < length; i++) {
        if (i == left) return 0;
        if (text[i] < low || text[i] > high) return i;
        low = 0x80;
        high = 0xBF;
    }
    *valid = true;
    return length;
}

/* Writes the characters of held[0..count); with `all` also one that is not complete. *written: the
 * bytes that were. */
static tr_status write_characters(tr_textout *out, size_t count, bool all, size_t *written) {
    const unsigned char *text = (const unsigned char *)out->held;
    size_t from = 0, at = 0;
    bool valid;
    while (at < count) {
        const size_t length = character(text + at, count - at, &valid);
        if (length == 0 && !all) break;
        if (valid) {
            at += length;
            continue;
        }
        if (at > from) TR_TRY(out->write(out->context, out->held + from, at - from));
        TR_TRY(out->write(out->context, replacement, sizeof replacement - 1));
        at += length > 0 ? length : count - at;
        from = at;
    }
    if (at > from) TR_TRY(out->write(out->context, out->held + from, at - from));
    *written = at;
    return TR_OK;
}

/* Returns the position of the first stop string in the held bytes, or their length. */
static size_t find_stop(const tr_textout *out) {
    size_t first = out->length;
    for (int i = 0; i < out->stops; i++) {
        const char *at = memmem(out->held, out->length, out->stop[i], strlen(out->stop[i]));
        if (at && (size_t)(at - out->held) < first) first = (size_t)(at - out->held);
    }
    return first;
}

/* Returns how many of the held bytes cannot be part of a stop string that is not complete. */
static size_t clear_of_stops(const tr_textout *out) {
    size_t clear = out->length;
    for (int i = 0; i < out->stops; i++) {
        size_t most = strlen(out->stop[i]) - 1;
        if (most > out->length) most = out->length;
        for (; most > 0; most--)
            if (memcmp(out->held + out->length - most, out->stop[i], most) == 0) break;
        if (out->length - most < clear) clear = out->length - most;
    }
    return clear;
}

tr_status tr_textout_add(tr_textout *out, const char *bytes, size_t count) {
    size_t written;
    if (out->stopped || count == 0) return TR_OK;
    TR_TRY(tr_grow(&out->held, &out->capacity, out->length + count, 1));
    memcpy(out->held + out->length, bytes, count);
    out->length += count;
    const size_t stop = find_stop(out);
    if (stop < out->length) {
        out->stopped = true;
        out->length = stop;
        return write_characters(out, stop, true, &written);
    }
    TR_TRY(write_characters(out, clear_of_stops(out), false, &written));
    memmove(out->held, out->held + written, out->length - written);
    out->length -= written;
    return TR_OK;
}

tr_status tr_textout_end(tr_textout *out) {
    size_t written;
    if (out->stopped) return TR_OK;
    TR_TRY(write_characters(out, out->length, true, &written));
    out->length = 0;
    return TR_OK;
}

void tr_textout_release(tr_textout *out) {
    free(out->held);
    out->held = NULL;
    out->length = out->capacity = 0;
}
