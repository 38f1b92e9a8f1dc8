/* Trains a byte-level BPE: the same tokens and merges as the trainer of the Python package
 * tokenizers for the same texts. */
#pragma once

#include "base/status.h"
#include "text/split_known.h"
#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tr_bpe_trainer tr_bpe_trainer;

/* Starts to count the pieces that `pattern` cuts texts into. */
tr_status tr_bpe_trainer_open(tr_pattern pattern, tr_bpe_trainer **out);
void tr_bpe_trainer_close(tr_bpe_trainer *trainer);
/* Returns where a text can be cut whatever follows it: its last part belongs to what follows. 0
 * when there is no such place. */
size_t tr_bpe_trainer_cut(const tr_bpe_trainer *trainer, const char *text, size_t length);
/* Counts the pieces of a text. Fails with TR_ERR_DATA when one has more than 16 MiB. */
tr_status tr_bpe_trainer_add(tr_bpe_trainer *trainer, const char *text, size_t length);
/* Returns the number of different pieces so far. */
size_t tr_bpe_trainer_pieces(const tr_bpe_trainer *trainer);
/* Returns about how many bytes of memory training will take for them. */
size_t tr_bpe_trainer_memory(const tr_bpe_trainer *trainer);

/* Merges the most frequent pairs until there are `vocab` tokens or no pair is left, calls
 * progress(context, tokens) every thousand tokens (NULL: not), and appends a tokenizer.json to
 * *json. Ids: the special tokens, the 256 bytes by the order of their characters, the merges. Of
 * pairs that are equally frequent the one with the smaller ids is merged first. *tokens: how many
 * there are. `vocab` is at least 256 + special_count. May be called once. */
tr_status tr_bpe_trainer_finish(tr_bpe_trainer *trainer, int32_t vocab, const char *const *special,
                                size_t special_count,
                                void (*progress)(void *context, int32_t tokens), void *context,
                                tr_byte_list *json, int32_t *tokens);
