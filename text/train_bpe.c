#include "text/train_bpe.h"

#include "base/memory.h"
#include "text/bpe.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"
#include "text/write_json.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    LONGEST_PIECE = 1 << 24, /* bytes; no word of any text has as many */
    /* Measured: of one long piece 20 bytes for each byte, of words 150 for each word. */
    TAKES_BYTE = 20,
    TAKES_WORD = 150,
};

/* A different piece: its bytes, later its tokens, are at `start` of bytes or tokens. */
typedef struct word {
    size_t start;
    uint32_t length;
    int64_t count;
} word;

/* Numbers of words that contain a pair. */
typedef struct places {
    uint32_t *word;
    size_t count, capacity;
} places;

/* Two neighbouring tokens. */
typedef struct pair {
    int32_t left, right; /* left -1: a free place of the table */
    int64_t count;       /* its occurrences; after its merge no longer true */
    places fresh;        /* words that got it since it was last put into the heap */
} pair;

/* A pair in the heap with the words to look at. Its count may be out of date. */
typedef struct candidate {
    int64_t count;
    int32_t left, right;
    places places;
} candidate;

struct tr_bpe_trainer {
    tr_pattern pattern;
    uint8_t *cp_table;
    tr_byte_list bytes; /* of all words */
    word *words;
    size_t word_count, word_capacity;
    uint32_t *by_bytes; /* hash table of words + 1; 0: free */
    size_t word_mask;
    /* Training. */
    int32_t *tokens; /* of all words */
    pair *pairs;
    size_t pair_count, pair_mask;
    uint64_t *touched; /* pairs with fresh places: left << 32 | right */
    size_t touched_count, touched_capacity;
    candidate *heap;
    size_t heap_count, heap_capacity;
};

tr_status tr_bpe_trainer_open(tr_pattern pattern, tr_bpe_trainer **out) {
    tr_bpe_trainer *t;
    *out = NULL;
    TR_TRY(tr_calloc(1, sizeof *t, &t));
    t->pattern = pattern;
    t->word_mask = (1 << 16) - 1;
    tr_status status = tr_cp_table(&t->cp_table);
    if (status == TR_OK) status = tr_calloc(t->word_mask + 1, sizeof *t->by_bytes, &t->by_bytes);
    if (status == TR_OK) *out = t;
    else tr_bpe_trainer_close(t);
    return status;
}

void tr_bpe_trainer_close(tr_bpe_trainer *t) {
    if (!t) return;
    for (size_t i = 0; t->pairs && i <= t->pair_mask; i++) free(t->pairs[i].fresh.word);
    for (size_t i = 0; i < t->heap_count; i++) free(t->heap[i].places.word);
    free(t->cp_table);
    free(t->bytes.byte);
    free(t->words);
    free(t->by_bytes);
    free(t->tokens);
    free(t->pairs);
    free(t->touched);
    free(t->heap);
    free(t);
}

size_t tr_bpe_trainer_pieces(const tr_bpe_trainer *t) {
    return t->word_count;
}

size_t tr_bpe_trainer_memory(const tr_bpe_trainer *t) {
    return t->bytes.count * TAKES_BYTE + t->word_count * TAKES_WORD;
}

size_t tr_bpe_trainer_cut(const tr_bpe_trainer *t, const char *text, size_t length) {
    return tr_pattern_last_cut(t->pattern, t->cp_table, (const uint8_t *)text, length);
}

/* --- counting words --------------------------------------------------------------------------- */

static uint32_t *word_place(const tr_bpe_trainer *t, const uint8_t *piece, size_t length) {
    size_t at = XXH3_64bits(piece, length) & t->word_mask;
    for (; t->by_bytes[at]; at = (at + 1) & t->word_mask) {
        const word *w = &t->words[t->by_bytes[at] - 1];
        if (w->length == length && !memcmp(t->bytes.byte + w->start, piece, length)) break;
    }
    return &t->by_bytes[at];
}

static tr_status grow_table(tr_bpe_trainer *t) {
    size_t wanted = 2 * (t->word_mask + 1);
    free(t->by_bytes);
    t->by_bytes = NULL;
    TR_TRY(tr_calloc(wanted, sizeof *t->by_bytes, &t->by_bytes));
    t->word_mask = wanted - 1;
    for (size_t i = 0; i < t->word_count; i++)
        *word_place(t, (const uint8_t *)t->bytes.byte + t->words[i].start, t->words[i].length) =
            (uint32_t)i + 1;
    return TR_OK;
}

static tr_status count_word(tr_bpe_trainer *t, const uint8_t *piece, size_t length) {
    uint32_t *place = word_place(t, piece, length);
    if (*place) {
        t->words[*place - 1].count++;
        return TR_OK;
    }
    if (length > LONGEST_PIECE)
        return TR_FAIL(
            TR_ERR_DATA,
            "the text has a piece of %zu bytes that the pattern does not cut; a tokenizer "
            "is trained on pieces of up to %d bytes: leave this text out",
            length, LONGEST_PIECE);
    if (t->word_count >= UINT32_MAX / 2)
        return TR_FAIL(TR_ERR_DATA,
                       "the text has too many different pieces: train on a part of it");
    if (2 * t->word_count > t->word_mask) {
        TR_TRY(grow_table(t));
        place = word_place(t, piece, length);
    }
    TR_TRY(tr_grow(&t->words, &t->word_capacity, t->word_count + 1, sizeof *t->words));
    t->words[t->word_count] = (word){t->bytes.count, (uint32_t)length, 1};
    *place = (uint32_t)++t->word_count;
    return tr_bytes_add(&t->bytes, (const char *)piece, length);
}

tr_status tr_bpe_trainer_add(tr_bpe_trainer *t, const char *text, size_t length) {
    const uint8_t *p = (const uint8_t *)text, *end = p + length;
    while (p < end) {
        size_t bytes = tr_pattern_next(t->pattern, t->cp_table, p, end);
        TR_TRY(count_word(t, p, bytes));
        p += bytes;
    }
    return TR_OK;
}

/* --- pairs ------------------------------------------------------------------------------------ */

static pair *pair_place(const tr_bpe_trainer *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key = (key ^ key >> 32) * 0xD6E8FEB86659FD93u;
    size_t at = (key ^ key >> 32) & t->pair_mask;
    while (t->pairs[at].left >= 0 && (t->pairs[at].left != left || t->pairs[at].right != right))
        at = (at + 1) & t->pair_mask;
    return &t->pairs[at];
}

static tr_status make_pairs(tr_bpe_trainer *t, size_t count) {
    pair *old = t->pairs;
    size_t old_places = old ? t->pair_mask + 1 : 0;
    t->pairs = NULL;
    tr_status status = tr_calloc(count, sizeof *t->pairs, &t->pairs);
    if (status != TR_OK) {
        t->pairs = old;
        return status;
    }
    t->pair_mask = count - 1;
    for (size_t i = 0; i < count; i++) t->pairs[i].left = -1;
    for (size_t i = 0; i < old_places; i++)
        if (old[i].left >= 0) *pair_place(t, old[i].left, old[i].right) = old[i];
    free(old);
    return TR_OK;
}

/* Adds to the occurrences of a pair; is_new: word `number` got one. */
static tr_status change_pair(tr_bpe_trainer *t, int32_t left, int32_t right, int64_t change,
                             bool is_new, size_t number) {
    pair *p = pair_place(t, left, right);
    if (p->left < 0) {
        if (2 * t->pair_count > t->pair_mask) {
            TR_TRY(make_pairs(t, 2 * (t->pair_mask + 1)));
            p = pair_place(t, left, right);
        }
        t->pair_count++;
        p->left = left;
        p->right = right;
    }
    p->count += change;
    if (!is_new) return TR_OK;
    places *fresh = &p->fresh;
    if (!fresh->count) {
        TR_TRY(
            tr_grow(&t->touched, &t->touched_capacity, t->touched_count + 1, sizeof *t->touched));
        t->touched[t->touched_count++] = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    } else if (fresh->word[fresh->count - 1] == number) {
        return TR_OK;
    }
    TR_TRY(tr_grow(&fresh->word, &fresh->capacity, fresh->count + 1, sizeof *fresh->word));
    fresh->word[fresh->count++] = (uint32_t)number;
    return TR_OK;
}

/* --- the most frequent pair ------------------------------------------------------------------- */

static bool precedes(const candidate *a, const candidate *b) {
    if (a->count != b->count) return a->count > b->count;
    if (a->left != b->left) return a->left < b->left;
    return a->right < b->right;
}

static void sift_down(candidate *heap, size_t count) {
    candidate moving = heap[0];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && precedes(&heap[child + 1], &heap[child])) child++;
        if (!precedes(&heap[child], &moving)) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

static tr_status push(tr_bpe_trainer *t, const candidate *c) {
    TR_TRY(tr_grow(&t->heap, &t->heap_capacity, t->heap_count + 1, sizeof *t->heap));
    size_t at = t->heap_count++;
    for (; at && precedes(c, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = *c;
    return TR_OK;
}

/* Puts the pairs with fresh places into the heap. */
static tr_status push_touched(tr_bpe_trainer *t) {
    for (size_t i = 0; i < t->touched_count; i++) {
        pair *p =
            pair_place(t, (int32_t)(t->touched[i] >> 32), (int32_t)(t->touched[i] & UINT32_MAX));
        if (p->count > 0) {
            TR_TRY(push(t, &(candidate){p->count, p->left, p->right, p->fresh}));
        } else {
            free(p->fresh.word);
        }
        p->fresh = (places){0};
    }
    t->touched_count = 0;
    return TR_OK;
}

/* Takes the most frequent pair; returns false when none is left. The count of the first candidate
 * may be out of date; it then returns into the heap with the right one. */
static bool pop(tr_bpe_trainer *t, candidate *out) {
    while (t->heap_count) {
        candidate *first = &t->heap[0];
        int64_t count = pair_place(t, first->left, first->right)->count;
        if (first->count == count) {
            *out = *first;
            *first = t->heap[--t->heap_count];
            if (t->heap_count) sift_down(t->heap, t->heap_count);
            if (count > 0) return true;
            free(out->places.word);
            *out = (candidate){0};
            continue;
        }
        first->count = count;
        sift_down(t->heap, t->heap_count);
    }
    return false;
}

/* --- merging ---------------------------------------------------------------------------------- */

/* Replaces the pair by token `id` in one word, from left to right, and changes the neighbours'
 * pairs. */
static tr_status merge_word(tr_bpe_trainer *t, size_t number, int32_t left, int32_t right,
                            int32_t id) {
    word *w = &t->words[number];
    int32_t *token = t->tokens + w->start;
    uint32_t to = 0;
    for (uint32_t from = 0; from < w->length; from++, to++) {
        token[to] = token[from];
        if (token[from] != left || from + 1 == w->length || token[from + 1] != right) continue;
        token[to] = id;
        from++;
        if (to > 0) {
            TR_TRY(change_pair(t, token[to - 1], left, -w->count, false, number));
            TR_TRY(change_pair(t, token[to - 1], id, w->count, true, number));
        }
        if (from + 1 < w->length) {
            TR_TRY(change_pair(t, right, token[from + 1], -w->count, false, number));
            TR_TRY(change_pair(t, id, token[from + 1], w->count, true, number));
        }
    }
    w->length = to;
    return TR_OK;
}

/* Counts the pairs of all words. */
static tr_status count_pairs(tr_bpe_trainer *t, const int32_t of_byte[256]) {
    TR_TRY(tr_calloc(t->bytes.count, sizeof *t->tokens, &t->tokens));
    for (size_t i = 0; i < t->bytes.count; i++) t->tokens[i] = of_byte[(uint8_t)t->bytes.byte[i]];
    TR_TRY(make_pairs(t, 1 << 16));
    for (size_t i = 0; i < t->word_count; i++) {
        const word *w = &t->words[i];
        const int32_t *token = t->tokens + w->start;
        for (uint32_t j = 0; j + 1 < w->length; j++)
            TR_TRY(change_pair(t, token[j], token[j + 1], w->count, true, i));
    }
    return push_touched(t);
}

/* Adds the token of a merged pair unless it exists; *next: the next free id. */
static tr_status add_merged(tr_bpe *bpe, int32_t left, int32_t right, int32_t *next, int32_t *id) {
    size_t a, b;
    const char *x = tr_bpe_token(bpe, left, &a), *y = tr_bpe_token(bpe, right, &b);
    char *joined;
    TR_TRY(tr_calloc(a + b, 1, &joined));
    memcpy(joined, x, a);
    memcpy(joined + a, y, b);
    tr_status status = TR_OK;
    *id = tr_bpe_find(bpe, joined, a + b);
    if (*id < 0) {
        *id = (*next)++;
        status = tr_bpe_add_token(bpe, *id, joined, a + b, true);
    }
    free(joined);
    return status == TR_OK ? tr_bpe_add_merge(bpe, left, right) : status;
}

static tr_status merge_all(tr_bpe_trainer *t, tr_bpe *bpe, int32_t vocab, int32_t *next,
                           void (*progress)(void *context, int32_t tokens), void *context) {
    candidate best;
    while (*next < vocab && pop(t, &best)) {
        int32_t id = -1;
        tr_status status = add_merged(bpe, best.left, best.right, next, &id);
        for (size_t i = 0; i < best.places.count && status == TR_OK; i++)
            status = merge_word(t, best.places.word[i], best.left, best.right, id);
        free(best.places.word);
        TR_TRY(status);
        TR_TRY(push_touched(t));
        if (progress && *next % 1000 == 0) progress(context, *next);
    }
    return TR_OK;
}

/* Adds the special tokens and the bytes: printable ones first, as their characters are ordered. */
static tr_status add_first(tr_bpe *bpe, const char *const *special, size_t special_count,
                           int32_t of_byte[256], int32_t *next) {
    for (size_t i = 0; i < special_count; i++)
        TR_TRY(tr_bpe_add_token(bpe, (*next)++, special[i], strlen(special[i]), true));
    for (int shifted = 0; shifted < 2; shifted++)
        for (int b = 0; b < 256; b++) {
            uint8_t name[4];
            uint32_t cp;
            size_t bytes = tr_byte_char((uint8_t)b, name);
            (void)tr_utf8_next(name, name + bytes, &cp);
            if ((cp >= 0x100) != (bool)shifted) continue;
            of_byte[b] = (*next)++;
            TR_TRY(tr_bpe_add_token(bpe, of_byte[b], &(char){(char)b}, 1, true));
        }
    return TR_OK;
}

tr_status tr_bpe_trainer_finish(tr_bpe_trainer *t, int32_t vocab, const char *const *special,
                                size_t special_count,
                                void (*progress)(void *context, int32_t tokens), void *context,
                                tr_byte_list *json, int32_t *tokens) {
    tr_bpe *bpe;
    int32_t of_byte[256];
    tr_special_text *texts = NULL;
    *tokens = 0;
    TR_TRY(tr_bpe_open(vocab, &bpe));
    tr_status status;
    TR_TRY_OUT(tr_calloc(special_count, sizeof *texts, &texts));
    for (size_t i = 0; i < special_count; i++) texts[i] = (tr_special_text){special[i], (int32_t)i};
    TR_TRY_OUT(add_first(bpe, special, special_count, of_byte, tokens));
    TR_TRY_OUT(count_pairs(t, of_byte));
    TR_TRY_OUT(merge_all(t, bpe, vocab, tokens, progress, context));
    const tr_tokenizer_form form = {
        .pattern = t->pattern, .special = texts, .special_count = special_count};
    status = tr_write_tokenizer(json, bpe, &form);
out:
    free(texts);
    tr_bpe_close(bpe);
    return status;
}
