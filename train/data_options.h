/* Opens the data that a config names. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "data/find_tokenizer.h"

/* Opens the tokenizer of the data (NULL: none), like tr_data_find_tokenizer. data.format bytes has
 * none; fails with TR_ERR_CONFIG when data.tokenizer is set all the same. */
tr_status tr_train_find_tokenizer(const tr_config *config, char note[TR_DATA_NOTE],
                                  tr_tokenizer **tokenizer);
/* Opens the data and their tokenizer (NULL: none). Sets data.document_end of a config that does not
 * have it to that of the tokenizer or the files. note: a sentence about a tokenizer that is not
 * used, or "". Fails like tr_data_find_tokenizer and tr_data_open. The caller closes both. */
tr_status tr_train_open_data(tr_config *config, char note[TR_DATA_NOTE], tr_tokenizer **tokenizer,
                             tr_data **data);
/* Writes the folder of the tokens that a run keeps (data/kept_tokens.h) to text[size]; returns
 * it. */
const char *tr_train_tokens_folder(const tr_config *config, char *text, size_t size);
