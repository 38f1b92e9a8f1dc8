/* Tokenizers: text to token ids and back.
 *
 * A tokenizer is byte pair encoding (BPE) in a tokenizer.json (GPT-2, Llama, Qwen, and what
 * `trireme data train-bpe` writes), in GPT-2's vocab.json and merges.txt, or in a tiktoken rank
 * file. Ids equal those of the Python packages tokenizers and tiktoken; docs/data.md lists where
 * Unicode versions differ.
 *
 * An open tokenizer is constant: any number of threads may use it. Each thread encodes with its own
 * tr_encoder. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_tokenizer tr_tokenizer;
typedef struct tr_encoder tr_encoder;

/* Token ids that grow. Start with {0}; the owner frees `id` with free(). */
typedef struct tr_token_list {
    int32_t *id;
    size_t count, capacity;
} tr_token_list;

/* Bytes that grow. Start with {0}; the owner frees `byte` with free(). */
typedef struct tr_byte_list {
    char *byte;
    size_t count, capacity;
} tr_byte_list;

/* Append elements that are not in the list itself; fail with TR_ERR_FIT, and leave the list as it
 * is, without memory. tr_bytes_add leaves room for one more byte, such as a NUL. */
tr_status tr_tokens_add(tr_token_list *list, const int32_t *id, size_t count);
tr_status tr_bytes_add(tr_byte_list *list, const char *bytes, size_t length);

/* Opens a tokenizer: a tokenizer.json, a tiktoken rank file (gpt2, r50k, p50k, cl100k, o200k, Llama
 * 3, Qwen), or a folder with tokenizer.json, with vocab.json and merges.txt, or with a rank file
 * tokenizer.model or qwen.tiktoken. The caller closes *out.
 *
 * Fails with TR_ERR_NOFILE when the path does not exist, and with TR_ERR_DATA when the folder has
 * none of these files, or a file is damaged or of another kind (Unigram, WordPiece, SentencePiece's
 * protobuf); the sentence names the file and the position. */
tr_status tr_tokenizer_open(const char *path, tr_tokenizer **out);
/* Returns true when a folder has files that tr_tokenizer_open reads. */
bool tr_tokenizer_in(const char *folder);
/* Frees the tokenizer; NULL is allowed. */
void tr_tokenizer_close(tr_tokenizer *tokenizer);

/* Writes the tokenizer as a tokenizer.json: byte for byte the file that was opened, or one of the
 * same ids when that was a rank file or vocab.json and merges.txt. Writes PATH.tmp, also over that
 * of a process that was killed, and renames it: only one process may write `path`. Fails with
 * TR_ERR_IO. */
tr_status tr_tokenizer_save(const tr_tokenizer *tokenizer, const char *path);

/* Returns the largest id + 1: a model needs at least this vocabulary. */
int32_t tr_tokenizer_size(const tr_tokenizer *tokenizer);
/* Returns the XXH3 hash of the file that tr_tokenizer_save writes: equal files, equal tokens. */
uint64_t tr_tokenizer_hash(const tr_tokenizer *tokenizer);
/* Returns the path of the file that was opened. */
const char *tr_tokenizer_path(const tr_tokenizer *tokenizer);

/* Returns the id of the token that ends a document in training data; -1 when the tokenizer has
 * none. It is the first of these that exists: an added token <|endoftext|>, <|end_of_text|>, </s>,
 * <eos>, [EOS], <|eos|>, <｜end▁of▁sentence｜>; eos_token of tokenizer_config.json; eos_token_id of
 * generation_config.json; of config.json (files next to the one opened). */
int32_t tr_tokenizer_document_end(const tr_tokenizer *tokenizer);
/* Returns the number of ids that end a generated text, and sets *id to them (owned by the
 * tokenizer): eos_token_id of generation_config.json or config.json, eos_token of
 * tokenizer_config.json, and the document end. */
size_t tr_tokenizer_ends(const tr_tokenizer *tokenizer, const int32_t **id);
/* Returns the id of the token that is exactly this text; -1 when there is none. */
int32_t tr_tokenizer_find(const tr_tokenizer *tokenizer, const char *text);
/* Returns how many ids the post-processor puts before a text (Llama: <|begin_of_text|>), and sets
 * *id to them (owned by the tokenizer). */
size_t tr_tokenizer_prefix(const tr_tokenizer *tokenizer, const int32_t **id);

enum {
    /* A special token's text is ordinary text (--no-special); without it the text becomes the
     * token, as the reference does by default. Added tokens that are not special are always
     * found. */
    TR_ENCODE_NO_SPECIAL = 1,
    /* Adds the post-processor's ids before and after the text. */
    TR_ENCODE_TEMPLATE = 2,
    /* The text continues another one: nothing is put in front of it (Llama 2's space). */
    TR_ENCODE_CONTINUES = 4,
    /* With the flag before: the text begins with another piece, so what is put in front of every
     * piece is put in front of it. */
    TR_ENCODE_NEXT_PIECE = 8,
    /* The text follows a token that is not part of a text: a Metaspace of the scheme "first" puts
     * nothing in front of it. */
    TR_ENCODE_AFTER_TOKEN = 16,
};

/* Makes a thread's workspace for encoding, with a cache of at most 6 MiB. The tokenizer must
 * outlive it. */
tr_status tr_encoder_open(const tr_tokenizer *tokenizer, tr_encoder **out);
/* Frees the workspace; NULL is allowed. */
void tr_encoder_close(tr_encoder *encoder);

/* Appends the ids of text[length] to *out. Any bytes are allowed; a byte that is not part of valid
 * UTF-8 counts as a symbol of its own and keeps its value, so a byte-level tokenizer without a
 * normalizer decodes every text to the same bytes. A text is encoded as a whole: cutting it changes
 * the ids at the cut, except where tr_encoder_find_cut says.
 *
 * Fails with TR_ERR_DATA when the tokenizer's regular expression backtracks beyond a limit, and
 * with TR_ERR_FIT; *out then holds what was found so far. */
tr_status tr_encoder_add(tr_encoder *encoder, const char *text, size_t length, unsigned flags,
                         tr_token_list *out);

/* Finds a place in [from, length) where text[length], which more text may follow, can be cut: the
 * ids of text[*cut], and then those of the rest with the flags *rest (TR_ENCODE_CONTINUES, and
 * perhaps TR_ENCODE_NEXT_PIECE), are the ids of the whole. The text begins where a text begins or
 * was cut so. *cut is `length` when no such place was found. That the ids are the same follows from
 * the tokenizer's pattern (GPT-2, cl100k, Llama 3, Qwen, o200k), from Metaspace, or, where it does
 * not cut texts into pieces, from its merges. With other expressions both ways are tried on the
 * text around the place. Fails like tr_encoder_add. */
tr_status tr_encoder_find_cut(tr_encoder *encoder, const char *text, size_t length, size_t from,
                              unsigned flags, size_t *cut, unsigned *rest);

enum {
    TR_TOKENIZER_NO_SPECIAL = 1, /* leaves special tokens out */
    /* The ids continue a text: what the decoder removes at the start of a text (Llama 2's space)
     * stays. */
    TR_TOKENIZER_CONTINUES = 2,
};

/* Appends the bytes of the tokens to *out; their concatenation need not be valid UTF-8. An id that
 * the tokenizer does not have gives U+FFFD. Decoding one id at a time, with TR_TOKENIZER_CONTINUES
 * after the first, gives the same bytes. Fails with TR_ERR_FIT. */
tr_status tr_tokenizer_decode(const tr_tokenizer *tokenizer, const int32_t *id, size_t count,
                              unsigned flags, tr_byte_list *out);
