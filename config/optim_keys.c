/* The keys of the optimizer and its schedule: defaults and checks. */
#include "config/config_impl.h"
#include "config/points.h"

#include <inttypes.h>
#include <string.h>

/* Defaults that differ from the schema's. */
static const struct {
    const char *optimizer, *key, *value;
} usual[] = {{"adam", "optim.weight_decay", "0"},
             {"sgd", "optim.weight_decay", "0"},
             {"lion", "optim.beta2", "0.99"}};

tr_status tr_config_take_optimizer(tr_config *c) {
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (strcmp(c->optim.name, usual[i].optimizer) || tr_config_is_set(c, usual[i].key))
            continue;
        TR_TRY(tr_key_set(&tr_schema[tr_schema_find(usual[i].key)], usual[i].value, c));
    }
    return TR_OK;
}

int64_t tr_config_horizon(const tr_config *c) {
    return c->optim.horizon ? c->optim.horizon : c->train.steps;
}

tr_status tr_config_check_optim(const tr_config *c) {
    int64_t point[TR_CONFIG_POINTS];
    const int restarts = tr_config_points(c->optim.restarts, point);
    if (restarts > 0 && point[restarts - 1] >= tr_config_horizon(c))
        REFUSE("optim.restarts",
               "optim.restarts has step %" PRId64 ", but the schedule ends at step %" PRId64
               " (optim.horizon, which is train.steps unless it is set): raise optim.horizon, or "
               "leave that step out",
               point[restarts - 1], tr_config_horizon(c));
    if (c->optim.nesterov && (strcmp(c->optim.name, "sgd") || c->optim.momentum == 0))
        REFUSE("optim.nesterov",
               "optim.nesterov needs optim.name sgd and optim.momentum above 0: set them, or leave "
               "optim.nesterov out");
    if (c->optim.min_lr > c->optim.lr)
        REFUSE("optim.min_lr", "optim.min_lr %g is above optim.lr %g", c->optim.min_lr,
               c->optim.lr);
    return TR_OK;
}
