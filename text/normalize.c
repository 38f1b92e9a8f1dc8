/* The normalizer: Unicode normal forms, texts put in front, replacements. */
#include "base/memory.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* How much longer steps of Replace may make a text; known files replace a space by three bytes.
 * Each of 32 steps could multiply it otherwise. */
enum { GROWS = 64, ROOM = 1 << 20 };

/* --- Unicode normal forms --------------------------------------------------------------------- */

typedef struct code_points {
    utf8proc_int32_t *cp;
    size_t count, capacity;
} code_points;

/* Appends the decomposition of one character. */
static tr_status decompose(uint32_t cp, int options, code_points *out) {
    enum { LONGEST = 32 }; /* U+FDFA has 18 */
    TR_TRY(tr_grow(&out->cp, &out->capacity, out->count + LONGEST, sizeof *out->cp));
    int boundary = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char(
        (utf8proc_int32_t)cp, out->cp + out->count, LONGEST,
        (utf8proc_option_t)((options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE), &boundary);
    if (count < 0 || count > LONGEST) {
        out->cp[out->count] = (utf8proc_int32_t)cp;
        count = 1;
    }
    out->count += (size_t)count;
    return TR_OK;
}

static int class_of(utf8proc_int32_t cp) {
    return utf8proc_get_property(cp)->combining_class;
}

/* Sorts a run of combining characters by class, keeping the order of equals. It counts, because a
 * text may be one long run. */
static void sort_run(utf8proc_int32_t *cp, size_t count, utf8proc_int32_t *spare) {
    size_t at[257] = {0};
    for (size_t i = 0; i < count; i++) at[class_of(cp[i]) + 1]++;
    for (int i = 1; i < 257; i++) at[i] += at[i - 1];
    for (size_t i = 0; i < count; i++) spare[at[class_of(cp[i])]++] = cp[i];
    memcpy(cp, spare, count * sizeof *cp);
}

static tr_status order_marks(code_points *list) {
    utf8proc_int32_t *spare = NULL;
    for (size_t i = 0, end; i < list->count; i = end + 1) {
        bool sorted = true;
        int last = 0;
        for (end = i; end < list->count && class_of(list->cp[end]); end++) {
            sorted = sorted && class_of(list->cp[end]) >= last;
            last = class_of(list->cp[end]);
        }
        if (sorted) continue;
        if (!spare) TR_TRY(tr_calloc(list->count, sizeof *spare, &spare));
        sort_run(list->cp + i, end - i, spare);
    }
    free(spare);
    return TR_OK;
}

/* Appends the normal form of text[length], which may contain invalid bytes: these stay as they are,
 * as if they were characters that nothing joins. */
static tr_status add_normal_form(const char *text, size_t length, int options, tr_byte_list *out) {
    const uint8_t *p = (const uint8_t *)text, *end = p + length;
    code_points list = {0};
    tr_status status = TR_OK;
    while (p < end && status == TR_OK) {
        uint32_t cp;
        size_t bytes = tr_utf8_next(p, end, &cp);
        if (cp >= TR_CP_INVALID && cp < TR_CP_INVALID + 0x100) {
            status = tr_grow(&list.cp, &list.capacity, list.count + 1, sizeof *list.cp);
            if (status == TR_OK) list.cp[list.count++] = (utf8proc_int32_t)cp;
        } else {
            status = decompose(cp, options, &list);
        }
        p += bytes;
    }
    if (status == TR_OK) status = order_marks(&list);
    if (status == TR_OK && options & UTF8PROC_COMPOSE) {
        utf8proc_ssize_t count = utf8proc_normalize_utf32(list.cp, (utf8proc_ssize_t)list.count,
                                                          UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (count >= 0) list.count = (size_t)count;
    }
    for (size_t i = 0; i < list.count && status == TR_OK; i++) {
        uint8_t put[4] = {0};
        uint32_t cp = (uint32_t)list.cp[i];
        bool invalid = cp >= TR_CP_INVALID && cp < TR_CP_INVALID + 0x100;
        size_t bytes = invalid ? 1 : tr_utf8_put(cp, put);
        if (invalid) put[0] = (uint8_t)(cp - TR_CP_INVALID);
        status = tr_bytes_add(out, (const char *)put, bytes);
    }
    free(list.cp);
    return status;
}

/* NFC, where most characters are stable: only runs with another one, from the stable character
 * before it to the next stable one, are normalized. */
static tr_status add_nfc(const uint8_t *table, const char *text, size_t length,
                         const tr_normalize_step *step, tr_byte_list *out) {
    const uint8_t *begin = (const uint8_t *)text, *end = begin + length, *p = begin, *done = begin,
                  *stable = begin;
    while (p < end) {
        if (*p < 0x80) {
            stable = p++;
            continue;
        }
        uint32_t cp;
        size_t bytes = tr_utf8_next(p, end, &cp);
        if (!(table[cp] & TR_CP_UNSTABLE)) {
            stable = p;
            p += bytes;
            continue;
        }
        while (p < end && table[(bytes = tr_utf8_next(p, end, &cp), cp)] & TR_CP_UNSTABLE)
            p += bytes;
        TR_TRY(tr_bytes_add(out, (const char *)done, (size_t)(stable - done)));
        TR_TRY(add_normal_form((const char *)stable, (size_t)(p - stable), step->options, out));
        done = stable = p;
    }
    return tr_bytes_add(out, (const char *)done, (size_t)(end - done));
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Appends text with each match replaced, at most `most` bytes. An empty match at the end of the
 * match before it does not count. */
static tr_status add_replaced(const tr_tokenizer *t, tr_match_work *work,
                              const tr_normalize_step *step, const char *text, size_t length,
                              size_t most, tr_byte_list *out) {
    size_t at = 0, search = 0;
    for (bool found, any = false;; any = true) {
        size_t begin, end;
        TR_TRY(tr_matcher_find(&step->matcher, work, t->path, text, length, search, &found, &begin,
                               &end));
        if (!found) break;
        const bool counts = end > begin || begin > at || !any;
        if (counts && out->count + (begin - at) + step->length > most)
            return TR_FAIL(
                TR_ERR_DATA,
                "the tokenizer '%s': the Replace steps of its normalizer make a text more "
                "than %d times as long: remove them",
                t->path, GROWS);
        TR_TRY(tr_bytes_add(out, text + at, begin - at));
        if (counts) TR_TRY(tr_bytes_add(out, step->text, step->length));
        at = search = end;
        if (end > begin) continue;
        if (end >= length) break;
        /* An empty match: the next search begins one character later. */
        search += tr_cp_escaped((const uint8_t *)text + end, (const uint8_t *)text + length);
    }
    return tr_bytes_add(out, text + at, length - at);
}

static tr_status take_step(const tr_tokenizer *t, tr_match_work *work,
                           const tr_normalize_step *step, const char *text, size_t length,
                           size_t most, tr_byte_list *out) {
    switch (step->kind) {
    case TR_NORMALIZE_UNICODE:
        if (step->is_nfc) return add_nfc(t->cp_table, text, length, step, out);
        return add_normal_form(text, length, step->options, out);
    case TR_NORMALIZE_PREPEND:
        if (length) TR_TRY(tr_bytes_add(out, step->text, step->length));
        return tr_bytes_add(out, text, length);
    case TR_NORMALIZE_REPLACE: return add_replaced(t, work, step, text, length, most, out);
    }
    return TR_OK;
}

tr_status tr_normalize(const tr_tokenizer *t, tr_match_work *work, tr_fragment_begin begin,
                       const char *text, size_t length, tr_byte_list *spare, tr_byte_list *out) {
    const size_t most = length * GROWS + ROOM;
    bool begun = false;
    out->count = 0;
    for (int i = 0; i < t->normal_count; i++) {
        if ((begin == TR_GOES_ON || begin == TR_NEXT_PIECE) &&
            t->normal[i].kind == TR_NORMALIZE_PREPEND)
            continue;
        if (!begun) {
            TR_TRY(take_step(t, work, &t->normal[i], text, length, most, out));
            begun = true;
            continue;
        }
        tr_byte_list last = *out;
        *out = *spare;
        *spare = last;
        out->count = 0;
        TR_TRY(take_step(t, work, &t->normal[i], spare->byte, spare->count, most, out));
    }
    return begun ? TR_OK : tr_bytes_add(out, text, length);
}
