/* Places where a text can be cut without changing its ids. */
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    NEAR = 1024, /* bytes on each side of a place on which both ways are tried */
    TRIES = 64,  /* of such places */
    LONGEST_CHARACTER = 4,
};

/* What shows that the ids are the same. */
typedef enum reason {
    BY_PATTERN, /* a piece of a known pattern always ends here */
    BY_SPACES,  /* Metaspace comes first and begins a piece at every space */
    BY_MERGES,  /* the text is one piece, and no merge joins the two characters */
    BY_TRYING,
} reason;

/* A place between two characters, both valid UTF-8: before byte `at` of the text. */
typedef struct place {
    const uint8_t *text, *left, *right; /* right: behind the place */
    size_t left_bytes, right_bytes;
    unsigned left_set, right_set; /* properties */
} place;

static reason reason_of(const tr_tokenizer *t) {
    bool splits = false;
    bool replaces = false;
    for (int i = 0; i < t->normal_count; i++) {
        if (t->normal[i].matcher.regex) return BY_TRYING;
        replaces |= t->normal[i].kind == TR_NORMALIZE_REPLACE;
    }
    if (t->pattern != TR_PATTERN_OTHER) return BY_PATTERN;
    if (t->step_count > 0 && t->step[0].kind == TR_PRETOKENIZE_METASPACE && t->step[0].splits)
        return replaces ? BY_TRYING : BY_SPACES;
    for (int i = 0; i < t->step_count; i++)
        splits |= t->step[i].kind == TR_PRETOKENIZE_SPLIT || t->step[i].splits;
    return splits ? BY_TRYING : BY_MERGES;
}

/* Fills *out with the place before byte `at`, 0 < at < length. Returns false when it is inside of a
 * character or next to an invalid byte. */
static bool look(const uint8_t *table, const uint8_t *text, size_t length, size_t at, place *out) {
    uint32_t left = 0, right;
    *out = (place){.text = text, .right = text + at};
    if ((text[at] & 0xC0) == 0x80) return false;
    out->right_bytes = tr_utf8_next(text + at, text + length, &right);
    for (size_t back = LONGEST_CHARACTER; back > 0 && !out->left; back--)
        if (back <= at && tr_utf8_next(text + at - back, text + at, &left) == back) {
            out->left = text + at - back;
            out->left_bytes = back;
        }
    if (!out->left || left - TR_CP_INVALID < 0x100 || right - TR_CP_INVALID < 0x100) return false;
    out->left_set = table[left];
    out->right_set = table[right];
    return true;
}

/* Returns true when the normalizer leaves both characters as they are, whatever is next to them. */
static bool is_normal(const tr_tokenizer *t, const place *p) {
    const bool ascii = *p->left < 0x80 && *p->right < 0x80;
    for (int i = 0; i < t->normal_count; i++) {
        const tr_normalize_step *step = &t->normal[i];
        const char *literal = step->matcher.literal;
        const size_t bytes = step->matcher.length;
        if (step->kind == TR_NORMALIZE_UNICODE && !ascii &&
            (!step->is_nfc || (p->left_set | p->right_set) & TR_CP_UNSTABLE))
            return false;
        if (literal && (memmem(literal, bytes, p->left, p->left_bytes) ||
                        memmem(literal, bytes, p->right, p->right_bytes)))
            return false;
    }
    return true;
}

/* Tries both ways on the text around the place, from byte `begin` on. rest: the flags of a text
 * behind a cut. */
static tr_status try_both(tr_encoder *e, const char *text, size_t length, size_t begin, size_t at,
                          unsigned flags, unsigned rest, bool *same) {
    const size_t before = at - begin, after = length - at < NEAR ? length - at : NEAR;
    const unsigned first = begin > 0 ? flags | rest : flags;
    tr_token_list whole = {0}, parts = {0};
    tr_status status = tr_encoder_add(e, text + begin, before + after, first, &whole);
    if (status == TR_OK) status = tr_encoder_add(e, text + begin, before, first, &parts);
    if (status == TR_OK) status = tr_encoder_add(e, text + at, after, flags | rest, &parts);
    *same = status == TR_OK && whole.count == parts.count &&
            (whole.count == 0 || memcmp(whole.id, parts.id, whole.count * sizeof *whole.id) == 0);
    free(whole.id);
    free(parts.id);
    return status;
}

/* Returns true when a piece of every known pattern ends at the place, also where the text ends
 * there: before white space in a line; behind a letter or number, except before an apostrophe or a
 * mark, which can be part of a word; between numbers in Qwen's pattern; and behind the end of a
 * line, except before o200k's slash. White space at the end of a text is one piece in GPT-2's
 * pattern, and two before other characters. */
static bool ends_piece(tr_pattern pattern, const uint8_t *table, const place *p) {
    const unsigned word = TR_CP_LETTER | TR_CP_NUMBER;
    const bool mark = p->right_set & TR_CP_UPPER && !(p->right_set & TR_CP_LETTER);
    if (!(p->left_set & TR_CP_SPACE)) {
        if (p->right_set & TR_CP_SPACE && !(p->right_set & TR_CP_NEWLINE)) return true;
        if (pattern == TR_PATTERN_QWEN && p->left_set & p->right_set & TR_CP_NUMBER) return true;
        return p->left_set & word && !(p->right_set & word) && !mark && *p->right != '\'';
    }
    if (!(p->left_set & TR_CP_NEWLINE) || p->right_set & TR_CP_SPACE || *p->right == '/')
        return false;
    place before;
    const size_t at = (size_t)(p->left - p->text);
    if (pattern != TR_PATTERN_GPT2) return true;
    return at > 0 && look(table, p->text, at + 1, at, &before) && !(before.left_set & TR_CP_SPACE);
}

/* Finds out whether the reason applies to a place. */
static tr_status applies(tr_encoder *e, reason why, const place *p, bool *good) {
    *good = false;
    switch (why) {
    case BY_PATTERN: *good = ends_piece(e->t->pattern, e->t->cp_table, p); return TR_OK;
    case BY_SPACES: *good = *p->right == ' '; return TR_OK;
    case BY_MERGES:
        if (*p->left == ' ' || *p->right == ' ') return TR_OK; /* Metaspace may replace it */
        return tr_bpe_keeps_apart(e->bpe, p->left, p->left_bytes, p->right, p->right_bytes, good);
    case BY_TRYING: *good = p->right_set & TR_CP_SPACE || p->left_set & TR_CP_NEWLINE;
    }
    return TR_OK;
}

/* Returns true when no added token reaches over the place. */
static bool is_between_tokens(const tr_tokenizer *t, const place *p) {
    const bool space = p->left_set & TR_CP_SPACE;
    return tr_added_keeps_apart(t->added, p->right[-1], space, *p->right) &&
           tr_added_keeps_apart(t->added_normalized, p->right[-1], space, *p->right);
}

/* --- pieces from the left --------------------------------------------------------------------- */

/* The pieces of a text, one after another: by a known pattern, or by the first step of the
 * pre-tokenizer. */
typedef struct pieces {
    tr_encoder *e;
    const char *text; /* the part between added tokens in which the place is looked for */
    size_t first;     /* its first byte, of the whole text */
    size_t at, end;
    size_t match, matched; /* other patterns: the next match */
} pieces;

/* Moves to the end of the next piece; it is `end` when no other is known. */
static tr_status next_piece(pieces *s) {
    const tr_tokenizer *t = s->e->t;
    if (t->pattern != TR_PATTERN_OTHER) {
        const uint8_t *const text = (const uint8_t *)s->text;
        s->at += tr_pattern_next(t->pattern, t->cp_table, text + s->at, text + s->end);
        return TR_OK;
    }
    if (s->at == s->match && s->matched > s->match) {
        s->at = s->matched;
        return TR_OK;
    }
    bool found;
    size_t begin, end;
    const size_t before = s->at;
    TR_TRY(tr_matcher_find(&t->step[0].matcher, &s->e->match, t->path, s->text, s->end, s->at,
                           &found, &begin, &end));
    found = found && end > begin; /* an empty match divides nothing that is searched here */
    s->match = found ? begin : s->end;
    s->matched = found ? end : s->end;
    s->at = s->match > before ? s->match : s->matched;
    return TR_OK;
}

/* Finds the part of text[length] between added tokens that byte `from` is in. Returns false when
 * its pieces are not those of the text as it is. */
static bool find_part(pieces *s, const uint8_t *text, size_t length, size_t from, bool no_special) {
    const tr_tokenizer *t = s->e->t;
    size_t end = 0;
    const tr_pretokenize_step *const step = &t->step[0];
    const bool isolates = t->step_count > 0 && step->kind == TR_PRETOKENIZE_SPLIT &&
                          step->behavior == TR_DELIMITER_ISOLATED && !step->invert;
    if (t->normal_count > 0 || t->added_normalized || (t->pattern == TR_PATTERN_OTHER && !isolates))
        return false;
    tr_added_search search = tr_added_start(t->added, text, length, no_special);
    for (int32_t id = 0; id >= 0;) {
        id = tr_added_next(&search, &s->first, &end);
        if (end > from) break;
    }
    if (end <= from) return false;
    s->text = (const char *)text + s->first;
    s->end = end - s->first;
    if (t->pattern != TR_PATTERN_OTHER) return true;
    for (int cut_off = 0; cut_off < LONGEST_CHARACTER && s->end > 0; cut_off++, s->end--)
        if (tr_utf8_is_valid(text + s->first, s->end)) return true;
    return false;
}

/* Finds the end of a piece, by the pieces from the beginning of the text on: the place of another
 * one may depend on them all, as in digits that are divided by three. */
static tr_status find_end(tr_encoder *e, const char *text, size_t length, size_t from,
                          unsigned flags, size_t *cut) {
    pieces s = {.e = e};
    const bool known = e->t->pattern != TR_PATTERN_OTHER;
    if (!find_part(&s, (const uint8_t *)text, length, from, flags & TR_ENCODE_NO_SPECIAL))
        return TR_OK;
    size_t begin = s.first;
    for (int tries = 0; tries < TRIES;) {
        place p;
        TR_TRY(next_piece(&s));
        const size_t at = s.first + s.at;
        if (s.at >= s.end || at + NEAR >= length) return TR_OK;
        if (at + NEAR <= from) begin = at;
        if (at < from || !look(e->t->cp_table, (const uint8_t *)text, length, at, &p) ||
            !is_between_tokens(e->t, &p))
            continue;
        /* Next to white space the end of a known piece may depend on what follows it. */
        bool good = !((p.left_set | p.right_set) & TR_CP_SPACE);
        if (!known) {
            TR_TRY(try_both(e, text, length, begin, at, flags,
                            TR_ENCODE_CONTINUES | TR_ENCODE_NEXT_PIECE, &good));
            tries++;
        }
        if (!good) continue;
        *cut = at;
        return TR_OK;
    }
    return TR_OK;
}

tr_status tr_encoder_find_cut(tr_encoder *e, const char *text, size_t length, size_t from,
                              unsigned flags, size_t *cut, unsigned *rest) {
    const tr_tokenizer *t = e->t;
    const reason why = reason_of(t);
    int tries = 0;
    *cut = length;
    *rest = TR_ENCODE_CONTINUES;
    if (why == BY_SPACES) *rest |= TR_ENCODE_NEXT_PIECE; /* later steps may put a space in front */
    /* A character at the end may be cut off; and tokens are tried on more than one. */
    const size_t margin = why == BY_TRYING ? NEAR : LONGEST_CHARACTER;
    for (size_t at = from > 0 ? from : 1; at + margin < length && tries < TRIES; at++) {
        place p;
        bool good;
        if (!look(t->cp_table, (const uint8_t *)text, length, at, &p) || !is_normal(t, &p))
            continue;
        if (!is_between_tokens(t, &p)) continue;
        TR_TRY(applies(e, why, &p, &good));
        if (!good) continue;
        if (why == BY_TRYING) {
            TR_TRY(try_both(e, text, length, at < NEAR ? 0 : at - NEAR, at, flags, *rest, &good));
            tries++;
        }
        if (!good) continue;
        *cut = at;
        return TR_OK;
    }
    if (why != BY_PATTERN && why != BY_TRYING) return TR_OK;
    TR_TRY(find_end(e, text, length, from, flags, cut));
    if (*cut < length) *rest |= TR_ENCODE_NEXT_PIECE;
    return TR_OK;
}

size_t tr_pattern_last_cut(tr_pattern pattern, const uint8_t *table, const uint8_t *text,
                           size_t length) {
    /* A character at the end may be cut off. */
    for (size_t at = length; at-- > LONGEST_CHARACTER;) {
        const size_t from = at - LONGEST_CHARACTER;
        place p;
        if (from > 0 && look(table, text, length, from, &p) && ends_piece(pattern, table, &p))
            return from;
    }
    return 0;
}
