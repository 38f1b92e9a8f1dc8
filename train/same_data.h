/* Checks that a resumed run finds the data that it was trained on, and decides which part it reads.
 *
 * A checkpoint records length, hash, format and split of the data. The path is not recorded: the
 * same content at another path is the same data. Of a mixture it records each corpus, and corpora
 * may be added at the end of the mixture. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "data/data.h"

enum { TR_SAME_DATA_NOTE = 512 };

/* Fills the data's fields of *state, the same on every rank, and sets every rank's data to read
 * that extent. Collective. resumes: *state comes from a checkpoint. Fails with TR_ERR_CONFIG when
 * it was saved with other data and data.changed is refuse, or a rank has other weights or another
 * end of documents than rank 0, and with TR_ERR_DATA when a rank has another file. note: on rank 0
 * a sentence for people, or "". */
tr_status tr_same_data_settle(tr_world *world, const tr_config *config, bool resumes, tr_data *data,
                              tr_ckpt_state *state, char note[TR_SAME_DATA_NOTE]);
/* Updates the epoch in *state after state->next_sample has changed. */
void tr_same_data_advance(tr_data *data, tr_ckpt_state *state);
