#include "text/bpe.h"

#include "base/memory.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A merge in the hash table; rank UINT32_MAX: a free place. */
typedef struct merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} merge;

struct tr_bpe {
    int32_t size;
    tr_bpe_rules rules;
    /* Token id's bytes are byte[start[id]] to length[id]; start SIZE_MAX: not used. */
    size_t *start;
    uint32_t *length;
    tr_byte_list bytes;
    /* Hash tables with linear probing, at most half full: ids (-1: free) and merges. */
    int32_t *by_bytes;
    size_t token_mask;
    merge *merges;
    size_t merge_mask, merge_count;
    uint32_t next_rank;
    int32_t of_byte[256]; /* the token of a byte, or of <0xXX>; -1: none */
};

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

static inline uint64_t hash_bytes(const char *bytes, size_t length) {
    uint64_t hash = length * 0x9E3779B97F4A7C15u, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25u;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, bytes, length);
    return mix(hash ^ word);
}

static inline uint64_t hash_pair(int32_t left, int32_t right) {
    return mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

tr_status tr_bpe_open(int32_t size, tr_bpe **out) {
    tr_bpe *bpe;
    TR_TRY(tr_calloc(1, sizeof *bpe, &bpe));
    *out = bpe;
    tr_status status;
    size_t places = 16;
    while (places < 2 * (size_t)size) places *= 2;
    bpe->size = size;
    bpe->token_mask = places - 1;
    TR_TRY_OUT(tr_calloc((size_t)size, sizeof *bpe->start, &bpe->start));
    TR_TRY_OUT(tr_calloc((size_t)size, sizeof *bpe->length, &bpe->length));
    TR_TRY_OUT(tr_calloc(places, sizeof *bpe->by_bytes, &bpe->by_bytes));
    memset(bpe->start, 0xFF, (size_t)size * sizeof *bpe->start);
    memset(bpe->by_bytes, 0xFF, places * sizeof *bpe->by_bytes);
    return TR_OK;
out:
    tr_bpe_close(bpe);
    *out = NULL;
    return status;
}

void tr_bpe_close(tr_bpe *bpe) {
    if (!bpe) return;
    free(bpe->start);
    free(bpe->length);
    free(bpe->bytes.byte);
    free(bpe->by_bytes);
    free(bpe->merges);
    free(bpe);
}

const tr_bpe_rules *tr_bpe_rules_of(const tr_bpe *bpe) {
    return &bpe->rules;
}

int32_t tr_bpe_size(const tr_bpe *bpe) {
    return bpe->size;
}

const char *tr_bpe_token(const tr_bpe *bpe, int32_t id, size_t *length) {
    *length = 0;
    if (bpe->start[id] == SIZE_MAX) return NULL;
    *length = bpe->length[id];
    return bpe->bytes.byte + bpe->start[id];
}

/* Returns the place of a byte string in by_bytes, or the free place where it belongs. */
static inline size_t place_of(const tr_bpe *bpe, const char *bytes, size_t length) {
    size_t at = hash_bytes(bytes, length) & bpe->token_mask;
    for (; bpe->by_bytes[at] >= 0; at = (at + 1) & bpe->token_mask) {
        int32_t id = bpe->by_bytes[at];
        if (bpe->length[id] == length && !memcmp(bpe->bytes.byte + bpe->start[id], bytes, length))
            break;
    }
    return at;
}

int32_t tr_bpe_find(const tr_bpe *bpe, const char *bytes, size_t length) {
    return bpe->by_bytes[place_of(bpe, bytes, length)];
}

tr_status tr_bpe_add_token(tr_bpe *bpe, int32_t id, const char *bytes, size_t length,
                           bool is_piece) {
    if (bpe->start[id] != SIZE_MAX)
        return TR_FAIL(TR_ERR_DATA, "id %" PRId32 " is given to two tokens", id);
    if (length > UINT32_MAX / 2) return TR_FAIL(TR_ERR_DATA, "a token of 2 GiB or more");
    size_t at = place_of(bpe, bytes, length);
    if (is_piece && bpe->by_bytes[at] >= 0)
        return TR_FAIL(TR_ERR_DATA, "ids %" PRId32 " and %" PRId32 " are the same token",
                       bpe->by_bytes[at], id);
    TR_TRY(tr_grow(&bpe->bytes.byte, &bpe->bytes.capacity, bpe->bytes.count + length + 1, 1));
    memcpy(bpe->bytes.byte + bpe->bytes.count, bytes, length);
    bpe->start[id] = bpe->bytes.count;
    bpe->length[id] = (uint32_t)length;
    bpe->bytes.count += length;
    if (is_piece) bpe->by_bytes[at] = id;
    return TR_OK;
}

/* --- merges ----------------------------------------------------------------------------------- */

static inline merge *merge_place(const tr_bpe *bpe, int32_t left, int32_t right) {
    size_t at = hash_pair(left, right) & bpe->merge_mask;
    for (merge *m;; at = (at + 1) & bpe->merge_mask) {
        m = &bpe->merges[at];
        if (m->rank == UINT32_MAX || (m->left == left && m->right == right)) return m;
    }
}

static tr_status grow_merges(tr_bpe *bpe) {
    size_t old = bpe->merges ? bpe->merge_mask + 1 : 0, places = old ? 2 * old : 4096;
    merge *from = bpe->merges, *grown;
    TR_TRY(tr_calloc(places, sizeof *grown, &grown));
    memset(grown, 0xFF, places * sizeof *grown);
    bpe->merges = grown;
    bpe->merge_mask = places - 1;
    for (size_t i = 0; i < old; i++)
        if (from[i].rank != UINT32_MAX) *merge_place(bpe, from[i].left, from[i].right) = from[i];
    free(from);
    return TR_OK;
}

static tr_status put_merge(tr_bpe *bpe, merge m) {
    if (!bpe->merges || 2 * bpe->merge_count > bpe->merge_mask) TR_TRY(grow_merges(bpe));
    merge *place = merge_place(bpe, m.left, m.right);
    if (place->rank == UINT32_MAX) bpe->merge_count++;
    *place = m;
    return TR_OK;
}

tr_status tr_bpe_add_merge(tr_bpe *bpe, int32_t left, int32_t right) {
    size_t lengths[2] = {bpe->length[left], bpe->length[right]}, both = lengths[0] + lengths[1];
    char small[256], *joined = small;
    if (both > sizeof small) TR_TRY(tr_calloc(both, 1, &joined));
    memcpy(joined, bpe->bytes.byte + bpe->start[left], lengths[0]);
    memcpy(joined + lengths[0], bpe->bytes.byte + bpe->start[right], lengths[1]);
    int32_t id = tr_bpe_find(bpe, joined, both);
    if (joined != small) free(joined);
    if (id < 0)
        return TR_FAIL(TR_ERR_DATA,
                       "the merge of tokens %" PRId32 " and %" PRId32
                       " gives a text that is not in the vocabulary",
                       left, right);
    return put_merge(bpe, (merge){left, right, bpe->next_rank++, id});
}

tr_status tr_bpe_add_all_merges(tr_bpe *bpe) {
    for (int32_t id = 0; id < bpe->size; id++) {
        size_t length;
        const char *bytes = tr_bpe_token(bpe, id, &length);
        if (!bytes || tr_bpe_find(bpe, bytes, length) != id) continue;
        for (size_t cut = 1; cut < length; cut++) {
            int32_t left = tr_bpe_find(bpe, bytes, cut);
            if (left < 0) continue;
            int32_t right = tr_bpe_find(bpe, bytes + cut, length - cut);
            if (right >= 0) TR_TRY(put_merge(bpe, (merge){left, right, (uint32_t)id, id}));
        }
    }
    return TR_OK;
}

void tr_bpe_set_rules(tr_bpe *bpe, const tr_bpe_rules *rules) {
    bpe->rules = *rules;
    for (int b = 0; b < 256; b++) {
        char name[8] = {(char)b};
        int length = 1;
        if (!rules->byte_level) length = snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        bpe->of_byte[b] = tr_bpe_find(bpe, name, (size_t)length);
    }
}

static int by_ids(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->left != y->left) return x->left > y->left ? 1 : -1;
    return (x->right > y->right) - (x->right < y->right);
}

/* Makes an array of the merges by rank, then by ids; the caller frees it. */
static tr_status sort_merges(const tr_bpe *bpe, merge **out) {
    size_t *begin, ranks = 0; /* begin[rank + 1]: where the next merge of a rank belongs */
    for (size_t i = 0; i <= bpe->merge_mask; i++)
        if (bpe->merges[i].rank != UINT32_MAX && bpe->merges[i].rank >= ranks)
            ranks = (size_t)bpe->merges[i].rank + 1;
    *out = NULL;
    TR_TRY(tr_calloc(ranks + 2, sizeof *begin, &begin));
    tr_status status = tr_calloc(bpe->merge_count, sizeof **out, out);
    for (size_t i = 0; i <= bpe->merge_mask && status == TR_OK; i++)
        if (bpe->merges[i].rank != UINT32_MAX) begin[(size_t)bpe->merges[i].rank + 2]++;
    for (size_t rank = 1; rank <= ranks; rank++) begin[rank + 1] += begin[rank];
    for (size_t i = 0; i <= bpe->merge_mask && status == TR_OK; i++)
        if (bpe->merges[i].rank != UINT32_MAX)
            (*out)[begin[(size_t)bpe->merges[i].rank + 1]++] = bpe->merges[i];
    for (size_t rank = 0; rank < ranks && status == TR_OK; rank++)
        if (begin[rank + 1] - begin[rank] > 1)
            qsort(*out + begin[rank], begin[rank + 1] - begin[rank], sizeof **out, by_ids);
    free(begin);
    return status;
}

tr_status tr_bpe_each_merge(const tr_bpe *bpe,
                            tr_status (*see)(void *context, int32_t left, int32_t right),
                            void *context) {
    if (!bpe->merge_count) return TR_OK;
    merge *sorted;
    TR_TRY(sort_merges(bpe, &sorted));
    tr_status status = TR_OK;
    for (size_t i = 0; i < bpe->merge_count && status == TR_OK; i++)
        status = see(context, sorted[i].left, sorted[i].right);
    free(sorted);
    return status;
}

/* --- encoding --------------------------------------------------------------------------------- */

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
    uint32_t rank; /* of the pair with the next symbol; UINT32_MAX: no merge */
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
    const merge *m = merge_place(bpe, left, right);
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
    const uint64_t bit = hash_pair(left, right) >> (64 - PAIR_BITS);
    work->pairs[bit / 64] |= (uint64_t)1 << bit % 64;
}

/* Puts the pairs of symbols between which a merge may happen into work->pairs. An operand of a
 * merge is a symbol itself (a byte's <0x..>, the unknown token), or made of its characters'
 * symbols. */
static tr_status collect_pairs(tr_bpe_work *work) {
    const tr_bpe *bpe = work->bpe;
    TR_TRY(tr_calloc((size_t)1 << (PAIR_BITS - 6), sizeof *work->pairs, &work->pairs));
    for (size_t i = 0; bpe->merges && i <= bpe->merge_mask; i++) {
        const merge *m = &bpe->merges[i];
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
    const uint64_t bit = hash_pair(a, b) >> (64 - PAIR_BITS);
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
    uint64_t hash = mix(key[0] ^ (key[1] * 0x9E3779B97F4A7C15u) ^ (key[2] * 0xC2B2AE3D27D4EB4Fu) ^
                        length << 56);
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
