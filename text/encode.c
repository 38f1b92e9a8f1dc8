/* A text becomes ids: added tokens, normalizer, pieces, merges. */
#include "base/memory.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <stdlib.h>

tr_status tr_encoder_open(const tr_tokenizer *t, tr_encoder **out) {
    tr_encoder *e;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *e, &e));
    e->t = t;
    tr_status status = tr_bpe_work_open(t->bpe, &e->bpe);
    if (status == TR_OK) status = tr_match_work_open(&e->match);
    if (status != TR_OK) {
        tr_encoder_close(e);
        return status;
    }
    *out = e;
    return TR_OK;
}

void tr_encoder_close(tr_encoder *e) {
    if (!e) return;
    tr_bpe_work_close(e->bpe);
    tr_match_work_close(&e->match);
    free(e->escaped.byte);
    free(e->normal.byte);
    free(e->spare.byte);
    free(e->pieces.piece);
    free(e->spare_pieces.piece);
    free(e);
}

/* Copies a text with a surrogate for every invalid byte: what PCRE2 can take. */
static tr_status escape(const char *text, size_t length, tr_byte_list *out) {
    const uint8_t *p = (const uint8_t *)text, *end = p + length, *from = p;
    out->count = 0;
    while (p < end) {
        uint32_t cp;
        size_t bytes = tr_utf8_next(p, end, &cp);
        if (cp >= TR_CP_INVALID && cp < TR_CP_INVALID + 0x100) {
            uint8_t put[4];
            TR_TRY(tr_bytes_add(out, (const char *)from, (size_t)(p - from)));
            TR_TRY(tr_bytes_add(out, (const char *)put, tr_utf8_put(cp, put)));
            from = p + bytes;
        }
        p += bytes;
    }
    return tr_bytes_add(out, (const char *)from, (size_t)(end - from));
}

/* Turns the surrogates in text[length] back into bytes, in place; returns the length. ED B2 and ED
 * B3 occur in nothing else. */
static size_t unescape(uint8_t *text, size_t length) {
    size_t to = 0;
    for (size_t i = 0; i < length; i++) {
        bool surrogate = text[i] == 0xED && i + 2 < length && text[i + 1] >= 0xB2;
        if (surrogate) {
            text[to++] = (uint8_t)(text[i + 1] << 6 | (text[i + 2] & 0x3F));
            i += 2;
        } else {
            text[to++] = text[i];
        }
    }
    return to;
}

/* Encodes a text by the steps of the pre-tokenizer. */
static tr_status add_by_steps(tr_encoder *e, const char *text, size_t length,
                              tr_fragment_begin begin, bool escaped, tr_token_list *out) {
    const tr_tokenizer *t = e->t;
    e->escaped.count = 0;
    TR_TRY(tr_bytes_add(&e->escaped, text, length));
    TR_TRY(
        tr_pretokenize(t, &e->match, begin, &e->escaped, &e->spare, &e->pieces, &e->spare_pieces));
    bool byte_level = tr_bpe_rules_of(t->bpe)->byte_level;
    for (size_t i = 0; i < e->pieces.count; i++) {
        uint8_t *piece = (uint8_t *)e->escaped.byte + e->pieces.piece[i].at;
        size_t bytes = e->pieces.piece[i].length;
        if (escaped && byte_level) bytes = unescape(piece, bytes);
        TR_TRY(tr_bpe_add_piece(e->bpe, piece, bytes, out));
    }
    return TR_OK;
}

/* Encodes a normalized text without added tokens. */
static tr_status add_plain(tr_encoder *e, const char *text, size_t length, tr_fragment_begin begin,
                           bool escaped, tr_token_list *out) {
    const tr_tokenizer *t = e->t;
    if (t->pattern == TR_PATTERN_OTHER) return add_by_steps(e, text, length, begin, escaped, out);
    const uint8_t *p = (const uint8_t *)text, *end = p + length;
    while (p < end) {
        size_t bytes = tr_pattern_next(t->pattern, t->cp_table, p, end);
        TR_TRY(tr_bpe_add_piece(e->bpe, p, bytes, out));
        p += bytes;
    }
    return TR_OK;
}

/* Returns true when PCRE2 sees the text: a known pattern is matched without it. */
static bool needs_regex(const tr_tokenizer *t) {
    bool needed = t->pattern == TR_PATTERN_OTHER;
    for (int i = 0; i < t->normal_count; i++) needed = needed || t->normal[i].matcher.regex;
    return needed;
}

/* Encodes a text between added tokens: normalizes it and looks for added tokens that are searched
 * in normalized text. */
static tr_status add_segment(tr_encoder *e, const char *text, size_t length,
                             tr_fragment_begin begin, bool no_special, tr_token_list *out) {
    const tr_tokenizer *t = e->t;
    if (!length) return TR_OK;
    bool escaped = needs_regex(t) && !tr_utf8_is_valid((const uint8_t *)text, length);
    if (escaped) {
        TR_TRY(escape(text, length, &e->escaped));
        text = e->escaped.byte;
        length = e->escaped.count;
    }
    if (t->normal_count) {
        TR_TRY(tr_normalize(t, &e->match, begin, text, length, &e->spare, &e->normal));
        text = e->normal.byte;
        length = e->normal.count;
    }
    if (escaped && t->pattern != TR_PATTERN_OTHER) { /* only a normalizer needed the surrogates */
        length = unescape((uint8_t *)e->normal.byte, length);
        escaped = false;
    }
    if (!t->added_normalized) return add_plain(e, text, length, begin, escaped, out);
    if (!t->normal_count && escaped) { /* add_plain overwrites e->escaped */
        e->normal.count = 0;
        TR_TRY(tr_bytes_add(&e->normal, text, length));
        text = e->normal.byte;
    }
    tr_added_search search =
        tr_added_start(t->added_normalized, (const uint8_t *)text, length, no_special);
    for (int32_t id = 0; id >= 0;) {
        size_t from, to;
        id = tr_added_next(&search, &from, &to);
        if (to > from)
            TR_TRY(
                add_plain(e, text + from, to - from, from ? TR_AFTER_TOKEN : begin, escaped, out));
        if (id >= 0) TR_TRY(tr_tokens_add(out, &id, 1));
    }
    return TR_OK;
}

static tr_fragment_begin begin_of(unsigned flags) {
    if (flags & TR_ENCODE_CONTINUES)
        return flags & TR_ENCODE_NEXT_PIECE ? TR_NEXT_PIECE : TR_GOES_ON;
    return flags & TR_ENCODE_AFTER_TOKEN ? TR_AFTER_TOKEN : TR_BEGINS_TEXT;
}

tr_status tr_encoder_add(tr_encoder *e, const char *text, size_t length, unsigned flags,
                         tr_token_list *out) {
    const tr_tokenizer *t = e->t;
    bool no_special = flags & TR_ENCODE_NO_SPECIAL, framed = flags & TR_ENCODE_TEMPLATE;
    const tr_fragment_begin begin = begin_of(flags);
    if (framed) TR_TRY(tr_tokens_add(out, t->prefix.id, t->prefix.count));
    tr_added_search search = tr_added_start(t->added, (const uint8_t *)text, length, no_special);
    for (int32_t id = 0; id >= 0;) {
        size_t from, to;
        id = tr_added_next(&search, &from, &to);
        TR_TRY(
            add_segment(e, text + from, to - from, from ? TR_AFTER_TOKEN : begin, no_special, out));
        if (id >= 0) TR_TRY(tr_tokens_add(out, &id, 1));
    }
    if (framed) TR_TRY(tr_tokens_add(out, t->suffix.id, t->suffix.count));
    return TR_OK;
}
