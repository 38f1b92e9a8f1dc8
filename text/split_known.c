#include "text/split_known.h"

#include "text/unicode.h"

#include <string.h>

static const struct {
    tr_pattern pattern;
    const char *regex;
} known[] = {
    /* The first line of each pattern is the spelling of tokenizer.json files. */
    {TR_PATTERN_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {TR_PATTERN_GPT2,
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {TR_PATTERN_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|"
                      "\\s+(?!\\S)|\\s"},
    {TR_PATTERN_CL100K,
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++"
     "[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"},
    {TR_PATTERN_LLAMA3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {TR_PATTERN_LLAMA3, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
                        "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {TR_PATTERN_QWEN, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {TR_PATTERN_O200K,
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

tr_pattern tr_pattern_find(const char *regex) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(regex, known[i].regex)) return known[i].pattern;
    return TR_PATTERN_OTHER;
}

const char *tr_pattern_regex(tr_pattern pattern) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (pattern == known[i].pattern) return known[i].regex;
    return NULL;
}

/* The properties of the character at p, and its bytes; 0 and 0 at the end. */
typedef struct mark {
    unsigned set;
    size_t bytes;
} mark;

static inline mark look(const uint8_t *table, const uint8_t *p, const uint8_t *end) {
    if (p >= end) return (mark){0, 0};
    if (*p < 0x80) return (mark){table[*p], 1};
    uint32_t cp;
    size_t bytes = tr_utf8_next(p, end, &cp);
    return (mark){table[cp], bytes};
}

/* Neither space, letter nor number. */
static inline bool is_symbol(mark m) {
    return m.bytes && !(m.set & (TR_CP_SPACE | TR_CP_LETTER | TR_CP_NUMBER));
}

/* Returns the end of the run of characters with a property of `set`, at most `most` of them. */
static inline const uint8_t *skip(const uint8_t *table, const uint8_t *p, const uint8_t *end,
                                  unsigned set) {
    for (mark m; (m = look(table, p, end)).set & set;) p += m.bytes;
    return p;
}

static inline const uint8_t *skip_symbols(const uint8_t *table, const uint8_t *p,
                                          const uint8_t *end) {
    for (mark m; is_symbol(m = look(table, p, end));) p += m.bytes;
    return p;
}

/* Returns the bytes of 's 't 're 've 'm 'll 'd at p, 0 for anything else. Ignoring case, the long s
 * U+017F is an s. */
static inline size_t contraction(const uint8_t *p, const uint8_t *end, bool ignore_case) {
    if (end - p < 2 || *p != '\'') return 0;
    unsigned fold = ignore_case ? 0x20 : 0, a = p[1] | fold, b = end - p > 2 ? p[2] | fold : 0;
    if (ignore_case && p[1] == 0xC5 && end - p > 2 && p[2] == 0xBF) return 3;
    /* OR with 0x20 must not make letters of other characters. */
    if (ignore_case && (p[1] < 'A' || p[1] > 'z')) return 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (ignore_case && (end - p < 3 || p[2] < 'A' || p[2] > 'z')) return 0;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Returns the bytes of the piece at p, which begins with white space, by the rules
 * `\s*[\r\n]+|\s+(?!\S)|\s+` (by_lines) or `\s+(?!\S)|\s+`; whole_end: before them `\s+$`. */
static inline size_t spaces(const uint8_t *table, const uint8_t *p, const uint8_t *end,
                            bool by_lines, bool whole_end) {
    const uint8_t *q = p, *last = p, *after_line = NULL;
    for (mark m; (m = look(table, q, end)).set & TR_CP_SPACE;) {
        last = q;
        q += m.bytes;
        if (m.set & TR_CP_NEWLINE) after_line = q;
    }
    if (whole_end && q == end) return (size_t)(q - p);
    if (by_lines && after_line) return (size_t)(after_line - p);
    if (q == end || last == p) return (size_t)(q - p);
    return (size_t)(last - p); /* the last one begins the next piece */
}

static inline size_t next_gpt2(const uint8_t *table, const uint8_t *p, const uint8_t *end) {
    size_t bytes = contraction(p, end, false);
    if (bytes) return bytes;
    const uint8_t *q = p;
    mark m = look(table, p, end);
    if (*p == ' ') {
        mark next = look(table, p + 1, end);
        if (next.bytes && !(next.set & TR_CP_SPACE)) {
            q = p + 1;
            m = next;
        }
    }
    if (m.set & TR_CP_SPACE) return spaces(table, p, end, false, false);
    if (m.set & TR_CP_LETTER) return (size_t)(skip(table, q + m.bytes, end, TR_CP_LETTER) - p);
    if (m.set & TR_CP_NUMBER) return (size_t)(skip(table, q + m.bytes, end, TR_CP_NUMBER) - p);
    return (size_t)(skip_symbols(table, q + m.bytes, end) - p);
}

/* What cl100k, Llama 3, Qwen and o200k have in common: pieces that begin at p with neither letters
 * nor a character in front of letters. */
static inline size_t next_common(const uint8_t *table, const uint8_t *p, const uint8_t *end, mark m,
                                 int digits, bool whole_end, bool slash) {
    const uint8_t *q = p;
    if (m.set & TR_CP_NUMBER) {
        for (int i = 0; i < digits && (m = look(table, q, end)).set & TR_CP_NUMBER; i++)
            q += m.bytes;
        return (size_t)(q - p);
    }
    if (*p == ' ' && is_symbol(look(table, p + 1, end))) q = p + 1;
    else if (m.set & TR_CP_SPACE) return spaces(table, p, end, true, whole_end);
    q = skip_symbols(table, q, end);
    while (q < end && (*q == '\r' || *q == '\n' || (slash && *q == '/'))) q++;
    return (size_t)(q - p);
}

static inline size_t next_cl100k(const uint8_t *table, const uint8_t *p, const uint8_t *end,
                                 int digits, bool whole_end) {
    size_t bytes = contraction(p, end, true);
    if (bytes) return bytes;
    mark m = look(table, p, end);
    if (m.set & TR_CP_LETTER) return (size_t)(skip(table, p + m.bytes, end, TR_CP_LETTER) - p);
    if (!(m.set & (TR_CP_NUMBER | TR_CP_NEWLINE))) {
        mark next = look(table, p + m.bytes, end);
        if (next.set & TR_CP_LETTER)
            return (size_t)(skip(table, p + m.bytes + next.bytes, end, TR_CP_LETTER) - p);
    }
    return next_common(table, p, end, m, digits, whole_end, false);
}

/* Returns the end of [UPPER]*[LOWER]+ at p; NULL when there is none. Both sets have the letters
 * without case and the marks, so the greedy [UPPER]* gives characters back until [LOWER]+ has
 * one. */
static inline const uint8_t *lower_word(const uint8_t *table, const uint8_t *p,
                                        const uint8_t *end) {
    const uint8_t *q = p, *both = NULL; /* both: the last character in both sets */
    for (mark m; (m = look(table, q, end)).set & TR_CP_UPPER; q += m.bytes)
        if (m.set & TR_CP_LOWER) both = q;
    const uint8_t *lower = skip(table, q, end, TR_CP_LOWER);
    if (lower > q) return lower;
    return both ? skip(table, both, end, TR_CP_LOWER) : NULL;
}

/* Returns the end of [UPPER]+ at p; NULL when there is none. */
static inline const uint8_t *upper_word(const uint8_t *table, const uint8_t *p,
                                        const uint8_t *end) {
    const uint8_t *q = skip(table, p, end, TR_CP_UPPER);
    return q > p ? q : NULL;
}

static inline size_t next_o200k(const uint8_t *table, const uint8_t *p, const uint8_t *end) {
    mark m = look(table, p, end);
    /* A character that is neither letter, number nor line end may precede the word. A mark is such
     * a character, and may begin the word too. */
    bool may_precede = !(m.set & (TR_CP_LETTER | TR_CP_NUMBER | TR_CP_NEWLINE));
    const uint8_t *after = p + m.bytes, *word = may_precede ? lower_word(table, after, end) : NULL;
    if (!word) word = lower_word(table, p, end);
    if (!word && may_precede) word = upper_word(table, after, end);
    if (!word) word = upper_word(table, p, end);
    if (word) return (size_t)(word - p) + contraction(word, end, true);
    return next_common(table, p, end, m, 3, false, true);
}

size_t tr_pattern_next(tr_pattern pattern, const uint8_t *table, const uint8_t *p,
                       const uint8_t *end) {
    switch (pattern) {
    case TR_PATTERN_GPT2: return next_gpt2(table, p, end);
    case TR_PATTERN_CL100K: return next_cl100k(table, p, end, 3, true);
    case TR_PATTERN_LLAMA3: return next_cl100k(table, p, end, 3, false);
    case TR_PATTERN_QWEN: return next_cl100k(table, p, end, 1, false);
    case TR_PATTERN_O200K: return next_o200k(table, p, end);
    case TR_PATTERN_OTHER: break;
    }
    return (size_t)(end - p);
}
