/* How a config's data are opened. */
#pragma once

#include "config/config.h"
#include "data/data.h"

/* Returns the options; their texts are the config's. */
static inline tr_data_options tr_data_options_of(const tr_config *config) {
    tr_data_options options = {.path = config->data.path,
                               .format = config->data.format,
                               .context = config->model.context,
                               .vocab = config->model.vocab,
                               .seed = (uint64_t)config->train.seed,
                               .packed = tr_config_packed(config),
                               .document_end = tr_config_document_end(config)};
    options.validation = tr_config_validation(config, &options.validation_path);
    return options;
}
