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
    /* Up to this many symbols a search through all pairs beats the heap. */
    FEW = 48,
    /* A piece with more bytes is encoded in parts, since a symbol takes 32 bytes of workspace. */
    LONG_PIECE = 1 << 16,
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

struct tr_bpe_work {
    const tr_bpe *bpe;
    kept *cache;
    tr_token_list symbols;
    symbol *chain;
    uint64_t *heap; /* rank << 32 | index of the left symbol; the smallest is first */
    uint64_t
        *pairs; /* bits: hashes of the pairs of symbols that a merge joins; NULL: not made yet */
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

/* Fills `out` with the symbols of a piece. */
static tr_status cut_symbols(const tr_bpe *bpe, const uint8_t *piece, size_t length,
                             tr_token_list *out) {
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
            id = tr_bpe_find(bpe, (const char *)p, bytes);
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

/* Puts the pairs of symbols between which a merge may happen into work->pairs. An operand of a
 * merge is a symbol itself (a byte's <0x..>, the unknown token), or made of its characters'
 * symbols. */
static tr_status collect_pairs(tr_bpe_work *work) {
    const tr_bpe *bpe = work->bpe;
    TR_TRY(tr_calloc((size_t)1 << (PAIR_BITS - 6), sizeof *work->pairs, &work->pairs));
    for (size_t i = 0; bpe->merges && i <= bpe->merge_mask; i++) {
        const tr_bpe_merge *m = &bpe->merges[i];
        if (m->rank == UINT32_MAX) continue;
        const int32_t left[] = {m->left, symbol_at_end(bpe, m->left, true)};
        const int32_t right[] = {m->right, symbol_at_end(bpe, m->right, false)};
        for (int k = 0; k < 4; k++) put_pair(work, left[k / 2], right[k % 2]);
    }
    return TR_OK;
}

/* Returns the last symbol of a character, or the first; -1 when it has none. */
static int32_t edge_of(const tr_bpe *bpe, const uint8_t *p, size_t bytes, bool last) {
    const int32_t edge = bpe->of_byte[last ? p[bytes - 1] : p[0]];
    if (bpe->rules.byte_level) return edge;
    const int32_t id = tr_bpe_find(bpe, (const char *)p, bytes);
    bool falls_back = bpe->rules.byte_fallback;
    for (size_t i = 0; i < bytes && falls_back; i++) falls_back = bpe->of_byte[p[i]] >= 0;
    return id < 0 && falls_back ? edge : id;
}

tr_status tr_bpe_keeps_apart(tr_bpe_work *work, const uint8_t *left, size_t left_bytes,
                             const uint8_t *right, size_t right_bytes, bool *apart) {
    *apart = false;
    if (!work->pairs) TR_TRY(collect_pairs(work));
    const int32_t a = edge_of(work->bpe, left, left_bytes, true);
    const int32_t b = edge_of(work->bpe, right, right_bytes, false);
    if (a < 0 || b < 0) return TR_OK; /* unknown characters may join each other */
    const uint64_t bit = tr_bpe_hash_pair(a, b) >> (64 - PAIR_BITS);
    *apart = !(work->pairs[bit / 64] >> bit % 64 & 1);
    return TR_OK;
}

/* Returns the first place behind byte `from` of a piece between two characters that no merge joins;
 * the piece's length when there is none. */
static tr_status find_parting(tr_bpe_work *work, const uint8_t *piece, size_t length, size_t from,
                              size_t *cut) {
    const uint8_t *end = piece + length;
    uint32_t cp;
    for (*cut = length; from > 0 && from < length && (piece[from] & 0xC0) == 0x80;) from--;
    for (size_t at = from, next; at < length; at = next) {
        bool apart;
        next = at + (work->bpe->rules.byte_level ? 1 : tr_utf8_next(piece + at, end, &cp));
        if (next >= length) return TR_OK;
        const size_t after = work->bpe->rules.byte_level ? 1 : tr_utf8_next(piece + next, end, &cp);
        TR_TRY(tr_bpe_keeps_apart(work, piece + at, next - at, piece + next, after, &apart));
        if (!apart) continue;
        *cut = next;
        return TR_OK;
    }
    return TR_OK;
}

static tr_status encode_part(tr_bpe_work *work, const uint8_t *piece, size_t length,
                             tr_token_list *out) {
    const tr_bpe *bpe = work->bpe;
    if (length >= NOWHERE)
        return TR_FAIL(TR_ERR_DATA, "a text without a place to cut it, of 2 GiB or more, cannot be "
                                    "encoded: divide the document");
    TR_TRY(cut_symbols(bpe, piece, length, &work->symbols));
    if (!work->symbols.count) return TR_OK;
    if (work->symbols.count > FEW) return merge_many(work, out);
    size_t count = merge_few(bpe, work->symbols.id, work->symbols.count);
    TR_TRY(tr_grow(&out->id, &out->capacity, out->count + count, sizeof *out->id));
    memcpy(out->id + out->count, work->symbols.id, count * sizeof *out->id);
    out->count += count;
    return TR_OK;
}

static tr_status encode(tr_bpe_work *work, const uint8_t *piece, size_t length,
                        tr_token_list *out) {
    if (work->bpe->rules.ignore_merges) {
        int32_t id = tr_bpe_find(work->bpe, (const char *)piece, length);
        if (id >= 0) return add_id(out, id);
    }
    while (length > LONG_PIECE) {
        size_t part;
        TR_TRY(find_parting(work, piece, length, LONG_PIECE, &part));
        TR_TRY(encode_part(work, piece, part, out));
        piece += part;
        length -= part;
    }
    return length ? encode_part(work, piece, length, out) : TR_OK;
}

tr_status tr_bpe_add_piece(tr_bpe_work *work, const uint8_t *piece, size_t length,
                           tr_token_list *out) {
    if (!length) return TR_OK;
    if (length > KEPT_BYTES) return encode(work, piece, length, out);
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
    TR_TRY(encode(work, piece, length, out));
    size_t count = out->count - before;
    if (count > KEPT_IDS) return TR_OK;
    memcpy(place->key, key, sizeof key);
    if (count) memcpy(place->id, out->id + before, count * sizeof *place->id);
    place->length = (uint8_t)length;
    place->count = (uint8_t)count;
    return TR_OK;
}
