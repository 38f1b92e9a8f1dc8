/* The pre-tokenizer's steps, for tokenizers with another pattern than those of split_known.c. */
#include "base/memory.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

#include <string.h>

typedef struct split_run {
    const tr_tokenizer *t;
    tr_match_work *work;
    const tr_pretokenize_step *step;
    const char *text;
    tr_fragment_list *out;
    size_t first;      /* of the piece's parts in `out` */
    bool last_matched; /* the part before, within one piece */
} split_run;

static tr_status add_piece(tr_fragment_list *list, size_t at, size_t length) {
    TR_TRY(tr_grow(&list->piece, &list->capacity, list->count + 1, sizeof *list->piece));
    list->piece[list->count++] = (tr_fragment){at, length};
    return TR_OK;
}

/* Adds a part, a match, which may be empty, or the text between two matches, as the behavior
 * says. */
static tr_status add_part(split_run *run, size_t at, size_t length, bool is_match) {
    if (!length && !is_match) return TR_OK;
    tr_fragment_list *out = run->out;
    const bool begun = out->count > run->first;
    bool joins = false;
    is_match ^= run->step->invert;
    switch (run->step->behavior) {
    case TR_DELIMITER_ISOLATED: break;
    case TR_DELIMITER_REMOVED:
        if (is_match) return TR_OK;
        break;
    case TR_DELIMITER_WITH_PREVIOUS: joins = begun && is_match && !run->last_matched; break;
    case TR_DELIMITER_WITH_NEXT: joins = begun && !is_match && run->last_matched; break;
    case TR_DELIMITER_CONTIGUOUS: joins = begun && is_match == run->last_matched; break;
    }
    run->last_matched = is_match;
    if (!joins) return add_piece(out, at, length);
    out->piece[out->count - 1].length += length;
    return TR_OK;
}

/* Removes the empty parts of a piece. */
static void remove_empty(split_run *run) {
    tr_fragment_list *out = run->out;
    size_t kept = run->first;
    for (size_t i = run->first; i < out->count; i++)
        if (out->piece[i].length > 0) out->piece[kept++] = out->piece[i];
    out->count = kept;
}

static tr_status split_piece(split_run *run, tr_fragment piece) {
    const char *text = run->text + piece.at;
    size_t at = 0, search = 0;
    run->first = run->out->count;
    run->last_matched = false;
    while (search <= piece.length) {
        bool found;
        size_t begin, end;
        TR_TRY(tr_matcher_find(&run->step->matcher, run->work, run->t->path, text, piece.length,
                               search, &found, &begin, &end));
        if (!found) break;
        TR_TRY(add_part(run, piece.at + at, begin - at, false));
        /* An empty match at the end of the one before does not count. */
        if (end > begin || begin > at || run->out->count == run->first)
            TR_TRY(add_part(run, piece.at + begin, end - begin, true));
        at = search = end;
        if (end > begin) continue;
        if (end >= piece.length) break;
        /* An empty match: the next search begins one character later. */
        search += tr_cp_escaped((const uint8_t *)text + end, (const uint8_t *)text + piece.length);
    }
    TR_TRY(add_part(run, piece.at + at, piece.length - at, false));
    remove_empty(run);
    return TR_OK;
}

/* Copies the pieces into a new text, each with `prefix` in front of it unless it begins with it,
 * and with every space replaced when `spaces` is not NULL. only_first: only a piece at the
 * beginning of the text gets the prefix; the first piece lies elsewhere when white space in front
 * of it was removed. goes_on: the first piece gets none. */
static tr_status rewrite(const tr_byte_list *text, const tr_fragment_list *pieces,
                         const char *prefix, bool only_first, bool goes_on, const char *spaces,
                         tr_byte_list *out_text, tr_fragment_list *out_pieces) {
    size_t space_bytes = spaces ? strlen(spaces) : 0;
    out_text->count = out_pieces->count = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const char *p = text->byte + pieces->piece[i].at;
        size_t length = pieces->piece[i].length, from = out_text->count;
        size_t prefix_bytes = strlen(prefix);
        bool begins = length >= prefix_bytes && !memcmp(p, prefix, prefix_bytes);
        if (spaces && *p == ' ' && prefix_bytes) begins = true; /* it becomes the prefix */
        if (prefix_bytes && !begins && !(only_first && pieces->piece[i].at > 0) && !(goes_on && !i))
            TR_TRY(tr_bytes_add(out_text, prefix, prefix_bytes));
        for (size_t j = 0; j < length; j++) {
            if (spaces && p[j] == ' ') TR_TRY(tr_bytes_add(out_text, spaces, space_bytes));
            else TR_TRY(tr_bytes_add(out_text, p + j, 1));
        }
        TR_TRY(add_piece(out_pieces, from, out_text->count - from));
    }
    return TR_OK;
}

static void swap_texts(tr_byte_list *a, tr_byte_list *b) {
    tr_byte_list c = *a;
    *a = *b;
    *b = c;
}

static void swap_pieces(tr_fragment_list *a, tr_fragment_list *b) {
    tr_fragment_list c = *a;
    *a = *b;
    *b = c;
}

tr_status tr_pretokenize(const tr_tokenizer *t, tr_match_work *work, tr_fragment_begin begin,
                         tr_byte_list *text, tr_byte_list *spare_text, tr_fragment_list *pieces,
                         tr_fragment_list *spare_pieces) {
    bool goes_on = begin == TR_GOES_ON || begin == TR_NEXT_PIECE;
    pieces->count = 0;
    if (text->count > 0) TR_TRY(add_piece(pieces, 0, text->count));
    for (int i = 0; i < t->step_count; i++) {
        const tr_pretokenize_step *step = &t->step[i];
        if (step->kind == TR_PRETOKENIZE_PREFIX_SPACE) {
            TR_TRY(rewrite(text, pieces, " ", false, goes_on, NULL, spare_text, spare_pieces));
            swap_texts(text, spare_text);
            swap_pieces(pieces, spare_pieces);
            continue;
        }
        if (step->kind == TR_PRETOKENIZE_METASPACE) {
            bool prepends = step->prepend == TR_PREPEND_ALWAYS ||
                            (step->prepend == TR_PREPEND_FIRST && begin == TR_BEGINS_TEXT);
            TR_TRY(rewrite(text, pieces, prepends ? step->matcher.literal : "",
                           step->prepend == TR_PREPEND_FIRST, goes_on, step->matcher.literal,
                           spare_text, spare_pieces));
            swap_texts(text, spare_text);
            swap_pieces(pieces, spare_pieces);
            if (!step->splits) continue;
        }
        split_run run = {
            .t = t, .work = work, .step = step, .text = text->byte, .out = spare_pieces};
        spare_pieces->count = 0;
        for (size_t j = 0; j < pieces->count; j++) TR_TRY(split_piece(&run, pieces->piece[j]));
        swap_pieces(pieces, spare_pieces);
        if (begin == TR_NEXT_PIECE) goes_on = false; /* the first piece is one of the whole text */
    }
    return TR_OK;
}
