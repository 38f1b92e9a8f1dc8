/* The vocabulary and the merges of a byte pair encoding, for the files that fill them (bpe.c) and
 * encode by them (bpe_encode.c). */
#pragma once

#include "text/bpe.h"

/* A merge in the hash table; rank UINT32_MAX: a free place. */
typedef struct tr_bpe_merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id;
} tr_bpe_merge;

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
    tr_bpe_merge *merges;
    size_t merge_mask, merge_count;
    uint32_t next_rank;
    int32_t of_byte[256]; /* the token of a byte, or of <0xXX>; -1: none */
};

/* Returns a hash: each of its bits depends on every bit of x. */
static inline uint64_t tr_bpe_mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

static inline uint64_t tr_bpe_hash_pair(int32_t left, int32_t right) {
    return tr_bpe_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* Returns the place of the merge of two tokens in the hash table, or the free place where it
 * belongs. */
static inline tr_bpe_merge *tr_bpe_place(const tr_bpe *bpe, int32_t left, int32_t right) {
    size_t at = tr_bpe_hash_pair(left, right) & bpe->merge_mask;
    for (tr_bpe_merge *m;; at = (at + 1) & bpe->merge_mask) {
        m = &bpe->merges[at];
        if (m->rank == UINT32_MAX || (m->left == left && m->right == right)) return m;
    }
}
