#include "base/memory.h"
#include "text/bpe_impl.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* Pieces of at most this many bytes and ids are kept: one entry is a cache line of 64 bytes. */
    KEPT_BYTES = 24,
    KEPT_IDS = 9,
    KEPT = 1 << 16,
    SEEN_BITS = 10, /* of the characters that were looked up */
    SEEN = 1 << SEEN_BITS,
    /* Up to this many symbols a search through all pairs beats the heap. */
    FEW = 48,
    /* A piece with more bytes is encoded in parts, where merges cannot join them: most parts are
     * words that were encoded before. Shorter ones are not worth the search for the pairs. */
    LONG_PIECE = 512,
    PAIR_BITS = 22, /* of the set of pairs: a few percent of it with 128,000 merges */
};

/* The ids of a piece that was encoded before. */
typedef struct kept {
    uint64_t key[KEPT_BYTES / 8]; /* padded with zeros */
    uint8_t length, count;        /* length 0: empty */
    int32_t id[KEPT_IDS];
} kept;
_Static_assert(sizeof(kept) == 64, "an entry is one cache line");

/* A symbol of a long piece; a chain by index. */
typedef struct symbol {
    int32_t id; /* -1: merged into the one before it */
    uint32_t before, after;
    uint32_t rank; /* of the pair with the next symbol; UINT32_MAX: no tr_bpe_merge */
    int32_t merged;
} symbol;

/* The token of a character that was looked up before. */
typedef struct seen {
    uint64_t key; /* its bytes and their number; 0: empty */
    int32_t id;   /* -1: none */
} seen;

/* The first and the last symbol of a character; -1: it has none, or may be one with its
 * neighbour. */
typedef struct ends {
    int32_t first, last;
} ends;

struct tr_bpe_work {
    const tr_bpe *bpe;
    kept *cache;
    tr_token_list symbols;
    symbol *chain;
    uint64_t *heap;  /* rank << 32 | index of the left symbol; the smallest is first */
    uint64_t *pairs; /* bits: hashes of the pairs that a merge joins; NULL: not made yet */
    seen character[SEEN];
    size_t chain_capacity, heap_capacity, heap_count;
};

enum { NOWHERE = UINT32_MAX >> 1 };

tr_status tr_bpe_work_open(const tr_bpe *bpe, tr_bpe_work **out) {
    TR_TRY(tr_calloc(1, sizeof **out, out));
    (*out)->bpe = bpe;
    tr_status status = tr_calloc(KEPT, sizeof *(*out)->cache, &(*out)->cache);
    if (status == TR_OK) return TR_OK;
    free(*out);
    *out = NULL;
    return status;
}

void tr_bpe_work_close(tr_bpe_work *work) {
    if (!work) return;
    free(work->cache);
    free(work->symbols.id);
    free(work->chain);
    free(work->heap);
    free(work->pairs);
    free(work);
}

static inline tr_status add_id(tr_token_list *list, int32_t id) {
    if (list->count == list->capacity)
        TR_TRY(tr_grow(&list->id, &list->capacity, list->count + 1, sizeof *list->id));
    list->id[list->count++] = id;
    return TR_OK;
}

/* Appends a character that is not a token: its bytes, or the unknown token. *unknown is the unknown
 * token that is not appended yet, -1 for none, because more characters may join it. */
static tr_status add_unknown(const tr_bpe *bpe, const uint8_t *p, size_t bytes, int32_t *unknown,
                             tr_token_list *out) {
    bool falls_back = bpe->rules.byte_fallback;
    for (size_t i = 0; i < bytes && falls_back; i++) falls_back = bpe->of_byte[p[i]] >= 0;
    if (falls_back) {
        for (size_t i = 0; i < bytes; i++) TR_TRY(add_id(out, bpe->of_byte[p[i]]));
        return TR_OK;
    }
    if (bpe->rules.unk < 0) return TR_OK;
    if (*unknown >= 0 && !bpe->rules.fuse_unk) TR_TRY(add_id(out, *unknown));
    *unknown = bpe->rules.unk;
    return TR_OK;
}

/* Returns the token of a character of at most 4 bytes, -1 when there is none. */
static inline int32_t find_character(tr_bpe_work *work, const uint8_t *p, size_t bytes) {
    uint64_t key = (uint64_t)bytes << 32;
    for (size_t i = 0; i < bytes; i++) key |= (uint64_t)p[i] << 8 * i;
    seen *place = &work->character[key * 0x9E3779B97F4A7C15u >> (64 - SEEN_BITS)];
    if (place->key != key) *place = (seen){key, tr_bpe_find(work->bpe, (const char *)p, bytes)};
    return place->id;
}

/* Fills `out` with the symbols of a piece. */
static tr_status cut_symbols(tr_bpe_work *work, const uint8_t *piece, size_t length,
                             tr_token_list *out) {
    const tr_bpe *bpe = work->bpe;
    out->count = 0;
    TR_TRY(tr_grow(&out->id, &out->capacity, length, sizeof *out->id));
    int32_t unknown = -1;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        const uint8_t *p = piece + at;
        uint8_t invalid;
        int32_t id;
        if (bpe->rules.byte_level) {
            bytes = 1;
            id = bpe->of_byte[*p];
        } else {
            uint32_t cp;
            bytes = tr_utf8_next(p, piece + length, &cp);
            /* ED B2 or ED B3: the surrogate that stands for an invalid byte. */
            if (cp == TR_CP_INVALID + 0xED && length - at >= 3 && p[1] >= 0xB2) {
                invalid = (uint8_t)(p[1] << 6 | (p[2] & 0x3F));
                TR_TRY(add_unknown(bpe, &invalid, 1, &unknown, out));
                bytes = 3;
                continue;
            }
            id = find_character(work, p, bytes);
        }
        if (id < 0) {
            TR_TRY(add_unknown(bpe, p, bytes, &unknown, out));
            continue;
        }
        if (unknown >= 0) TR_TRY(add_id(out, unknown));
        unknown = -1;
        TR_TRY(add_id(out, id));
    }
    return unknown >= 0 ? add_id(out, unknown) : TR_OK;
}

static inline uint32_t rank_of(const tr_bpe *bpe, int32_t left, int32_t right, int32_t *id) {
    if (!bpe->merges) return UINT32_MAX;
    const tr_bpe_merge *m = tr_bpe_place(bpe, left, right);
    *id = m->id;
    return m->rank;
}

/* Merges at most FEW symbols and returns how many are left. */
static size_t merge_few(const tr_bpe *bpe, int32_t *id, size_t count) {
    uint32_t rank[FEW];
    int32_t merged[FEW];
    for (size_t i = 0; i + 1 < count; i++) rank[i] = rank_of(bpe, id[i], id[i + 1], &merged[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        id[best] = merged[best];
        count--;
        memmove(id + best + 1, id + best + 2, (count - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (count - best - 1) * sizeof *rank);
        memmove(merged + best, merged + best + 1, (count - best - 1) * sizeof *merged);
        if (best) rank[best - 1] = rank_of(bpe, id[best - 1], id[best], &merged[best - 1]);
        if (best + 1 < count) rank[best] = rank_of(bpe, id[best], id[best + 1], &merged[best]);
    }
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t moving = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moving) break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

/* Computes the rank of the pair at `at` and puts it into the heap. */
static tr_status push_pair(tr_bpe_work *work, uint32_t at) {
    symbol *s = &work->chain[at];
    s->rank = UINT32_MAX;
    if (s->after == NOWHERE) return TR_OK;
    s->rank = rank_of(work->bpe, s->id, work->chain[s->after].id, &s->merged);
    if (s->rank == UINT32_MAX) return TR_OK;
    TR_TRY(tr_grow(&work->heap, &work->heap_capacity, work->heap_count + 1, sizeof *work->heap));
    size_t i = work->heap_count++;
    uint64_t entry = (uint64_t)s->rank << 32 | at;
    for (; i && work->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        work->heap[i] = work->heap[(i - 1) / 2];
    work->heap[i] = entry;
    return TR_OK;
}

static tr_status start_chain(tr_bpe_work *work) {
    size_t count = work->symbols.count;
    TR_TRY(tr_grow(&work->chain, &work->chain_capacity, count, sizeof *work->chain));
    TR_TRY(tr_grow(&work->heap, &work->heap_capacity, count, sizeof *work->heap));
    work->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        symbol *s = &work->chain[i];
        *s = (symbol){.id = work->symbols.id[i],
                      .before = i ? (uint32_t)i - 1 : NOWHERE,
                      .after = i + 1 < count ? (uint32_t)i + 1 : NOWHERE,
                      .rank = UINT32_MAX};
        if (i + 1 == count) break;
        s->rank = rank_of(work->bpe, s->id, work->symbols.id[i + 1], &s->merged);
        if (s->rank != UINT32_MAX) work->heap[work->heap_count++] = (uint64_t)s->rank << 32 | i;
    }
    for (size_t i = work->heap_count / 2; i-- > 0;) sift_down(work->heap, work->heap_count, i);
    return TR_OK;
}

/* Merges any number of symbols, and appends what is left. An entry of the heap is out of date when
 * its symbol has another rank by now. */
static tr_status merge_many(tr_bpe_work *work, tr_token_list *out) {
    TR_TRY(start_chain(work));
    while (work->heap_count) {
        uint64_t entry = work->heap[0];
        work->heap[0] = work->heap[--work->heap_count];
        if (work->heap_count) sift_down(work->heap, work->heap_count, 0);
        uint32_t at = (uint32_t)entry;
        symbol *s = &work->chain[at];
        if (s->id < 0 || s->rank != entry >> 32) continue;
        symbol *gone = &work->chain[s->after];
        s->id = s->merged;
        s->after = gone->after;
        gone->id = -1;
        if (s->after != NOWHERE) work->chain[s->after].before = at;
        TR_TRY(push_pair(work, at));
        if (s->before != NOWHERE) TR_TRY(push_pair(work, s->before));
    }
    for (uint32_t at = 0; at != NOWHERE; at = work->chain[at].after)
        TR_TRY(add_id(out, work->chain[at].id));
    return TR_OK;
}

/* --- where merges cannot join two parts ------------------------------------------------------- */

/* Returns the symbol at an end of a token: of its first character, or of its last. */
static int32_t symbol_at_end(const tr_bpe *bpe, int32_t id, bool last) {
    size_t length, bytes = 1;
    const char *text = tr_bpe_token(bpe, id, &length);
    uint32_t cp;
    if (!text || !length) return id;
    const uint8_t *p = (const uint8_t *)text, *end = p + length;
    if (bpe->rules.byte_level) return bpe->of_byte[last ? end[-1] : p[0]];
    if (!last) bytes = tr_utf8_next(p, end, &cp);
    for (size_t back = 4; last && back > 1; back--)
        if (back <= length && tr_utf8_next(end - back, end, &cp) == back) {
            bytes = back;
            break;
        }
    return tr_bpe_find(bpe, last ? (const char *)end - bytes : text, bytes);
}

static void put_pair(tr_bpe_work *work, int32_t left, int32_t right) {
    const uint64_t bit = tr_bpe_hash_pair(left, right) >> (64 - PAIR_BITS);
    work->pairs[bit / 64] |= (uint64_t)1 << bit % 64;
}

/* Returns true for a token <0x00> to <0xFF> that stands for a byte. */
static bool is_byte(const tr_bpe *bpe, int32_t id) {
    size_t length;
    const char *text = tr_bpe_token(bpe, id, &length);
    if (bpe->rules.byte_level || length != 6 || memcmp(text, "<0x", 3) != 0) return false;
    for (int b = 0; b < 256; b++)
        if (bpe->of_byte[b] == id) return true;
    return false;
}

static inline ends ends_of(tr_bpe_work *work, const uint8_t *p, size_t bytes) {
    const tr_bpe *bpe = work->bpe;
    const ends edge = {bpe->of_byte[p[0]], bpe->of_byte[p[bytes - 1]]};
    if (bpe->rules.byte_level) return edge;
    const int32_t id = find_character(work, p, bytes);
    bool falls_back = id < 0 && bpe->rules.byte_fallback;
    for (size_t i = 0; i < bytes && falls_back; i++) falls_back = bpe->of_byte[p[i]] >= 0;
    return falls_back ? edge : (ends){id, id};
}

/* Returns true when an unknown token may come behind the bytes of characters that follow it
 * (add_unknown): some characters become bytes, and others have none. */
static bool unknown_waits(const tr_bpe *bpe) {
    bool all = true;
    for (int b = 0; b < 256; b++) all = all && bpe->of_byte[b] >= 0;
    return bpe->rules.byte_fallback && bpe->rules.unk >= 0 && !all;
}

/* Puts the pairs of symbols between which a merge may happen into work->pairs. An operand of a
 * merge is made of its characters' symbols, or is a symbol that stands for other text: the unknown
 * token. Where bytes are merged, or unknown tokens wait, any pair may be joined. */
static tr_status collect_pairs(tr_bpe_work *work) {
    const tr_bpe *bpe = work->bpe;
    const size_t words = (size_t)1 << (PAIR_BITS - 6);
    bool any = unknown_waits(bpe);
    TR_TRY(tr_calloc(words, sizeof *work->pairs, &work->pairs));
    for (size_t i = 0; bpe->merges && i <= bpe->merge_mask && !any; i++) {
        const tr_bpe_merge *m = &bpe->merges[i];
        if (m->rank == UINT32_MAX) continue;
        any = is_byte(bpe, m->left) || is_byte(bpe, m->right);
        const int32_t left[] = {m->left, symbol_at_end(bpe, m->left, true)};
        const int32_t right[] = {m->right, symbol_at_end(bpe, m->right, false)};
        for (int k = 0; k < 4; k++) put_pair(work, left[k / 2], right[k % 2]);
    }
    if (any) memset(work->pairs, 0xFF, words * sizeof *work->pairs);
    return TR_OK;
}

/* Returns false when a merge may join two symbols; unknown ones (-1) may join each other. */
static inline bool are_apart(const tr_bpe_work *work, int32_t left, int32_t right) {
    if (left < 0 || right < 0) return false;
    const uint64_t bit = tr_bpe_hash_pair(left, right) >> (64 - PAIR_BITS);
    return !(work->pairs[bit / 64] >> bit % 64 & 1);
}

tr_status tr_bpe_keeps_apart(tr_bpe_work *work, const uint8_t *left, size_t left_bytes,
                             const uint8_t *right, size_t right_bytes, bool *apart) {
    *apart = false;
    if (!work->pairs) TR_TRY(collect_pairs(work));
    *apart = are_apart(work, ends_of(work, left, left_bytes).last,
                       ends_of(work, right, right_bytes).first);
    return TR_OK;
}

/* Returns the bytes of the first symbols of a piece that no merge joins to the next one: all of
 * them when there is no such place. work->pairs are made. */
static size_t first_part(tr_bpe_work *work, const uint8_t *piece, size_t length) {
    const bool byte_level = work->bpe->rules.byte_level;
    const uint8_t *end = piece + length;
    int32_t left = -1;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        const uint8_t *p = piece + at;
        bytes = byte_level || *p < 0x80 ? 1 : tr_cp_escaped(p, end);
        const ends edge = ends_of(work, p, bytes);
        if (are_apart(work, left, edge.first)) return at;
        left = edge.last;
    }
    return length;
}

/* --- pieces ----------------------------------------------------------------------------------- */

static tr_status encode_part(tr_bpe_work *work, const uint8_t *piece, size_t length,
                             tr_token_list *out) {
    const tr_bpe *bpe = work->bpe;
    if (length >= NOWHERE)
        return TR_FAIL(TR_ERR_DATA, "a text without a place to cut it, of 2 GiB or more, cannot be "
                                    "encoded: divide the document");
    TR_TRY(cut_symbols(work, piece, length, &work->symbols));
    if (!work->symbols.count) return TR_OK;
    if (work->symbols.count > FEW) return merge_many(work, out);
    size_t count = merge_few(bpe, work->symbols.id, work->symbols.count);
    return tr_tokens_add(out, work->symbols.id, count);
}

/* Encodes a piece of at most KEPT_BYTES, or a part of one, or takes the ids that it had before. */
static tr_status add_short(tr_bpe_work *work, const uint8_t *piece, size_t length,
                           tr_token_list *out) {
    const tr_bpe *bpe = work->bpe;
    uint64_t key[KEPT_BYTES / 8] = {0};
    memcpy(key, piece, length);
    uint64_t hash = tr_bpe_mix(key[0] ^ (key[1] * 0x9E3779B97F4A7C15u) ^
                               (key[2] * 0xC2B2AE3D27D4EB4Fu) ^ length << 56);
    kept *place = &work->cache[hash & (KEPT - 1)];
    if (place->length == length && place->key[0] == key[0] && place->key[1] == key[1] &&
        place->key[2] == key[2]) {
        if (out->capacity - out->count < KEPT_IDS)
            TR_TRY(tr_grow(&out->id, &out->capacity, out->count + KEPT_IDS, sizeof *out->id));
        memcpy(out->id + out->count, place->id, sizeof place->id);
        out->count += place->count;
        return TR_OK;
    }
    size_t before = out->count;
    const int32_t id =
        bpe->rules.ignore_merges ? tr_bpe_find(bpe, (const char *)piece, length) : -1;
    TR_TRY(id >= 0 ? add_id(out, id) : encode_part(work, piece, length, out));
    size_t count = out->count - before;
    if (count > KEPT_IDS) return TR_OK;
    memcpy(place->key, key, sizeof key);
    if (count) memcpy(place->id, out->id + before, count * sizeof *place->id);
    place->length = (uint8_t)length;
    place->count = (uint8_t)count;
    return TR_OK;
}

tr_status tr_bpe_add_piece(tr_bpe_work *work, const uint8_t *piece, size_t length,
                           tr_token_list *out) {
    const bool ignores = work->bpe->rules.ignore_merges;
    if (!length) return TR_OK;
    if (length <= KEPT_BYTES) return add_short(work, piece, length, out);
    const int32_t id = ignores ? tr_bpe_find(work->bpe, (const char *)piece, length) : -1;
    if (id >= 0) return add_id(out, id);
    if (length <= LONG_PIECE) return encode_part(work, piece, length, out);
    if (!work->pairs) TR_TRY(collect_pairs(work));
    for (size_t part; length > 0; piece += part, length -= part) {
        part = first_part(work, piece, length);
        /* With ignore_merges a piece that is a token has other ids than a part. */
        TR_TRY(part <= KEPT_BYTES && !ignores ? add_short(work, piece, part, out)
                                              : encode_part(work, piece, part, out));
    }
    return TR_OK;
}
