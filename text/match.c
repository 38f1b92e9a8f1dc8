/* Regular expressions and literal texts. */
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXPRESSION_MAX = 64 << 10, /* bytes */
    MATCH_LIMIT = 1 << 22,     /* PCRE2's count of backtracking for one match: about 50 ms */
    STACK_MAX = 8 << 20,       /* of PCRE2's compiled code */
    HEAP_MAX_KIB = 256 << 10,  /* of its interpreter, where the stack is too small */
    DEEPEST = 8,               /* classes in classes */
};

tr_status tr_match_work_open(tr_match_work *work) {
    work->data = pcre2_match_data_create(1, NULL);
    work->context = pcre2_match_context_create(NULL);
    work->stack = pcre2_jit_stack_create(32 << 10, STACK_MAX, NULL);
    if (!work->data || !work->context || !work->stack) {
        tr_match_work_close(work);
        return TR_FAIL(TR_ERR_FIT, "out of host memory: no room for PCRE2's data; free memory");
    }
    pcre2_jit_stack_assign(work->context, NULL, work->stack);
    (void)pcre2_set_match_limit(work->context, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(work->context, HEAP_MAX_KIB);
    return TR_OK;
}

void tr_match_work_close(tr_match_work *work) {
    pcre2_match_data_free(work->data);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    *work = (tr_match_work){0};
}

void tr_matcher_close(tr_matcher *matcher) {
    pcre2_code_free(matcher->regex);
    free(matcher->literal);
    *matcher = (tr_matcher){0};
}

/* Appends the code points with a property that PCRE2's tables are too old for, as ranges of a
 * class. `must` and `must_not`: properties in tr_cp_table's terms. */
static tr_status add_newer(tr_byte_list *out, unsigned must, unsigned must_not) {
    uint32_t first, last;
    uint8_t set;
    for (size_t i = 0; tr_cp_since(i, &first, &last, &set); i++) {
        char range[40];
        if ((set & must) != must || set & must_not) continue;
        int bytes = snprintf(range, sizeof range, "\\x{%X}-\\x{%X}", first, last);
        TR_TRY(tr_bytes_add(out, range, (size_t)bytes));
    }
    return TR_OK;
}

/* Returns true when name[length] is a script. */
static bool is_script(const char *name, size_t length) {
    char property[64];
    int error;
    PCRE2_SIZE at;
    int bytes = snprintf(property, sizeof property, "\\p{sc:%.*s}", (int)length, name);
    if (bytes < 0 || (size_t)bytes >= sizeof property) return false;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)property, (size_t)bytes, PCRE2_UTF, &error, &at, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Translates \p{L}, \p{N}, \p{M} and their kinds with and without case, \p{Han} and other scripts,
 * and \P. In PCRE2 a script's name alone also has the characters that it shares with others. Sets
 * *taken to the bytes of `p` that were translated, 0 for anything else. */
static tr_status translate_property(const char *p, bool in_class, tr_byte_list *out,
                                    size_t *taken) {
    static const struct {
        const char *name;
        unsigned must, must_not;
    } known[] = {
        {"L", TR_CP_LETTER, 0},
        {"Lu", TR_CP_LETTER | TR_CP_UPPER, TR_CP_LOWER},
        {"Ll", TR_CP_LETTER | TR_CP_LOWER, TR_CP_UPPER},
        {"Lo", TR_CP_LETTER | TR_CP_LOWER | TR_CP_UPPER, 0},
        {"N", TR_CP_NUMBER, 0},
        {"Nd", TR_CP_NUMBER | TR_CP_WORD, 0},
        {"M", TR_CP_UPPER | TR_CP_LOWER, TR_CP_LETTER},
    };
    const char *close = p[2] == '{' ? strchr(p, '}') : NULL;
    const bool outside = in_class && p[1] == 'P';
    *taken = 0;
    if (!close) return TR_OK;
    size_t bytes = (size_t)(close + 1 - p), length = bytes - 4;
    for (size_t i = 0; i < sizeof known / sizeof *known && !outside; i++) {
        if (strlen(known[i].name) != length || memcmp(known[i].name, p + 3, length)) continue;
        if (!in_class) TR_TRY(tr_bytes_add(out, p[1] == 'P' ? "[^" : "[", p[1] == 'P' ? 2 : 1));
        TR_TRY(tr_bytes_add(out, "\\p", 2));
        TR_TRY(tr_bytes_add(out, p + 2, bytes - 2));
        TR_TRY(add_newer(out, known[i].must, known[i].must_not));
        if (!in_class) TR_TRY(tr_bytes_add(out, "]", 1));
        *taken = bytes;
    }
    const char *name = p[3] == '^' ? p + 4 : p + 3;
    if (*taken || !is_script(name, (size_t)(close - name))) return TR_OK;
    TR_TRY(tr_bytes_add(out, p, (size_t)(name - p)));
    TR_TRY(tr_bytes_add(out, "sc:", 3));
    *taken = bytes;
    return tr_bytes_add(out, name, (size_t)(close + 1 - name));
}

/* Translates \w, and \W outside of a class. Oniguruma's \w has the alphabetic characters, marks,
 * digits and connectors; outside of a class also the Latin-1 numbers that are not digits. */
static tr_status translate_word(char letter, bool in_class, tr_byte_list *out) {
    static const char word[] = "\\p{Alphabetic}\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}",
                      latin_1[] = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]";
    if (!in_class) TR_TRY(tr_bytes_add(out, "[^", letter == 'W' ? 2 : 1));
    TR_TRY(tr_bytes_add(out, word, sizeof word - 1));
    TR_TRY(add_newer(out, TR_CP_WORD, 0));
    return in_class ? TR_OK : tr_bytes_add(out, latin_1, sizeof latin_1 - 1);
}

/* Translates \b and \B outside of a class. \b is a place with a \w on one side only, \B any other
 * place. */
static tr_status translate_boundary(char letter, tr_byte_list *out) {
    const bool is = letter == 'b';
    const char *const parts[] = {"(?:(?<=", is ? ")(?!" : ")(?=", ")|(?<!", is ? ")(?=" : ")(?!"};
    for (int i = 0; i < 4; i++) {
        TR_TRY(tr_bytes_add(out, parts[i], strlen(parts[i])));
        TR_TRY(translate_word('w', false, out));
    }
    return tr_bytes_add(out, "))", 2);
}

/* Translates an escape at p into PCRE2's dialect; *taken: its bytes. In tokenizer.json's
 * (Oniguruma) \s has no U+180E, \h is a hexadecimal digit. */
static tr_status translate_escape(const char *p, bool in_class, tr_byte_list *out, size_t *taken) {
    static const struct {
        char letter;
        const char *in_class, *outside;
    } classes[] = {
        {'s', "\\p{White_Space}", "\\p{White_Space}"},
        {'S', "\\P{White_Space}", "\\P{White_Space}"},
        {'h', "0-9a-fA-F", "[0-9a-fA-F]"},
        {'H', NULL, "[^0-9a-fA-F]"},
    };
    if (p[1] == 'p' || p[1] == 'P') {
        TR_TRY(translate_property(p, in_class, out, taken));
        if (*taken) return TR_OK;
    }
    *taken = 2;
    if (p[1] == 'w' || (p[1] == 'W' && !in_class)) return translate_word(p[1], in_class, out);
    if ((p[1] == 'b' || p[1] == 'B') && !in_class) return translate_boundary(p[1], out);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        const char *text = in_class ? classes[i].in_class : classes[i].outside;
        if (classes[i].letter == p[1] && text) return tr_bytes_add(out, text, strlen(text));
    }
    return tr_bytes_add(out, p, 2);
}

/* Translates the members of a class, also those of classes in it, and moves *at to the first thing
 * that is none: its end, &&, or a class in it that is negated, a POSIX class or an intersection, or
 * that begins with ], which would end the class around it. */
static tr_status translate_members(const char **at, int depth, tr_byte_list *out) {
    const char *const first = *at;
    for (size_t taken; **at && (**at != ']' || *at == first); *at += taken) {
        taken = 1;
        if (strncmp(*at, "&&", 2) == 0) return TR_OK;
        if (**at == '[') {
            const char *p = *at + 1;
            /* Next to a hyphen members could become a range. */
            const bool ranges = *p == '-' || (*at > first && p[-2] == '-');
            if (strchr("^:]", *p) || ranges || depth == DEEPEST) return TR_OK;
            TR_TRY(translate_members(&p, depth + 1, out));
            if (*p != ']' || p[-1] == '-' || p[1] == '-') return TR_OK;
            *at = p;
        } else if (**at == '\\' && (*at)[1]) {
            TR_TRY(translate_escape(*at, true, out, &taken));
        } else {
            TR_TRY(tr_bytes_add(out, *at, 1));
        }
    }
    return TR_OK;
}

/* Translates a class, [...], [...[...]] or [...&&[...]], and moves *at behind it. Leaves *at as it
 * is when it has other classes in it, or no end. */
static tr_status translate_class(const char **at, tr_byte_list *members, tr_byte_list *out) {
    const char *p = *at + 1, *begin = *p == '^' ? "[^" : "[";
    members->count = 0;
    if (*p == '^') p++;
    TR_TRY(translate_members(&p, 0, members));
    if (strncmp(p, "&&[", 3) == 0 && !begin[1]) {
        p += 3;
        TR_TRY(tr_bytes_add(out, "(?:(?=[", 7));
        if (*p == '^') TR_TRY(tr_bytes_add(out, p++, 1));
        TR_TRY(translate_members(&p, 0, out));
        if (strncmp(p, "]]", 2) != 0) return TR_OK;
        TR_TRY(tr_bytes_add(out, "])[", 3));
        TR_TRY(tr_bytes_add(out, members->byte, members->count));
        *at = p + 2;
        return tr_bytes_add(out, "])", 2);
    }
    if (*p != ']') return TR_OK;
    TR_TRY(tr_bytes_add(out, begin, strlen(begin)));
    TR_TRY(tr_bytes_add(out, members->byte, members->count));
    *at = p + 1;
    return tr_bytes_add(out, "]", 1);
}

/* Translates Oniguruma's dialect, that of tokenizer.json, into PCRE2's: escapes, intersections of
 * classes, and + after {m,n}, which repeats instead of forbidding to give back. Sets *end to the
 * end of the expression, or to a class that it cannot translate. */
static tr_status translate(const char *expression, tr_byte_list *out, const char **end) {
    tr_byte_list members = {0};
    tr_status status = TR_OK;
    const char *p = expression, *before = NULL;
    for (; *p && p != before && status == TR_OK;) {
        before = p;
        size_t taken = 1;
        if (*p == '[') {
            status = translate_class(&p, &members, out);
            continue;
        }
        if (*p == '\\' && p[1]) {
            status = translate_escape(p, false, out, &taken);
        } else if (*p == '}' && p[1] == '+') {
            status = tr_bytes_add(out, "}{1,}", 5);
            taken = 2;
        } else {
            status = tr_bytes_add(out, p, 1);
        }
        p += taken;
    }
    free(members.byte);
    *end = p;
    return status == TR_OK ? tr_bytes_add(out, "", 0) : status;
}

tr_status tr_matcher_compile(const char *path, const char *expression, tr_matcher *out) {
    int error = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR reason[160] = "it is longer than 64 KiB";
    tr_byte_list translated = {0};
    *out = (tr_matcher){0};
    if (strlen(expression) <= EXPRESSION_MAX) {
        const char *end;
        tr_status status = translate(expression, &translated, &end);
        if (status == TR_OK && *end)
            status = TR_FAIL(TR_ERR_DATA,
                             "the tokenizer '%s': the regular expression '%.200s' has at byte %zu "
                             "a class without an end, or with other classes in it than "
                             "[...[...]] and [...&&[...]], which Trireme does not read",
                             path, expression, (size_t)(end - expression));
        pcre2_compile_context *context =
            status == TR_OK ? pcre2_compile_context_create(NULL) : NULL;
        if (context) {
            (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
            out->regex =
                pcre2_compile((PCRE2_SPTR)translated.byte, translated.count,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &at, context);
            pcre2_compile_context_free(context);
        }
        free(translated.byte);
        TR_TRY(status);
        if (!out->regex) (void)pcre2_get_error_message(error, reason, sizeof reason);
    }
    if (!out->regex)
        return TR_FAIL(TR_ERR_DATA,
                       "the tokenizer '%s': the regular expression '%.200s' does not compile: %s "
                       "(near its byte %zu)",
                       path, expression, (const char *)reason, at);
    (void)pcre2_jit_compile(out->regex, PCRE2_JIT_COMPLETE); /* without it the match is slower */
    return TR_OK;
}

tr_status tr_matcher_find(const tr_matcher *matcher, tr_match_work *work, const char *path,
                          const char *text, size_t length, size_t from, bool *found, size_t *begin,
                          size_t *end) {
    *found = false;
    if (from > length) return TR_OK;
    if (!matcher->regex) {
        const char *at = memmem(text + from, length - from, matcher->literal, matcher->length);
        if (!at) return TR_OK;
        *found = true;
        *begin = (size_t)(at - text);
        *end = *begin + matcher->length;
        return TR_OK;
    }
    /* The text is valid, or has surrogates for invalid bytes; a check for each match would take
     * time that is quadratic in the length. */
    int result = pcre2_match(matcher->regex, (PCRE2_SPTR)text, length, from, PCRE2_NO_UTF_CHECK,
                             work->data, work->context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(matcher->regex, (PCRE2_SPTR)text, length, from,
                             PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work->data, work->context);
    if (result == PCRE2_ERROR_NOMATCH) return TR_OK;
    if (result < 0) {
        PCRE2_UCHAR reason[160];
        (void)pcre2_get_error_message(result, reason, sizeof reason);
        return TR_FAIL(
            TR_ERR_DATA,
            "a regular expression of the tokenizer '%s' fails at byte %zu of a text: %s; "
            "use another tokenizer, or shorter texts",
            path, from, (const char *)reason);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(work->data);
    *found = true;
    /* A \K in a group that a look-behind or look-ahead calls moves the begin beyond both limits. */
    *begin = range[0] > from ? range[0] : from;
    *end = range[1] > *begin ? range[1] : *begin;
    return TR_OK;
}
