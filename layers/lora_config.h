/* model.lora: which linear layers have low-rank updates, their rank and factor (layers/lora.h). */
#pragma once

#include "layers/model.h"

#define TR_LORA_A "lora_A.weight"
#define TR_LORA_B "lora_B.weight"

/* Returns alpha / rank; alpha 0 means rank. */
double tr_lora_factor(const tr_lora_config *lora);
/* Returns true when a target names the module layer.name, as PEFT compares them: the whole name, or
 * its end after a dot. "all-linear" names every linear layer of the blocks. */
bool tr_lora_names(const tr_lora_config *lora, const char *layer, const char *name);
/* Writes the targets of a complete config to text[size], separated by spaces; all-linear as the
 * last parts of the names of the block's linear layers, each once. */
void tr_lora_modules(const tr_model_config *config, char *text, size_t size);
/* Returns true when two complete configs of one model have the same targets, in whatever order. */
bool tr_lora_same_targets(const tr_model_config *a, const tr_model_config *b);
/* Returns true for the name of an A or B. */
bool tr_lora_is_update(const char *tensor);
/* Fails with TR_ERR_CONFIG, naming the key, when the rank is above a target's sizes, or a target
 * names no linear layer of the model's blocks. */
tr_status tr_lora_check(const tr_model_config *config);
