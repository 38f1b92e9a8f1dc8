/* What a run keeps of the folder that its weights came from and of its data, to use it when it
 * samples and to pass it on with an export: <run>/tokenizer/ (tokenizer and generation files) and
 * <run>/origin.json (the types that the tensors had, and config.json). */
#pragma once

#include "base/json.h"
#include "ckpt/weights.h"
#include "layers/model.h"
#include "text/tokenizer.h"

/* Writes both for a run. `folder` may be NULL, and `config` (config.json) too. */
tr_status tr_origin_write(const char *run, const char *folder, const cJSON *config,
                          const tr_weights *weights, const tr_model *model);
/* Removes what tr_origin_write writes. Keeps this thread's error. */
void tr_origin_remove(const char *run);
/* Reads origin.json; a run that was born here has none, and *out is NULL. The caller frees it with
 * cJSON_Delete. Fails with TR_ERR_DATA when it has a type that is not known. */
tr_status tr_origin_read(const char *run, cJSON **out);
/* Returns the type that a tensor had: FP32 where origin (may be NULL) says nothing. */
tr_weight_type tr_origin_type(const cJSON *origin, const char *tensor);
/* Copies the tokenizer and generation files that are in `from` to the folder `to`, which is made if
 * there is one, and syncs it. */
tr_status tr_origin_copy(const char *from, const char *to);
/* Writes tokenizer_config.json into a folder for transformers that has a tokenizer.json without it:
 * the class that takes the file as it is, and the token that ends a document. transformers would
 * take the class of the model's family, which has its own pattern, or puts its own first token
 * before a text. */
tr_status tr_origin_name_tokenizer(const char *folder);

/* Puts the tokenizer of a run's data into <run>/tokenizer/, with the chat template and the other
 * settings that are next to it. They replace those of tr_origin_write. Fails with TR_ERR_IO, and
 * with TR_ERR_DATA when a file cannot be read. */
tr_status tr_origin_keep_tokenizer(const char *run, const tr_tokenizer *tokenizer);
