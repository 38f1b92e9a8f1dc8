/* The files of data.format text and instruct become token files in log.dir/tokens, before the ranks
 * open them. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "job/board.h"

/* Rank 0 makes the token files that log.dir does not have yet, on the cores of all ranks of its
 * host, which wait meanwhile; a resumed run finds them. The board shows the bytes read. Returns the
 * agreed status: fails like tr_data_find_tokenizer and tr_kept_tokens_make. Collective; does
 * nothing for another data.format. */
tr_status tr_train_tokenize_data(tr_world *world, const tr_config *config, tr_board *board);
