/* Byte pair encoding: a vocabulary of byte strings, and merges of two neighbouring tokens into one.
 * A piece of text is cut into symbols (bytes or characters), and of the pairs of neighbours that a
 * merge exists for, the one of the lowest rank is merged, the leftmost first, until none is
 * left. */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TR_BPE_MAX_SIZE = 1 << 24 }; /* ids; a larger one is an error in the file */

typedef struct tr_bpe tr_bpe;
typedef struct tr_bpe_work tr_bpe_work;

/* How pieces become symbols. */
typedef struct tr_bpe_rules {
    bool byte_level;    /* every byte is a symbol; otherwise every character */
    bool ignore_merges; /* a piece that is a token is this token */
    bool byte_fallback; /* a character without a token becomes its bytes <0x00> to <0xFF> */
    bool fuse_unk;      /* unknown characters in a row give one unknown token */
    int32_t unk;        /* -1: unknown characters are left out */
} tr_bpe_rules;

/* Makes an empty model; `size` is the largest id + 1. The caller frees it. */
tr_status tr_bpe_open(int32_t size, tr_bpe **out);
void tr_bpe_close(tr_bpe *bpe);

/* Gives id its byte string; is_piece: pieces of text may become it. Each id at most once. Fails
 * with TR_ERR_DATA when the id has a string, or the string an id; the sentence has no position. */
tr_status tr_bpe_add_token(tr_bpe *bpe, int32_t id, const char *bytes, size_t length,
                           bool is_piece);
/* Merges (left, right) into the token of their concatenation, with the next rank; a pair that
 * occurs again gets the new rank. Fails with TR_ERR_DATA when the concatenation has no token. */
tr_status tr_bpe_add_merge(tr_bpe *bpe, int32_t left, int32_t right);
/* Adds, for each token, every pair of tokens that it is the concatenation of, with its id as rank:
 * what a rank file means. Takes time quadratic in the length of a token. */
tr_status tr_bpe_add_all_merges(tr_bpe *bpe);
/* Sets the rules and prepares the tokens of symbols, when all tokens are there. */
void tr_bpe_set_rules(tr_bpe *bpe, const tr_bpe_rules *rules);

const tr_bpe_rules *tr_bpe_rules_of(const tr_bpe *bpe);
int32_t tr_bpe_size(const tr_bpe *bpe);
/* Returns the id of a byte string, -1 when there is none. */
int32_t tr_bpe_find(const tr_bpe *bpe, const char *bytes, size_t length);
/* Returns the byte string of an id in [0, size) and its length; NULL when the id is not used. */
const char *tr_bpe_token(const tr_bpe *bpe, int32_t id, size_t *length);

/* Calls `see` for each merge in the order of ranks, of ids among equal ranks, until it fails. */
tr_status tr_bpe_each_merge(const tr_bpe *bpe,
                            tr_status (*see)(void *context, int32_t left, int32_t right),
                            void *context);

/* Makes a thread's workspace. The model must outlive it. */
tr_status tr_bpe_work_open(const tr_bpe *bpe, tr_bpe_work **out);
void tr_bpe_work_close(tr_bpe_work *work);
/* Sets *apart to whether no merge joins a text that ends with the character left[left_bytes] and
 * one that begins with right[right_bytes]: the ids of such a piece are those of its two parts. It
 * may be false for characters that nothing joins. The first call takes time that is linear in the
 * merges. */
tr_status tr_bpe_keeps_apart(tr_bpe_work *work, const uint8_t *left, size_t left_bytes,
                             const uint8_t *right, size_t right_bytes, bool *apart);
/* Appends the ids of one piece. Without byte_level, the surrogate of an invalid byte (unicode.h) is
 * that byte. Takes n log n time for n symbols. A long piece is encoded in parts that no merge
 * joins. */
tr_status tr_bpe_add_piece(tr_bpe_work *work, const uint8_t *piece, size_t length,
                           tr_token_list *out);
