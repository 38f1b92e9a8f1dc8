#include "train/start.h"

#include "config/adapter.h"

#include <stdio.h>

static tr_status open_updates(const tr_config *config, const tr_model *model, tr_start *out) {
    char path[TR_CONFIG_PATH + 32];
    tr_adapter adapter;
    if (!tr_config_adapter(config)) return TR_OK;
    TR_TRY(tr_adapter_read(tr_config_adapter(config), &adapter));
    out->dropout = adapter.dropout;
    (void)snprintf(path, sizeof path, "%s/" TR_ADAPTER_WEIGHTS, tr_config_adapter(config));
    tr_status status = tr_weights_open_updates(path, TR_ADAPTER_PREFIX, &out->updates);
    if (status == TR_ERR_NOFILE) /* the folder exists */
        status =
            TR_FAIL(TR_ERR_DATA, "there is no file '%s', which has the adapter's tensors", path);
    TR_TRY(status);
    return tr_weights_check_updates(&out->updates, model, path);
}

tr_status tr_start_open(const tr_config *config, tr_start *out) {
    const char *folder = tr_config_origin(config);
    tr_model *model = NULL;
    *out = (tr_start){0};
    TR_TRY(tr_weights_open(folder, &out->weights));
    tr_status status = tr_weights_make_model(&out->weights, &config->model, folder, &model);
    if (status == TR_OK) status = open_updates(config, model, out);
    tr_model_destroy(model);
    return status;
}

void tr_start_close(tr_start *start) {
    tr_weights_close(&start->weights);
    tr_weights_close(&start->updates);
}

tr_status tr_start_load(tr_start *s, tr_world *world, tr_store *store, uint64_t seed,
                        tr_ckpt_tensor *tensors, int count) {
    TR_TRY(tr_weights_load(world, &s->weights, tensors, count));
    if (s->updates.count > 0) return tr_weights_load_updates(world, &s->updates, tensors, count);
    return tr_store_init_updates(store, seed);
}
