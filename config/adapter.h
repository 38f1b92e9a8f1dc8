/* adapter_config.json of PEFT: low-rank updates (LoRA) of a model in another folder. */
#pragma once

#include "config/config.h"

#define TR_ADAPTER_CONFIG  "adapter_config.json"
#define TR_ADAPTER_WEIGHTS "adapter_model.safetensors"
#define TR_ADAPTER_PREFIX  "base_model.model." /* of the names of its tensors */

typedef struct tr_adapter {
    tr_lora_config lora;
    double dropout;            /* of an update's input in training, which Trireme does not have */
    char base[TR_CONFIG_PATH]; /* the folder of the model, "" if the file names none */
} tr_adapter;

/* Returns true when the folder has an adapter_config.json. */
bool tr_adapter_is(const char *folder);

/* Reads adapter_config.json in a folder. A relative name of the base is first looked for from the
 * working directory, then from the folder. Fails with TR_ERR_DATA, naming the key, when a value is
 * wrong or asks for something that Trireme does not have: another peft_type, other initial values
 * of the base, DoRA, RS-LoRA, ranks by pattern, trained biases, whole modules. */
tr_status tr_adapter_read(const char *folder, tr_adapter *out);

/* Writes the adapter_config.json of a complete model's updates to *text; the caller frees it with
 * free(). base: the name of the folder of the model, may be "". */
tr_status tr_adapter_print(const tr_model_config *model, const char *base, char **text);
