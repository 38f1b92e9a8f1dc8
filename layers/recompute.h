/* Which tensors of a block I and W build again instead of reading what F kept: the key
 * train.recompute. Every rank parses the same text. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* In the order of their costs, and of what they save. */
typedef enum tr_recompute {
    TR_RECOMPUTE_NONE,      /* F keeps all that I and W read */
    TR_RECOMPUTE_SELECTIVE, /* outputs of norms and of the MLP's activation are built again */
    TR_RECOMPUTE_FULL,      /* F keeps only the block's input */
    TR_RECOMPUTE_MODES
} tr_recompute;

/* The value of train.recompute for which the planner chooses (partition/recompute_choice.h). */
#define TR_RECOMPUTE_AUTO "auto"
enum { TR_RECOMPUTE_TEXT = 4096 };

/* Returns "none", "selective" or "full". */
const char *tr_recompute_name(tr_recompute mode);

/* Returns what the text says of block `block`; the text passes tr_recompute_check. A mode is for
 * all blocks. A list has items MODE:FIRST-LAST or MODE:NUMBER, separated by commas or spaces;
 * blocks that it does not name recompute nothing. With an empty text, or with auto before the
 * choice, no block recomputes. */
tr_recompute tr_recompute_of(const char *text, int64_t block);
/* Fails with TR_ERR_CONFIG, naming the key, on other text, on blocks from `blocks` on, and on a
 * block that is named twice. */
tr_status tr_recompute_check(const char *text, int64_t blocks);
/* Writes the modes of blocks 0 .. blocks - 1 as text that says the same. Fails with TR_ERR_CONFIG
 * when it needs TR_RECOMPUTE_TEXT characters or more. */
tr_status tr_recompute_print(const uint8_t *mode, int64_t blocks, char text[TR_RECOMPUTE_TEXT]);
