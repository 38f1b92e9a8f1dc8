#include "text/bpe_impl.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t hash_bytes(const char *bytes, size_t length) {
    uint64_t hash = length * 0x9E3779B97F4A7C15u, word;
    for (; length >= 8; bytes += 8, length -= 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25u;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, bytes, length);
    return tr_bpe_mix(hash ^ word);
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

static tr_status grow_merges(tr_bpe *bpe) {
    size_t old = bpe->merges ? bpe->merge_mask + 1 : 0, places = old ? 2 * old : 4096;
    tr_bpe_merge *from = bpe->merges, *grown;
    TR_TRY(tr_calloc(places, sizeof *grown, &grown));
    memset(grown, 0xFF, places * sizeof *grown);
    bpe->merges = grown;
    bpe->merge_mask = places - 1;
    for (size_t i = 0; i < old; i++)
        if (from[i].rank != UINT32_MAX) *tr_bpe_place(bpe, from[i].left, from[i].right) = from[i];
    free(from);
    return TR_OK;
}

static tr_status put_merge(tr_bpe *bpe, tr_bpe_merge m) {
    if (!bpe->merges || 2 * bpe->merge_count > bpe->merge_mask) TR_TRY(grow_merges(bpe));
    tr_bpe_merge *place = tr_bpe_place(bpe, m.left, m.right);
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
    return put_merge(bpe, (tr_bpe_merge){left, right, bpe->next_rank++, id});
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
            if (right >= 0) TR_TRY(put_merge(bpe, (tr_bpe_merge){left, right, (uint32_t)id, id}));
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
    const tr_bpe_merge *x = a, *y = b;
    if (x->left != y->left) return x->left > y->left ? 1 : -1;
    return (x->right > y->right) - (x->right < y->right);
}

/* Makes an array of the merges by rank, then by ids; the caller frees it. */
static tr_status sort_merges(const tr_bpe *bpe, tr_bpe_merge **out) {
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
    tr_bpe_merge *sorted;
    TR_TRY(sort_merges(bpe, &sorted));
    tr_status status = TR_OK;
    for (size_t i = 0; i < bpe->merge_count && status == TR_OK; i++)
        status = see(context, sorted[i].left, sorted[i].right);
    free(sorted);
    return status;
}
