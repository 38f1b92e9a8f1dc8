/* config.json of transformers: what it says of a model, in both directions. The dialects of
 * versions 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype) are read, and
 * both are written. */
#pragma once

#include "base/json.h"
#include "layers/model.h"

typedef struct tr_hf {
    tr_model_config model; /* complete, dropout 0; context: of learned positions all, of rotary ones
                              at most 8192 */
    int64_t positions;     /* max_position_embeddings */
    int64_t reach;         /* longest context: positions, or factor x original of the scaling */
} tr_hf;

/* Reads a parsed config.json; `where` is its path for messages. A size that is left out has the
 * default of transformers' class. Fails with TR_ERR_DATA when a key has a wrong type or value, or
 * asks for something that Trireme's families do not have; the sentence names the key. */
tr_status tr_hf_parse(const cJSON *root, const char *where, tr_hf *out);
/* Reads config.json in a folder; with `root` not NULL, sets *root to the parsed file, which the
 * caller frees. Fails with TR_ERR_NOFILE when there is no such folder. */
tr_status tr_hf_read(const char *folder, tr_hf *out, cJSON **root);

/* Writes the config.json of a complete model to *text (the caller frees it with free()). `origin`
 * may be NULL, or the config.json that the model came with: its further keys are passed on, and
 * its max_position_embeddings if it is larger. dtype: "float32", "bfloat16" or "float16". Fails
 * with TR_ERR_DATA when transformers has no such model; the sentence names the key of Trireme. */
tr_status tr_hf_print(const tr_model_config *model, const cJSON *origin, const char *dtype,
                      char **text);
