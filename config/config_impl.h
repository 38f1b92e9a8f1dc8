/* Shared by the files of config/ that judge a config's keys. Private. */
#pragma once

#include "config/config.h"
#include "config/schema.h"

/* Writes where `key` was set, for the front of a sentence that names the key, to buffer[size], and
 * returns it: "file:line:column: "; "" for the command line, "file: " where it was not set. */
const char *tr_config_place_of(const tr_config *config, const char *key, char *buffer, size_t size);

/* Fails, in a function with the config `c`, with TR_ERR_CONFIG and the place of the key. */
#define REFUSE(key, ...)                                                                           \
    do {                                                                                           \
        char sentence_[TR_CONFIG_PATHS + 1024], place_[320];                                       \
        (void)snprintf(sentence_, sizeof sentence_, __VA_ARGS__);                                  \
        return TR_FAIL(TR_ERR_CONFIG, "%s%s", tr_config_place_of(c, (key), place_, sizeof place_), \
                       sentence_);                                                                 \
    } while (0)

/* Sets the keys of optim that are not set and have another default with this optim.name. */
tr_status tr_config_take_optimizer(tr_config *c);
/* Checks the keys of the optimizer and its schedule, like tr_config_check. */
tr_status tr_config_check_optim(const tr_config *c);

/* Checks device.offload, like tr_config_check. */
tr_status tr_config_check_offload(const tr_config *c);

/* Checks parallel.cut, like tr_config_check. */
tr_status tr_config_check_cut(const tr_config *c);

bool tr_config_is_set(const tr_config *config, const char *key);
/* Returns true for a key of tr_model_config that says what the model is, without its updates and
 * what of it is trained. */
bool tr_config_is_of_model(const tr_key *key);
bool tr_config_same_value(const tr_key *key, const tr_config *a, const tr_config *b);

/* Fills the model's keys that are not set: with a preset from the preset, otherwise with the sizes
 * of a tiny model and the family's other values. Also makes preset and family agree. */
tr_status tr_config_take_preset(tr_config *c);
/* The same from model.init_from, unless all keys of the model are set, as in the recorded config of
 * a run. Fails with TR_ERR_CONFIG when a key that is set differs. */
tr_status tr_config_take_origin(tr_config *c);
